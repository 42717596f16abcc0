"""The command line: what goes to stdout, what to stderr, and the exit status."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import jspec
from jspec.cli import main
from jspec.verify import Standard
from tests.serving import PROMPTS, greedy, write_checkpoint


@pytest.fixture
def command(servers, monkeypatch, capsys):
    """Runs `jspec` here, on a shared server; returns (status, stdout, stderr)."""
    asked = {}

    def serve(target, **options):
        asked.update(options, target=target)
        return contextlib.nullcontext(servers[options["method"]])

    monkeypatch.setattr(jspec, "serve", serve)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["jspec", *args])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return left.value.code, out, err

    run.asked = asked
    return run


@pytest.mark.parametrize(
    "method", ["plain", "ngram", pytest.param("self", marks=pytest.mark.slow)]
)
def test_json_is_one_object_a_prompt_and_nothing_else(command, servers, method):
    options = ["--method", method, "-k", "4", "--max-tokens", "9", "--raw", "--json"]
    status, out, err = command("generate", *options, *PROMPTS[:3])
    assert (status, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["prompt"] for answer in answers] == list(PROMPTS[:3])
    for answer in answers:
        params = greedy(9, ignore_eos=False)
        right = servers.plain(answer["prompt"], params)
        assert answer["token_ids"] == right.token_ids
        assert (answer["text"], answer["finish_reason"]) == (right.text, "length")
        assert answer["usage"]["completion_tokens"] == 9
        share = answer["accepted_share"]
        assert share is None if not answer["drafted"] else 0 <= share <= 1
        assert method != "self" or share == 1


def test_r68_every_flag_reaches_the_engine(command):
    flags = {"--target": "t", "--method": "ngram", "--drafter": "d", "-k": "3"}
    flags |= {"--dtype": "bfloat16", "--max-tokens": "2", "--temperature": "0.5"}
    flags |= {"--verification": "block", "--schedule": "adaptive"}
    given = [part for pair in flags.items() for part in pair]
    status, first, _ = command("generate", *given, "--seed", "7", "--json", "hello")
    assert status == 0
    wanted = {"target": "t", "method": "ngram", "drafter": "d", "dtype": "bfloat16"}
    wanted |= {"num_speculative_tokens": 3, "verification": "block"}
    wanted |= {"schedule": "adaptive"}
    assert wanted.items() <= command.asked.items()
    again = command("generate", *given, "--seed", "7", "--json", "hello")[1]
    ids = [json.loads(text)["token_ids"] for text in (first, again)]
    assert ids[0] == ids[1]
    assert len(ids[0]) <= 2


def test_text_streams_and_the_last_line_has_the_numbers(command):
    status, out, err = command("generate", "--method", "self", "--raw", "stream me")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith("[")
    assert "tokens/s, tau" in out.splitlines()[-1]
    assert "100% of drafts accepted" in out.splitlines()[-1]


def test_answers_of_a_lossy_run_say_so(command, monkeypatch):
    monkeypatch.setattr(Standard, "lossy", True)
    args = ("generate", "--method", "ngram", "--max-tokens", "3", "--raw", "a a a")
    assert command(*args)[1].endswith(", lossy]\n")
    assert json.loads(command(*args, "--json")[1])["lossy"] is True
    monkeypatch.setattr(Standard, "lossy", False)
    assert "lossy" not in command(*args)[1]
    assert json.loads(command(*args, "--json")[1])["lossy"] is False


def test_a_template_is_used_unless_the_text_is_raw(command):
    counts = []
    for raw in ([], ["--raw"]):
        given = ["--method", "plain", "--max-tokens", "1", "--json", *raw, "hi"]
        usage = json.loads(command("generate", *given)[1])["usage"]
        counts.append(usage["prompt_tokens"])
    assert counts == [4, 2]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["nope"], "No such command"),
        (["generate"], "Missing argument"),
        (["generate", "--nope", "x"], "No such option"),
        (["generate", "-k", "many", "x"], "-k"),
        (["generate", "--max-tokens", "0", "x"], "max_tokens must be"),
        (["generate", "--temperature", "-1", "x"], "temperature must be"),
        (["generate", "--seed", "-1", "x"], "seed must be"),
        (["generate", "--method", "plain", "--raw", ""], "the prompt is empty"),
        (["generate", "--method", "plain", "--raw", "x" * 200], "the prompt has 200"),
    ],
)
def test_wrong_input_is_told_in_one_line_with_status_two(command, args, why):
    status, out, err = command(*args)
    assert (status, out) == (2, "")
    assert err.startswith("jspec: ")
    assert why in err
    assert len(err.splitlines()) == 1


def test_a_failed_answer_is_our_fault(command, servers, monkeypatch):
    done = servers.plain("x", greedy(1))
    failed = dataclasses.replace(done, finish_reason="error", error="it burns")
    handle = MagicMock(result=lambda: failed)
    monkeypatch.setattr(servers["plain"], "submit", lambda *_: handle)
    found = command("generate", "--method", "plain", "--json", "x")
    assert found == (1, "", "jspec: it burns\n")


def test_methods_are_listed_for_people_and_machines(command):
    status, out, err = command("methods", "--json")
    assert (status, err) == (0, "")
    names = [method["name"] for method in json.loads(out)]
    assert names == [method.name for method in jspec.methods()]
    status, out, _ = command("methods")
    assert status == 0
    assert all(name in out for name in names)


def test_without_arguments_it_helps(command):
    status, out, _ = command()
    assert status == 0
    assert "generate" in out


def test_the_installed_command_answers_and_refuses(tmp_path):
    target = write_checkpoint(tmp_path / "target", max_position=64)

    def run(*args):
        return subprocess.run(
            [sys.executable, "-c", "from jspec.cli import main; main()", *args],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
        )

    options = ["--target", str(target), "--max-tokens", "12", "--json"]
    done = run("generate", *options, "--method", "none", "a b", "c d")
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(answer["token_ids"]) for answer in answers] == [12, 12]
    wrong = run("generate", *options, "--method", "nonesuch", "a b")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("jspec: method 'nonesuch' is not known")
    assert len(wrong.stderr.splitlines()) == 1
