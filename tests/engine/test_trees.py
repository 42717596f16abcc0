"""Drafted trees through the engine: room for every node, also where texts end."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import decode as steps
from jspec.cache import CacheLayout
from jspec.drafters import METHODS
from jspec.engine.buckets import Buckets
from jspec.engine.engine import Engine
from jspec.engine.pages import PagePool
from jspec.engine.request import Request
from jspec.engine.scheduler import Scheduler
from jspec.testing import GREEDY, Scripted, decode, tiny_target

PAGE = 4
ROOM = 40
PARENTS = (0, 0, 0, 0, 0, 5, 6, 5, 7)
PROMPTS = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [5] * 11, [17])


@functools.cache
def target():
    return tiny_target()


@functools.cache
def plain(index, tokens):
    params = dataclasses.replace(GREEDY, max_tokens=tokens)
    done = decode(target(), METHODS["none"](), None, [PROMPTS[index]], params)
    return done[0].tokens


def tree_script(texts):
    """What comes next stands at nodes 5, 6, 7 and 9; the rest of the tree is wrong."""
    lines = np.full((len(texts), 128, len(PARENTS)), -1, np.int32)
    for row, text in enumerate(texts):
        for place in range(len(text) - 1):
            right = [*text[place + 1 :], 0, 0, 0, 0][:4]
            wrong = (right[0] + 1 + np.arange(4)) % 64
            last = (right[2] + 1) % 64
            lines[row, place] = [*wrong, *right[:3], last, right[3]]
    return jnp.asarray(lines)


def engine_of(drafter, weights, *, room=ROOM, spare=None, pages=None, rows=2):
    layout = CacheLayout(rows=rows, room=room, pages=pages or 64, page_size=PAGE)
    state = steps.init_state(target(), drafter, weights, layout, jnp.float32)
    if spare is None:
        spare = steps.spare_slots(target(), drafter, weights, state)
        layout = dataclasses.replace(layout, room=room + spare)
        state = steps.init_state(target(), drafter, weights, layout, jnp.float32)
    state = dataclasses.replace(
        state, pages=jax.tree.map(lambda a: jnp.full_like(a, 7), state.pages)
    )
    return Engine(
        target(),
        drafter,
        weights,
        state,
        layout=layout,
        buckets=Buckets(batch=(rows,), prompt=(8,), gammas=(drafter.gamma,)),
        max_model_len=room,
    )


def run(engine, requests):
    for request in requests:
        engine.check(request, ())
        engine.submit(request, ())
    for _ in range(200):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine did not end")


def asked(index, tokens):
    params = dataclasses.replace(GREEDY, max_tokens=tokens)
    return Request(index, PROMPTS[index], params)


def drafting(texts):
    return Scripted(gamma=4, parents=PARENTS), tree_script(texts)


def test_the_nodes_of_a_tree_are_counted_without_running_it():
    drafter, weights = drafting(PROMPTS)
    layout = CacheLayout(rows=2, room=ROOM, pages=8, page_size=PAGE)
    model = target()
    state = jax.eval_shape(
        lambda: steps.init_state(model, drafter, weights, layout, jnp.float32)
    )
    assert steps.spare_slots(model, drafter, weights, state) == len(PARENTS)
    chain = dataclasses.replace(drafter, parents=None)
    assert steps.spare_slots(model, chain, weights, state) == 0


def test_trees_at_the_end_of_the_room_equal_plain_decoding_in_pages_just_enough():
    right = [plain(i, ROOM - len(prompt)) for i, prompt in enumerate(PROMPTS)]
    drafter, weights = drafting(
        [[*prompt, *text] for prompt, text in zip(PROMPTS, right, strict=True)]
    )
    pages = 3 * -(-(ROOM + len(PARENTS)) // PAGE)
    engine = engine_of(drafter, weights, pages=pages, rows=3)
    requests = [asked(i, len(text)) for i, text in enumerate(right)]
    run(engine, requests)
    assert [request.token_ids for request in requests] == right
    assert {request.finish_reason for request in requests} == {"length"}
    for request in requests:
        assert request.speculation.accepted > len(request.token_ids) / 2
    assert engine.free_pages == pages


def test_a_pool_that_holds_the_text_but_not_the_tree_is_refused():
    scheduler = Scheduler(
        max_batch=1,
        pool=PagePool(-(-ROOM // PAGE), PAGE),
        prefill_chunk=8,
        max_model_len=ROOM,
        spare=len(PARENTS),
    )
    with pytest.raises(ValueError, match="9 of a drafted tree, take 13 pages"):
        scheduler.check(asked(0, ROOM))
    scheduler.check(asked(0, ROOM - len(PROMPTS[0]) - len(PARENTS)))


def test_a_layout_without_room_for_the_tree_is_refused():
    drafter, weights = drafting(PROMPTS)
    with pytest.raises(ValueError, match=f"take {ROOM + len(PARENTS)} slots"):
        engine_of(drafter, weights, spare=0)
