import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.greedy_verify import greedy_verify
from jspec.pallas.rejection_verify import gpu, rejection_verify
from jspec.pallas.tiles import Tiles
from jspec.rounds import DEAD

SMALL = Tiles(chunk=256, stages=2, programs=8)
P = jnp.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
Q = jnp.array([[1.0, 0.0, 0.0], [0.2, 0.6, 0.2], [0.4, 0.1, 0.5]])

twin = jax.jit(rejection_verify)
run = jax.jit(
    functools.partial(gpu.rejection_verify, tiles=SMALL), static_argnames="interpret"
)


def chains(rows, nodes):
    return jnp.tile(jnp.arange(nodes, dtype=jnp.int32)[None] - 1, (rows, 1))


def noise(seed, rows, nodes):
    coins, last = jax.random.split(jax.random.key(seed))
    return (
        jax.random.uniform(coins, (rows, nodes - 1)),
        jax.random.uniform(last, (rows,)),
    )


def scene(seed, *, rows=4, nodes=4, vocabulary=640):
    logits = 3 * jax.random.normal(
        jax.random.key(seed), (rows, nodes, vocabulary), jnp.bfloat16
    )
    tokens = jnp.roll(jnp.argmax(logits, -1).astype(jnp.int32), 1, axis=1)
    q = jax.random.normal(jax.random.key(seed + 1), logits.shape)
    q = jnp.roll(jax.nn.softmax(q + logits.astype(jnp.float32), -1), 1, axis=1)
    hot = jnp.array([1.0, 0.0, 0.5, 2.0])[:rows]
    coins, uniform = noise(seed + 2, rows, nodes)
    inputs = (logits, hot, tokens, chains(rows, nodes), coins * 0.3, uniform)
    return inputs, q


def test_emitted_tokens_follow_the_target_law():
    b = 200_000
    logits = jnp.broadcast_to(2 * jnp.log(P), (b, 3, 3))
    q = jnp.broadcast_to(Q, (b, 3, 3))
    keys = jax.random.split(jax.random.key(0))
    tokens = jnp.stack(
        [jnp.zeros((b,), jnp.int32)]
        + [
            jax.random.categorical(key, jnp.log(Q[i + 1]), shape=(b,))
            for i, key in enumerate(keys)
        ],
        axis=1,
    ).astype(jnp.int32)
    hot = jnp.full((b,), 2.0)
    for law in (q, None):
        judged = twin(logits, hot, tokens, chains(b, 3), *noise(1, b, 3), q=law)
        accepted, bonus, sound = judged
        first = jnp.where(accepted > 0, tokens[:, 1], bonus)
        second = jnp.where(accepted > 1, tokens[:, 2], bonus)
        found = jnp.bincount(first, length=3) / b
        np.testing.assert_allclose(found, P[0], atol=5e-3)
        reached = accepted > 0
        found = jnp.bincount(jnp.where(reached, second, 3), length=4)[:3]
        np.testing.assert_allclose(found / reached.sum(), P[1], atol=8e-3)
        assert sound.all()


def test_at_temperature_0_chains_are_judged_greedily():
    (logits, _, tokens, parent, coins, uniform), q = scene(3, rows=4, vocabulary=7)
    tokens = tokens.at[:2, 2].set(3)
    cold = jnp.zeros((4,))
    kept, right, _ = greedy_verify(logits, tokens, parent)
    for law in (None, q):
        accepted, bonus, _ = twin(logits, cold, tokens, parent, coins, uniform, q=law)
        np.testing.assert_array_equal(accepted, kept.sum(1) - 1)
        np.testing.assert_array_equal(bonus, right)


@pytest.mark.parametrize("dense", [False, pytest.param(True, marks=pytest.mark.slow)])
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
def test_the_kernel_draws_plainly_where_nothing_was_drafted(interpreted):
    inputs, _ = scene(5, nodes=1, vocabulary=384)
    ours = interpreted(run, *inputs)
    right = twin(*inputs)
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("hot", [0.0, 1.0])
def test_a_broken_row_is_said_to_be_and_leaves_its_neighbours_alone(
    interpreted, dense, hot
):
    (logits, _, tokens, *others), q = scene(6, rows=3, nodes=3, vocabulary=384)
    law = {"q": q} if dense else {}
    others = [jnp.full((3,), hot), tokens.at[1, 1].set(0), *others]
    others[3] = jnp.zeros_like(others[3])
    whole = twin(logits, *others, **law)
    logits = logits.at[0, 1, tokens[0, 2]].set(jnp.nan).at[1, 0].set(-jnp.inf)
    right = twin(logits, *others, **law)
    ours = interpreted(run, logits, *others, **law)
    for accepted, bonus, sound in (ours, right):
        assert accepted.tolist()[:2] == [1, 0]
        assert sound.tolist() == [False, False, True]
        assert ((bonus >= 0) & (bonus < 384)).all()
        assert (accepted[2], bonus[2]) == (whole[0][2], whole[1][2])


@pytest.mark.slow
def test_logits_far_apart_leave_the_residual_its_weight(interpreted):
    logits = jnp.full((1, 2, 384), -jnp.inf).at[0, 0, 5].set(80.0)
    logits = logits.at[0, 0, jnp.array([9, 300])].set(0.0).at[0, 1, 2].set(0)
    one = jnp.ones((1,))
    tokens = jnp.array([[0, 5]], jnp.int32)
    coins = jnp.array([[2.0]])
    inputs = (logits, one, tokens, chains(1, 2), coins, 0.75 * one)
    assert twin(*inputs)[1].tolist() == [300]
    ours = interpreted(run, *inputs)
    assert ours[1].tolist() == [300]
