"""`schedule=`: what it may be, what it is refused for, what the engine makes of it."""

import json

import pytest

from jspec.control import Adaptive, Corrected, Schedule, Static, formats
from jspec.server.schedule import make_controller, spell_schedule
from jspec.testing import compilations
from tests.serving import PROMPTS, greedy, settled

ENTRIES = [(1, 1, 4), (2, 3, 0, 40, 3), (2, 3, 41, 128, 1), (4, 4, 0)]


def made(schedule, **changes):
    limits = {"max_batch": 4, "max_model_len": 128, "max_k": 4, "batches": (1, 2, 4)}
    return make_controller(schedule, **(limits | changes))


def test_entries_files_and_controllers_name_the_same_schedule(tmp_path):
    table = made(ENTRIES)
    assert table.palette == (0, 1, 3, 4)
    for form in ("vllm", "depthchart"):
        formats.save(table, tmp_path / form, form)
        assert made(tmp_path / form) == made(str(tmp_path / form)) == table
    formats.save(table, tmp_path / "sglang", "sglang", context=10)
    assert made(tmp_path / "sglang").k(2, 100) == 3
    assert made(table) is table
    assert made(None) is None
    assert spell_schedule(ENTRIES, table) == [list(entry) for entry in ENTRIES]


def test_candidates_that_leave_a_choice_and_the_word_adapt(tmp_path):
    assert isinstance(made("adaptive"), Adaptive)
    assert made("adaptive").palette == (0, 1, 3)
    path = tmp_path / "slots.json"
    path.write_text(json.dumps({"1": {"candidate_steps": [0, 2, 4]}}))
    assert isinstance(made(path), Adaptive)
    assert made(path).palette == (0, 2, 4)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ([(1, 4, 5)], "K 5 exceeds num_speculative_tokens, 4"),
        (Static(5), "K 5 exceeds num_speculative_tokens, 4"),
        ({"1": {"candidate_steps": [0, 7]}}, "K 7 exceeds num_speculative_tokens, 4"),
        ([(2, 4, 1)], "begins at batch 2"),
        ("fast", "'fast' is neither 'adaptive' nor a file"),
        (3, "schedule= is 'adaptive', a list of entries"),
        ({}, "this one has none"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule, why):
    with pytest.raises(ValueError, match=why):
        made(schedule)


class Walk:
    """Another K of its palette every round; notes what it is told."""

    palette = (0, 1, 4)

    def __init__(self):
        self.asked, self.told = [], []

    def k(self, batch, context=0):
        self.asked.append((batch, context))
        return self.palette[len(self.asked) * 2 % 3]

    def update(self, accepted, batch, drafted=None):
        self.told.append((tuple(accepted), batch, drafted))


@pytest.mark.parametrize(
    "kind", ["ngram", pytest.param("self", marks=pytest.mark.slow)]
)
def test_r49_k_walks_over_its_palette_without_compiling_or_changing_the_text(
    servers, kind
):
    walk = Walk()
    with servers.new(kind, schedule=walk, max_batch=2) as server:
        with compilations() as compiled:
            done = server.generate(list(PROMPTS[:3]), greedy(40))
            found = settled(server)
        assert compiled == []
    rounds = found["rounds_by_num_speculative_tokens"]
    assert set(rounds) == set(walk.palette)
    assert found["num_speculative_tokens_switches"] == sum(rounds.values()) - 1
    for prompt, one in zip(PROMPTS, done, strict=False):
        assert one.token_ids == servers.plain(prompt, greedy(40)).token_ids
    assert {k for _, _, k in walk.told} == set(walk.palette)
    for accepted, batch, k in walk.told:
        assert 0 < len(accepted) <= batch
        assert all(0 <= kept <= k for kept in accepted)
    assert max(kept for accepted, *_ in walk.told for kept in accepted) > 0
    assert walk.asked[0] == (1, len(server.tokenizer.encode(PROMPTS[0])))


def test_r50_batch_and_context_look_k_up_and_a_request_may_ask_for_less(servers):
    entries = [(1, 1, 4), (2, 2, 0, 40, 1), (2, 2, 41, 128, 0)]

    def rounds():
        return set(settled(server)["rounds_by_num_speculative_tokens"])

    with servers.new("ngram", schedule=entries, max_batch=2) as server:
        assert server.metrics()["executables"] == 2 * 3 + 2 + 2
        assert server.settings["schedule"] == [list(entry) for entry in entries]
        server.generate("a a a", greedy(12))
        assert rounds() == {4}
        [done] = server.generate("a a a", greedy(12, num_speculative_tokens=2))
        assert rounds() == {4}
        assert len(done.speculation.drafted_per_position) <= 2
        server.generate(["b b b"] * 2, greedy(20))
        assert rounds() == {1, 4}
        server.generate(["b b b"] * 2, greedy(60))
        assert rounds() == {0, 1, 4}


def test_adaptive_settles_on_what_the_drafts_are_worth(servers):
    config = {"1": {"candidate_steps": [1, 4], "warmup_batches": 2}}
    for kind, best in (("self", 4), ("ngram", 1)):
        with servers.new(kind, schedule=config, max_batch=2) as server:
            prompt = "q" if kind == "ngram" else "a a"
            params = greedy(100, temperature=0.0 if kind == "self" else 3.0, seed=1)
            server.generate(prompt, params)
            rounds = settled(server)["rounds_by_num_speculative_tokens"]
            assert max(rounds, key=rounds.get) == best


def test_overload_is_told_how_full_the_engine_is(servers):
    table = Schedule.parse([(1, 2, 4)], max_batch=2, max_model_len=128, max_k=4)
    corrected = Corrected(table)
    corrected.overload.kv_usage_above = 1.0
    with servers.new("ngram", schedule=corrected, max_batch=2) as server:
        server.generate("a a a a a a a a", greedy(12))
        assert set(settled(server)["rounds_by_num_speculative_tokens"]) == {0}
