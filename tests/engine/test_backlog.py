"""K = 0 runs nothing of the drafter, and drafting resumes as if it had never paused."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from jspec import decode as steps
from jspec.drafters import Plain
from jspec.drafters.backlog import SPAN, empty_backlog
from jspec.testing import GREEDY, Loop, compilations, self_draft, tiny_target
from tests.drafters.eagles import eagle, eagle3, weights_of
from tests.serving import PROMPTS, greedy, settled


def lazy(loop):
    """The loop, with a backlog; its drafter catches up when it is told to."""
    empty = empty_backlog(
        loop.drafter,
        loop.target,
        loop.state.memory,
        loop.layout.rows,
        loop.target.dtype,
    )
    loop.state = dataclasses.replace(loop.state, backlog=empty)
    return loop


@functools.partial(jax.jit, static_argnames="drafter")
def catch_up(target, weights, state, rows, *, drafter):
    return steps.catch_up(target, weights, state, rows, drafter=drafter)


@pytest.mark.parametrize("make", [eagle, eagle3])
def test_a_head_remembers_the_same_whether_it_looks_at_once_or_later(make):
    target, drafter = tiny_target(num_layers=2), make(gamma=0)
    weights = weights_of(drafter)
    drafter = drafter.fit(target) if hasattr(drafter, "fit") else drafter
    at_once = Loop(target, drafter, weights, rows=2, chunk=8)
    later = lazy(Loop(target, drafter, weights, rows=2, chunk=8))
    rows = np.arange(2, dtype=np.int32)
    for loop in (at_once, later):
        for row, prompt in enumerate(([3, 1, 4, 1, 5], [9, 2])):
            loop.admit(row, prompt, dataclasses.replace(GREEDY, max_tokens=60))
    before = jax.tree.map(np.array, later.state.memory.pages)
    for count in (3, SPAN - 3):
        for _ in range(count):
            first, second = at_once.round(), later.round()
            assert first.tokens.tolist() == second.tokens.tolist()
    pages = (before, later.state.memory.pages)
    for a, b in zip(*map(jax.tree.leaves, pages), strict=True):
        np.testing.assert_array_equal(a, b)
    later.state = catch_up(target, weights, later.state, rows, drafter=drafter)
    assert later.state.backlog.seen.tolist() == later.state.rows.length.tolist()
    pages = (at_once.state.memory.pages, later.state.memory.pages)
    for a, b in zip(*map(jax.tree.leaves, pages), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def program(drafter, weights):
    """What a round without drafts runs, in operations that cost something."""
    target = tiny_target(num_layers=2)
    layout = Loop(target, drafter, weights, rows=2).layout
    state = steps.init_state(target, drafter, weights, layout, target.dtype, lazy=True)
    step = functools.partial(steps.decode_round, drafter=drafter)
    text = jax.jit(step).lower(target, weights, state, np.arange(2)).as_text()
    return {name: text.count(name) for name in ("dot_general", "custom_call", "while")}


def test_a_round_without_drafts_runs_nothing_of_the_drafter():
    target = tiny_target(num_layers=2)
    head = eagle(gamma=0, tree_width=2).fit(target)
    plain = program(Plain(), None)
    assert plain["dot_general"] > 0
    assert program(self_draft(gamma=0), target) == plain
    assert program(head, weights_of(head)) == plain


class Pausing:
    """K = 4, with a pause of some rounds at K = 0 every now and then."""

    palette = (0, 4)

    def __init__(self, pause):
        self.pause, self.asked = pause, 0

    def k(self, batch, context=0):
        self.asked += 1
        return 4 if self.asked % (self.pause + 3) < 3 else 0

    def update(self, accepted, batch, drafted=None):
        pass


class Starting(Pausing):
    """K = 0 for some rounds, then K = 4 for good."""

    def k(self, batch, context=0):
        self.asked += 1
        return 0 if self.asked <= self.pause else 4


def test_a_prompt_read_while_nothing_is_drafted_is_read_by_the_target_alone(servers):
    story = PROMPTS[0] * 3
    with servers.new("self", schedule=Starting(6), max_batch=2) as server:
        with compilations() as compiled:
            first = server.generate([story, PROMPTS[1]], greedy(3))
            quiet = settled(server)
            done = server.generate([story + "x", story, PROMPTS[1]], greedy(20))
            found = settled(server)
        assert compiled == []
    assert quiet["drafted_tokens"] == quiet["drafter_catch_ups"] == 0
    assert done[0].usage.cached_tokens >= SPAN
    assert found["drafter_catch_ups"] >= done[0].usage.cached_tokens // SPAN
    assert found["accepted_tokens"] == found["drafted_tokens"] > 0
    prompts = (story, PROMPTS[1], story + "x", story, PROMPTS[1])
    wishes = [greedy(3)] * 2 + [greedy(20)] * 3
    for prompt, one, wish in zip(prompts, first + done, wishes, strict=True):
        assert one.token_ids == servers.plain(prompt, wish).token_ids


def test_a_postponed_prompt_costs_what_it_costs_without_a_drafter():
    target = tiny_target(num_layers=2)
    counts = []
    for drafter, weights, postponed in (
        (Plain(), None, False),
        (self_draft(gamma=4), target, True),
        (self_draft(gamma=4), target, False),
    ):
        layout = Loop(target, drafter, weights, rows=2).layout
        state = steps.init_state(
            target, drafter, weights, layout, target.dtype, lazy=True
        )
        one, piece = np.zeros(1, np.int32), np.zeros((1, 8), np.int32)
        step = functools.partial(steps.prefill, drafter=drafter, postponed=postponed)
        lowered = jax.jit(step).lower(target, weights, state, one, piece, one, one)
        counts.append(lowered.as_text().count("dot_general"))
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize("pause", [3, SPAN + 5])
def test_a_model_that_paused_drafts_as_well_as_one_that_never_did(servers, pause):
    with servers.new("self", schedule=Pausing(pause), max_batch=2) as server:
        assert "catch up batch=2" in server.metrics()["compile_seconds"]
        with compilations() as compiled:
            done = server.generate(list(PROMPTS[:3]), greedy(90))
            found = settled(server)
        assert compiled == []
    rounds = found["rounds_by_num_speculative_tokens"]
    assert rounds[0] > 1 < rounds[4]
    assert found["accepted_tokens"] == found["drafted_tokens"] > 0
    for prompt, one in zip(PROMPTS, done, strict=False):
        assert one.token_ids == servers.plain(prompt, greedy(90)).token_ids


def test_a_prefix_cached_by_a_row_that_paused_is_drafted_from_as_any_other(servers):
    with servers.new("self", schedule=Pausing(9), max_batch=2) as server:
        [first] = server.generate(PROMPTS[0], greedy(60))
        ids = server.tokenizer.encode(PROMPTS[0]) + first.token_ids
        [again] = server.generate([ids[:50]], greedy(30))
        found = settled(server)
    assert again.usage.cached_tokens > len(server.tokenizer.encode(PROMPTS[0]))
    assert found["accepted_tokens"] == found["drafted_tokens"] > 0
