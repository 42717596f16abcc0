"""A whole round by the kernels, interpreted, is a round by their twins."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.gpu import aot
from jspec.cache import CacheLayout
from jspec.decode import decode_round, init_state, prefill
from jspec.drafters.draft_model import DraftModel
from jspec.pallas.block_verify import gpu as block
from jspec.pallas.greedy_verify import gpu as greedy
from jspec.pallas.keep_path import gpu as keep
from jspec.pallas.paged_attention import gpu as attention
from jspec.pallas.rejection_verify import gpu as rejection
from jspec.pallas.tree_mask import gpu as mask
from jspec.params import SamplingParams
from jspec.testing import Loop, Scripted, tiny_target
from jspec.verify import Block, Standard

KERNELS = {
    "paged_attention": attention,
    "greedy_verify": greedy,
    "rejection_verify": rejection,
    "block_verify": block,
    "keep_path": keep,
    "tree_mask": mask,
}
PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5] * 11 + [7])
WISHES = (
    SamplingParams(max_tokens=20, temperature=0.0),
    SamplingParams(max_tokens=20, temperature=1.0, seed=3, top_k=40),
)
TREE = Scripted(gamma=2, parents=(0, 0, 1, 2, 2))
DRAWN = DraftModel(gamma=2, draft_sampling="probabilistic")
ROUND = jax.jit(decode_round, static_argnames=("drafter", "verification", "kernels"))
PIECE = jax.jit(prefill, static_argnames=("drafter", "kernels"))


@functools.cache
def target(seed=0, layers=1):
    sizes = {"vocab_size": 128, "head_dim": 64, "num_heads": 2, "num_layers": layers}
    return tiny_target(seed, jnp.bfloat16, **sizes)


def offers():
    """A script of five nodes, of which some are the target's own choices."""
    drawn = np.random.default_rng(0).integers(0, 128, (2, 128, 5), np.int32)
    loop = Loop(target(), DraftModel(gamma=0), target(), **SIZES)
    for row, prompt in enumerate(PROMPTS):
        loop.admit(row, prompt, WISHES[0])
        text = [*prompt, *(int(loop.round([row]).tokens[0, 0]) for _ in range(6))]
        for place in range(len(prompt) - 1, len(text) - 2):
            drawn[row, place, 1], drawn[row, place, 4] = text[place + 1 : place + 3]
    return jnp.asarray(drawn)


SIZES = {"rows": 2, "room": 64, "page_size": 16}
CASES = {
    "chain, drawn": (DRAWN, target, Standard(), WISHES),
    "chain, refused": (DRAWN, lambda: target(1), Standard(), WISHES),
    "chain, by blocks": (DRAWN, lambda: target(1), Block(), WISHES),
    "tree, greedy": (TREE, offers, Standard(), (WISHES[0],) * 2),
}


@pytest.fixture
def called(monkeypatch):
    """Kernels run under the interpreter and leave their names."""
    names = []

    def wrap(name, kernel):
        def run(*arrays, **options):
            names.append(name)
            return kernel(*arrays, interpret=plgpu.InterpretGPUParams(), **options)

        return run

    for name, module in KERNELS.items():
        monkeypatch.setattr(module, name, wrap(name, getattr(module, name)))
    return names


def rounds(name, kernels):
    drafter, weights, verification, wishes = CASES[name]
    loop = Loop(target(), drafter, weights(), verification=verification, **SIZES)
    for row, (prompt, wish) in enumerate(zip(PROMPTS, wishes, strict=True)):
        loop.admit(row, prompt, wish)
    loop.step = functools.partial(ROUND, kernels=kernels)
    return [loop.round() for _ in range(3)]


USED = {
    "chain, drawn": {"paged_attention", "greedy_verify", "rejection_verify"},
    "chain, refused": set(),  # The program of the case before.
    "chain, by blocks": {"paged_attention", "greedy_verify", "block_verify"},
    "tree, greedy": {"paged_attention", "greedy_verify", "keep_path", "tree_mask"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_rounds_by_kernels_emit_what_rounds_by_their_twins_emit(name, called):
    right = rounds(name, "reference")
    assert not called
    ours = rounds(name, "gpu")
    assert set(called) >= USED[name]
    if name in ("chain, drawn", "tree, greedy"):
        assert any(one.accepted.any() for one in right)
    if name != "chain, drawn":
        assert any((one.accepted < one.drafted).any() for one in right)
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_array_equal(a.count, b.count)
        for row, count in enumerate(a.count):
            np.testing.assert_array_equal(a.tokens[row, :count], b.tokens[row, :count])


@pytest.mark.slow
def test_a_piece_of_a_prompt_by_kernels_leaves_what_its_twin_leaves(called):
    loop = Loop(target(layers=2), DRAWN, target(1), **SIZES | {"room": 128})
    loop.admit(0, [9], dataclasses.replace(WISHES[0], max_tokens=100))
    tokens = np.arange(80, dtype=np.int32)[None]
    one, last = np.array([0], np.int32), np.array([77], np.int32)
    given = (loop.target, loop.weights, loop.state, one, tokens, last, one)
    right, ours = (
        PIECE(*given, drafter=DRAWN, kernels=kernels)
        for kernels in ("reference", "gpu")
    )
    assert called
    for name in ("k", "v"):
        a, b = (np.asarray(getattr(s.pages, name)[1]) for s in (ours, right))
        a, b = (np.nan_to_num(x.astype(np.float32)) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=2e-2)
    np.testing.assert_array_equal(ours.rows.length, right.rows.length)


def model_and_weights(name, script):
    """Made anew: a cache would keep what a trace has left.

    Of two layers: what the last one attends to is no part of a piece of a prompt.
    """
    made = target.__wrapped__(layers=2)
    return made, script if CASES[name][0] is TREE else target.__wrapped__(1)


def drafted_round(state, rows, script, *, name):
    """A round of a case by the kernels."""
    drafter, _, verification, _ = CASES[name]
    options = {"verification": verification, "kernels": "gpu"}
    given = (*model_and_weights(name, script), state, rows)
    return decode_round(*given, drafter=drafter, **options)


def read_piece(state, row, tokens, script, *, name):
    """A piece of a prompt by the kernels."""
    given = (*model_and_weights(name, script), state, row, tokens, row, row)
    return prefill(*given, drafter=CASES[name][0], kernels="gpu")


def empty_state(script, *, name):
    layout = CacheLayout(rows=2, room=1024, pages=130)
    model, weights = model_and_weights(name, script)
    return init_state(model, CASES[name][0], weights, layout, jnp.bfloat16)


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain, drawn", "tree, greedy", "a prompt"])
def test_a_round_and_a_piece_of_a_prompt_compile_for_the_gpu_without_spills(name):
    # Pickled functions name their module.
    from tests.pallas import test_round as here

    case = name if name in CASES else "chain, drawn"
    ids = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    script = ids((2, 128, 5))
    state = jax.eval_shape(functools.partial(here.empty_state, name=case), script)
    state = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
    if name in CASES:
        run = functools.partial(here.drafted_round, name=case)
        figures = aot.compile_for(run, state, ids((2,)), script)
    else:
        run = functools.partial(here.read_piece, name=case)
        figures = aot.compile_for(run, state, ids((1,)), ids((1, 512)), script)
    expected = {
        "chain, drawn": {"vocabulary_scan", "dense_judge", "residual_pick"},
        "tree, greedy": {"greedy_walk", "path_move", "ancestor_words"},
        "a prompt": set(),
    }[name]
    names = {kernel.name for kernel in figures.kernels}
    assert names >= {"attend", "merge_splits", *expected}
    assert figures.spills == 0
