"""The embedded model: drafting changes no token, on prompts of five kinds."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import jspec
from benchmarks.data import select

PROMPTS = "gsm8k:4,humaneval:4,mt_bench:4,nq_qa:4,translation:4"
TOKENS = 48
TARGET = "smollm2-135m"
SPECULATIVE = {
    "ngram": {"method": "ngram"},
    "draft_model": {"method": "draft_model", "drafter": TARGET},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@functools.cache
def answers(dtype, method):
    """What 20 prompts get, two at once, from a server of its own."""
    prompts = [prompt.request for prompt in select(PROMPTS)]
    params = jspec.SamplingParams(temperature=0.0, max_tokens=TOKENS)
    with jspec.serve(
        TARGET,
        num_speculative_tokens=4 if method in SPECULATIVE else None,
        max_batch=2,
        max_model_len=640,
        dtype=dtype,
        **SPECULATIVE.get(method, {"method": method}),
    ) as server:
        done = server.generate(prompts, params)
    assert len(done) == 20
    return done


def share_of_equal(dtype, method):
    pairs = zip(answers(dtype, method), answers(dtype, "none"), strict=True)
    equal = [ours.token_ids == plain.token_ids for ours, plain in pairs]
    return sum(equal) / len(equal)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_in_float32_drafting_changes_no_token(method):
    for ours, plain in zip(
        answers("float32", method), answers("float32", "none"), strict=True
    ):
        assert ours.token_ids == plain.token_ids
        assert ours.text == plain.text
        assert ours.finish_reason == plain.finish_reason


def test_the_model_accepts_all_that_it_drafts_for_itself():
    numbers = [done.speculation for done in answers("float32", "draft_model")]
    assert sum(one.drafted for one in numbers) > 600
    assert all(one.accepted == one.drafted for one in numbers)


@pytest.mark.parametrize("method", SPECULATIVE)
def test_the_share_of_equal_texts_in_bfloat16_is_recorded(method, record_property):
    share = share_of_equal("bfloat16", method)
    record_property(f"equal share, bfloat16, {method}", share)
    print(f"bfloat16, {method}: {share:.0%} of texts equal plain decoding's")


def test_the_command_line_gives_the_same_ids_with_and_without_drafting():
    prompt = "Repeat three times: the quick brown fox jumps over the lazy dog."
    ids = {}
    for method, options in {"none": {"method": "none"}, **SPECULATIVE}.items():
        flags = [part for key, value in options.items() for part in (f"--{key}", value)]
        k = [] if method == "none" else ["-k", "4"]
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from jspec.cli import main; main()"),
                *("generate", "--target", TARGET, *flags, *k, "--temperature", "0"),
                *("--dtype", "float32", "--max-tokens", "48", "--json", prompt),
            ],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        [answer] = map(json.loads, done.stdout.splitlines())
        ids[method] = answer["token_ids"]
        if method == "draft_model":
            assert answer["accepted_share"] == 1.0
    assert ids["ngram"] == ids["draft_model"] == ids["none"]
