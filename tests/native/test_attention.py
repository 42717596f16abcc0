import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import native
from jspec.pallas.paged_attention.reference import paged_attention
from jspec.rounds import ancestors_of

pytestmark = pytest.mark.skipif(
    native.load() is not None, reason=str(native.load() or "")
)

SIZE, TABLE = 16, 96
LENGTHS = (0, 5, 255, 700, 1300)


def cache(rng, heads, depth, dtype):
    pages = len(LENGTHS) * TABLE
    shape = (pages, heads, SIZE, depth)
    k, v = (jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2))
    table = rng.permutation(pages).reshape(len(LENGTHS), TABLE)
    return k, v, jnp.asarray(table, jnp.int32), jnp.array(LENGTHS, jnp.int32)


PARENTS = {
    "chain": None,
    "tree": [-1, 0, 0, 1, 1, 2, 5],
    "cut": [-1, 0, -1, 1, 2, 0, 5],
}


@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS)
@pytest.mark.parametrize("window", [None, 3, 600])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(jnp.float32, 2e-6), (jnp.bfloat16, 2e-2)]
)
def test_it_agrees_with_the_reference(parent, window, dtype, bound):
    rng = np.random.default_rng(0)
    k, v, table, length = cache(rng, 3, 64, dtype)
    q = jnp.asarray(rng.normal(size=(len(LENGTHS), 7, 9, 64)), dtype)
    ancestors = None
    if parent is not None:
        ancestors = ancestors_of(jnp.array([parent] * len(LENGTHS), jnp.int32))
    asked = {"ancestors": ancestors, "window": window, "scale": 0.125}
    ours = jax.jit(functools.partial(native.attention, **asked))
    twin = functools.partial(paged_attention, block_pages=16, **asked)
    got = ours(q, k, v, table, length).astype(jnp.float32)
    right = jax.jit(twin)(q, k, v, table, length).astype(jnp.float32)
    np.testing.assert_allclose(got, right, atol=bound)


def test_a_node_ignores_the_nodes_and_rows_beside_it():
    rng = np.random.default_rng(1)
    k, v, table, length = cache(rng, 2, 32, jnp.float32)
    q = jnp.asarray(rng.normal(size=(len(LENGTHS), 40, 4, 32)), jnp.float32)
    ask = jax.jit(
        functools.partial(native.attention, ancestors=None, window=None, scale=0.2)
    )
    whole = ask(q, k, v, table, length)
    for nodes in (1, 2, 13):
        np.testing.assert_array_equal(
            ask(q[:, :nodes], k, v, table, length), whole[:, :nodes]
        )
    alone = ask(q[3:4], k, v, table[3:4], length[3:4])
    np.testing.assert_array_equal(alone, whole[3:4])


def test_a_row_without_pages_gives_zeros_and_nan_stays_its_owners():
    rng = np.random.default_rng(2)
    k, v, table, length = cache(rng, 2, 16, jnp.float32)
    k = k.at[table[1, 0], :, 2].set(jnp.nan)
    v = v.at[table[1, 0], :, 3].set(jnp.nan)
    table = table.at[0].set(k.shape[0])
    q = jnp.ones((len(LENGTHS), 3, 4, 16), jnp.float32)
    out = native.attention(
        q, k, v, table, length, ancestors=None, window=None, scale=0.25
    )
    assert (out[0] == 0).all()
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[2:]).all()


def test_what_stands_beyond_a_nodes_sight_may_be_anything():
    rng = np.random.default_rng(3)
    k, v, table, length = cache(rng, 2, 16, jnp.float32)
    page, slot = table[2, 256 // SIZE], 256 % SIZE
    k, v = (a.at[page, :, slot].set(jnp.nan) for a in (k, v))
    q = jnp.ones((len(LENGTHS), 2, 4, 16), jnp.float32)
    out = native.attention(
        q, k, v, table, length, ancestors=None, window=None, scale=0.25
    )
    assert np.isfinite(out[2, 0]).all()
    assert np.isnan(out[2, 1]).all()
