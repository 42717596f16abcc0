import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.block_verify import block_verify, gpu
from jspec.pallas.rejection_verify import rejection_verify
from jspec.rounds import DEAD
from tests.pallas.test_rejection_verify import SMALL, P, Q, chains, noise, scene

twin = jax.jit(block_verify)
run = jax.jit(
    functools.partial(gpu.block_verify, tiles=SMALL), static_argnames="interpret"
)


def drafts(seed, laws, rows):
    keys = jax.random.split(jax.random.key(seed), len(laws))
    drawn = [
        jax.random.categorical(key, jnp.log(law), shape=(rows,))
        for key, law in zip(keys, laws, strict=True)
    ]
    return jnp.stack([jnp.zeros((rows,), jnp.int32), *drawn], 1).astype(jnp.int32)


def test_two_drafts_of_the_papers_example_keep_eleven_ninths():
    b = 200_000
    p, q = jnp.array([1 / 3, 2 / 3]), jnp.array([2 / 3, 1 / 3])
    logits = jnp.broadcast_to(jnp.log(p), (b, 3, 2))
    laws = jnp.broadcast_to(q, (b, 3, 2))
    tokens = drafts(0, [q, q], b)
    inputs = (logits, jnp.ones((b,)), tokens, chains(b, 3), *noise(1, b, 3))
    for judge, mean in ((twin, 11 / 9), (jax.jit(rejection_verify), 10 / 9)):
        accepted, _, _ = judge(*inputs, q=laws)
        assert abs(accepted.mean() - mean) < 5e-3


@pytest.mark.parametrize("certain", [pytest.param(False, marks=pytest.mark.slow), True])
def test_emitted_tokens_follow_the_target_law(certain):
    b = 200_000
    logits = jnp.broadcast_to(jnp.log(P), (b, 3, 3))
    tokens = drafts(2, [Q[1], Q[2]], b)
    accepted, bonus, sound = twin(
        logits,
        jnp.ones((b,)),
        tokens,
        chains(b, 3),
        *noise(3, b, 3),
        q=None if certain else jnp.broadcast_to(Q, (b, 3, 3)),
    )
    first = jnp.where(accepted > 0, tokens[:, 1], bonus)
    second = jnp.where(accepted > 1, tokens[:, 2], bonus)
    found = jnp.bincount(first, length=3) / b
    np.testing.assert_allclose(found, P[0], atol=5e-3)
    two = jnp.where(accepted > 0, first * 3 + second, 9)
    kept = jnp.bincount(two, length=10)[:9].reshape(3, 3)
    open_ended = jnp.bincount(jnp.where(accepted > 0, 3, first), length=4)[:3]
    pairs = (kept + open_ended[:, None] * P[1][None]) / b
    np.testing.assert_allclose(pairs, P[0][:, None] * P[1][None], atol=5e-3)
    assert sound.all()


@pytest.mark.parametrize("dense", [pytest.param(False, marks=pytest.mark.slow), True])
# Dense is the one test of draft laws in kernels that every run makes.
def test_the_kernel_agrees_with_its_twin_token_by_token(interpreted, dense):
    inputs, q = scene(4)
    inputs = list(inputs)
    inputs[3] = inputs[3].at[3, 2].set(DEAD)
    inputs[4] = inputs[4].at[0, 1].set(0.999)
    law = {"q": q} if dense else {}
    right = twin(*inputs, **law)
    for a, b in zip(interpreted(run, *inputs, **law), right, strict=True):
        np.testing.assert_array_equal(a, b)
    assert right[0][1] == 3 and right[0][3] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("dense", [False, True])
def test_a_broken_row_is_said_to_be_and_leaves_its_neighbours_alone(interpreted, dense):
    (logits, hot, tokens, *others), q = scene(6, rows=3, nodes=3, vocabulary=384)
    others = [hot, tokens.at[1, 1].set(0), *others]
    law = {"q": q} if dense else {}
    whole = twin(logits, *others, **law)
    logits = logits.at[0, 0, tokens[0, 1]].set(jnp.nan).at[1, 0].set(-jnp.inf)
    right = twin(logits, *others, **law)
    ours = interpreted(run, logits, *others, **law)
    for accepted, bonus, sound in (ours, right):
        assert accepted.tolist()[:2] == [0, 0]
        assert sound.tolist() == [False, False, True]
        assert ((bonus >= 0) & (bonus < 384)).all()
        assert (accepted[2], bonus[2]) == (whole[0][2], whole[1][2])


def test_a_draft_that_is_all_but_certain_divides_by_nothing(interpreted):
    logits = jnp.zeros((2, 3, 384)).at[:, :, 5].set(80.0)
    tokens = jnp.array([[0, 5, 5], [0, 7, 5]], jnp.int32)
    inputs = (logits, jnp.ones((2,)), tokens, chains(2, 3), *noise(7, 2, 3))
    for judge in (twin, functools.partial(interpreted, run)):
        accepted, bonus, sound = judge(*inputs)
        assert accepted.tolist() == [2, 0] and bonus.tolist() == [5, 5]
        assert sound.all()
