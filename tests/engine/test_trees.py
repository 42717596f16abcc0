"""Drafted trees through the engine: room for every node, also where texts end."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import decode as steps
from jspec.cache import CacheLayout
from jspec.control import Tree
from jspec.control.base import depth
from jspec.drafters import METHODS
from jspec.engine.buckets import Buckets
from jspec.engine.engine import Engine
from jspec.engine.pages import PagePool
from jspec.engine.request import Request
from jspec.engine.scheduler import Scheduler
from jspec.testing import GREEDY, Scripted, compilations, decode, tiny_target
from tests.serving import quick_compiler

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut(Scripted):
    """A script whose tree can be cut behind its first nodes."""

    tree_nodes: int | None = None

    def propose(self, *args):
        proposal, memory = super().propose(*args)
        return jax.tree.map(lambda a: a[:, : self.tree_nodes], proposal), memory


class Walk:
    """Another size every round."""

    palette = (0, Tree(2, 7), Tree(4, 8), Tree(4, 10))

    def __init__(self):
        self.asked, self.told = 0, []

    def k(self, batch, context=0):
        self.asked += 1
        return self.palette[self.asked * 3 % 4]

    def update(self, accepted, batch, drafted=None):
        self.told.append((max(accepted), drafted))


def engine_of(
    drafter, weights, *, room=ROOM, spare=None, pages=None, rows=2, walk=None
):
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
        buckets=Buckets(
            batch=(rows,),
            prompt=(8,),
            gammas=(drafter.gamma,) if walk is None else walk.palette,
        ),
        max_model_len=room,
        controller=walk,
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


def test_sizes_of_a_palette_take_turns_without_compiling_or_changing_the_text(tmp_path):
    right = [plain(i, ROOM - len(prompt)) for i, prompt in enumerate(PROMPTS)]
    _, weights = drafting(
        [[*prompt, *text] for prompt, text in zip(PROMPTS, right, strict=True)]
    )
    walk = Walk()
    with quick_compiler(tmp_path):
        engine = engine_of(Cut(gamma=4, parents=PARENTS), weights, rows=3, walk=walk)
    requests = [asked(i, len(text)) for i, text in enumerate(right)]
    own = dataclasses.replace(requests[2].params, num_speculative_tokens=1)
    requests[2] = Request(2, PROMPTS[2], own)
    with compilations() as compiled:
        run(engine, requests)
    assert compiled == []
    assert [request.token_ids for request in requests] == right
    counters = engine.counters
    assert set(counters.nodes) == {7, 8, 10}
    assert set(counters.gammas) == {0, 2, 4}
    assert counters.rounds // 2 < counters.switches < counters.rounds
    assert {size for _, size in walk.told} == set(walk.palette)
    assert {size: kept for kept, size in sorted(walk.told, key=lambda one: one[0])} == {
        0: 0,
        Tree(2, 7): 2,
        Tree(4, 8): 3,
        Tree(4, 10): 4,
    }
    assert all(kept <= depth(size) for kept, size in walk.told)


@pytest.mark.parametrize(
    ("drafter", "why"),
    [
        (Scripted(gamma=4, parents=PARENTS), "none of a chosen number of nodes"),
        (Cut(gamma=4), "none of a chosen number of nodes"),
        (Cut(gamma=4, parents=PARENTS[:8]), "10 nodes exceeds tree_nodes, 9"),
    ],
)
def test_trees_that_a_method_does_not_make_are_refused_at_start_up(drafter, why):
    _, weights = drafting(PROMPTS)
    width = len(drafter.parents or PARENTS[:4])
    with pytest.raises(ValueError, match=why):
        engine_of(drafter, weights[..., :width], walk=Walk())
