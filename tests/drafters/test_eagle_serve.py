"""EAGLE heads through `jspec.serve`: what a checkpoint decides, and what is refused."""

import dataclasses

import pytest

import jspec
from jspec import checkpoint
from tests import serving
from tests.drafters.eagles import SIZES, eagle, eagle3, sized, weights_of

VOCAB = serving.TOKENS + 5
PROMPT = "the cat and the cat and the"
SMALL = {"taps": (0, 1), "tap_count": 2, "draft_vocab_size": 60, "vocab_size": VOCAB}


def saved(folder, method, drafter):
    config = drafter.config.to_json()
    checkpoint.save_drafter(folder, method, config, weights_of(drafter), source={})
    return folder


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Checkpoints of heads, some for other targets."""
    folder = tmp_path_factory.mktemp("heads")
    other = dataclasses.replace(SIZES, hidden_size=16, num_heads=2)
    wide = {"own_embedding": True, "target_hidden_size": 16}
    return {
        "eagle3": saved(folder / "3", "eagle3", eagle3(config=SMALL)),
        "eagle": saved(folder / "1", "eagle", eagle(config={"vocab_size": VOCAB})),
        "other width": saved(folder / "w", "eagle3", eagle3(other, SMALL | wide)),
        "other vocabulary": saved(
            folder / "v", "eagle", eagle(config={"vocab_size": VOCAB - 1})
        ),
    }


def served(servers, drafter, **options):
    options = {"max_batch": 1, "max_model_len": 64, "page_size": 4} | options
    with serving.quick_compiler(servers.folder / "xla"):
        return jspec.serve(
            servers.paths["target"],
            drafter=drafter,
            compilation_cache=False,
            num_speculative_tokens=2,
            **options,
        )


def answers(server, *prompts):
    wish = jspec.SamplingParams(temperature=1.0, seed=7, max_tokens=20, ignore_eos=True)
    done = [server.generate(prompt, wish)[0] for prompt in prompts]
    return [(d.token_ids, d.speculation) for d in done]


@pytest.mark.slow
def test_r40_a_prefix_is_shared_with_what_was_drafted_from_it(servers, heads):
    with served(servers, heads["eagle3"]) as server:
        assert server.method == "eagle3"
        _, again, other = answers(server, PROMPT, PROMPT, PROMPT[:24] + "xyz")
        assert server.metrics()["cached_prompt_tokens"] > 24
        [done] = server.generate(PROMPT, serving.greedy())
        assert done.token_ids == servers.plain(PROMPT, serving.greedy()).token_ids
        assert server.metrics()["drafted_tokens"] > 0
    with served(servers, heads["eagle3"], prefix_cache=False) as server:
        right = answers(server, PROMPT, PROMPT[:24] + "xyz")
    assert [again, other] == right


@pytest.mark.slow
def test_a_tree_is_served_and_greedy_text_is_plain(servers, heads):
    options = {"tree_width": 2, "tree_nodes": 6, "window": 8, "sink": 2}
    with served(servers, heads["eagle"], method_options=options) as server:
        for prompt in (PROMPT, "q"):
            [done] = server.generate(prompt, serving.greedy())
            assert done.token_ids == servers.plain(prompt, serving.greedy()).token_ids


@pytest.mark.parametrize("kind", ["eagle", "draft_model"])
@pytest.mark.slow
def test_r15_a_drafter_of_shorter_texts_drafts_on_beyond_them(
    servers, tmp_path, caplog, kind
):
    if kind == "eagle":
        short = dataclasses.replace(SIZES, max_position=32)
        head = eagle(short, config={"vocab_size": VOCAB})
        drafter = saved(tmp_path / "short", "eagle", head)
    else:
        drafter = serving.write_checkpoint(tmp_path / "short", max_position=32)
    wish = serving.greedy(40)
    with served(servers, drafter, max_model_len=128) as server:
        prompt = server.tokenizer.encode(PROMPT * 2)[:30]
        [done] = server.generate([prompt], wish)
    assert done.token_ids == servers.plain(prompt, wish).token_ids
    [line] = [record.message for record in caplog.records]
    assert line.startswith("the drafter was trained for 32 positions, texts may reach")
    if kind == "draft_model":
        assert done.speculation.accepted == done.speculation.drafted


@pytest.mark.parametrize(
    ("head", "options", "why"),
    [
        ("eagle3", {"method": "eagle"}, "made for method 'eagle3', not for 'eagle'"),
        ("eagle", {"method": "draft_model"}, "made for method 'eagle', not for 'draft"),
        ("eagle", {"method": "ngram"}, "method 'ngram' has no weights"),
        (None, {"method": "eagle"}, "method 'eagle' needs drafter=, an EAGLE head"),
        ("target", {"method": "eagle"}, "is a language model; method 'eagle' needs"),
        ("other width", {}, "made for a target of hidden size 16; this one has 32"),
        ("other vocabulary", {}, r"of vocabulary \d+; this one has"),
        ("eagle", {"method_options": {"taps": (1,)}}, "method_options has 'taps'"),
        ("eagle", {"method_options": {"sink": 3}}, "sink=3 needs window="),
        (
            "eagle",
            {"method_options": {"tree_width": 2}, "draft_sampling": "probabilistic"},
            "drafts a chain",
        ),
        ("eagle3", {"method_options": {"taps": (5, 6)}}, "taps .* in 0..1"),
    ],
)
def test_r56_what_does_not_fit_is_refused_in_one_sentence(
    servers, heads, head, options, why
):
    path = servers.paths["target"] if head == "target" else heads.get(head)
    with pytest.raises(ValueError, match=why) as caught:
        served(servers, path, **options)
    assert len(str(caught.value).splitlines()) == 1


def test_a_drafter_is_no_target(heads):
    with pytest.raises(ValueError, match="kind 'drafter', not a target"):
        jspec.serve(heads["eagle"])


def test_methods_say_what_they_need():
    listed = {method.name: method for method in jspec.methods()}
    assert listed["eagle"].weights == "an EAGLE head made for the target"
    assert listed["eagle3"].num_speculative_tokens == 4
    assert sized().window(0) is None
