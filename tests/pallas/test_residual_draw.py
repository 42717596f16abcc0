import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.residual_draw import gpu, residual_draw
from jspec.pallas.tiles import Tiles

P = jnp.array([0.5, 0.3, 0.2, 0.0])
Q = jnp.array([0.2, 0.6, 0.1, 0.1])
ALMOST = jnp.float32(1) - jnp.float32(2) ** -24
SMALL = Tiles(chunk=256, stages=2, programs=8)


def uniforms(seed, rows):
    return jax.random.uniform(jax.random.key(seed), (rows,))


def frequencies(drawn, ids=4):
    return jnp.bincount(drawn, length=ids) / len(drawn)


@pytest.mark.parametrize("case", ["dense", "certain", "none", "logits"])
def test_draws_follow_what_is_left(case):
    b = 200_000
    p, q = jnp.tile(P, (b, 1)), jnp.tile(Q, (b, 1))
    options, left = {
        "dense": ({"q": q}, P - Q),
        "certain": ({"token": jnp.full((b,), 1, jnp.int32)}, P.at[1].set(0)),
        "none": ({"token": jnp.full((b,), -1, jnp.int32)}, P),
        "logits": (
            {"lse": jnp.full((b,), 3.0), "temperature": jnp.full((b,), 2.0), "q": q},
            P - Q,
        ),
    }[case]
    if case == "logits":
        p = (jnp.log(p) + 3) * 2
    left = jnp.maximum(left, 0)
    drawn = residual_draw(p, uniforms(0, b), **options)
    np.testing.assert_allclose(frequencies(drawn), left / left.sum(), atol=5e-3)


def test_where_nothing_is_left_the_law_itself_is_drawn_from():
    b = 200_000
    p = jnp.tile(P, (b, 1))
    drawn = residual_draw(p, uniforms(1, b), q=p)
    np.testing.assert_allclose(frequencies(drawn), P, atol=5e-3)


@pytest.mark.parametrize("u", [0.0, ALMOST])
def test_a_token_without_weight_is_never_drawn(interpreted, u):
    p = jnp.zeros((2, 640)).at[0, 300].set(0.1).at[1, jnp.array([7, 400])].set(0.5)
    u = jnp.full((2,), u, jnp.float32)
    expected = [300, 400 if u[0] else 7]
    assert residual_draw(p, u).tolist() == expected
    ours = interpreted(gpu.residual_draw, p, u, tiles=SMALL)
    assert ours.tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ["dense", "certain", "law"],
)
def test_the_kernel_agrees_with_its_twin_token_by_token(interpreted, case):
    b, v = 4, 640
    logits = 3 * jax.random.normal(jax.random.key(2), (b, v), jnp.bfloat16)
    q = jax.nn.softmax(2 * jax.random.normal(jax.random.key(3), (b, v)), axis=-1)
    hot = jnp.array([1.0, 0.5, 1.0, 2.0])
    lse = jax.nn.logsumexp(logits.astype(jnp.float32) / hot[:, None], axis=-1)
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    p, options = {
        "dense": (logits, {"q": q, "lse": lse, "temperature": hot}),
        "certain": (
            logits,
            {"token": best.at[1].set(-1), "lse": lse, "temperature": hot},
        ),
        "law": (q.at[:2, 600].add(0.1), {"q": q}),
    }[case]
    u = uniforms(4, b)
    right = residual_draw(p, u, **options)
    ours = interpreted(gpu.residual_draw, p, u, tiles=SMALL, **options)
    np.testing.assert_array_equal(ours, right)
    if case == "law":
        assert right[:2].tolist() == [600, 600]
