import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.paged_attention import paged_attention
from jspec.rounds import DEAD, ancestors_of
from tests.pallas.paged import HEADS, TREE, D, kernel_options, kernel_scene, scene


def dense(q, k, v, lengths, ancestors, window):
    out = np.zeros_like(q)
    for row, length in enumerate(lengths):
        depth = ancestors[row].sum(-1) - 1
        for n in range(q.shape[1]):
            family = [m for m in range(q.shape[1]) if ancestors[row][n][m]]
            seen = [(s, s) for s in range(length)]
            seen += [(length + m, length + depth[m]) for m in family]
            here = length + depth[n]
            slots = [s for s, at in seen if window is None or here - at < window]
            for h in range(HEADS):
                keys, values = k[row, slots, h // 2], v[row, slots, h // 2]
                scores = np.exp(keys @ q[row, n, h] * D**-0.5)
                out[row, n, h] = scores / scores.sum() @ values
    return out


def attend(inputs, **options):
    run = jax.jit(paged_attention, static_argnames=("window", "scale", "block_pages"))
    return run(*inputs, scale=D**-0.5, **options)


def blocks(size):
    return {1: 8, 4: 2, 16: 1}[size]


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("shape", ["one", "chain", "tree"])
def test_pages_are_attended_as_a_dense_mask_says(size, window, shape):
    parents = {"one": [DEAD], "chain": [DEAD, 0, 1, 2, 3], "tree": TREE}[shape]
    lengths, nodes = [0, 3, 15, 16, 27], len(parents)
    parent = jnp.tile(jnp.array(parents, jnp.int32), (5, 1))
    ancestors = ancestors_of(parent)
    room = 48 if size == 16 else 40
    arrays, inputs = scene(size, lengths, nodes, size, room=room)
    right = dense(*arrays, lengths, np.asarray(ancestors), window)
    ours = attend(
        inputs,
        ancestors=ancestors if shape == "tree" else None,
        window=window,
        block_pages=blocks(size),
    )
    np.testing.assert_allclose(ours, right, atol=2e-6)
    if shape == "chain":
        as_tree = attend(
            inputs, ancestors=ancestors, window=window, block_pages=blocks(size)
        )
        np.testing.assert_allclose(ours, as_tree, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_rows_result_is_bit_identical_whatever_its_neighbours(dtype):
    lengths = [5, 30, 1]
    _, (q, k, v, table, length) = scene(0, lengths, 3, 4, dtype=dtype)
    options = {"ancestors": None, "window": None, "block_pages": 2}
    together = attend((q, k, v, table, length), **options)
    assert together.dtype == dtype
    for order in ([0, 2, 1], [2, 0, 0], [0, 0, 0]):
        at = jnp.array(order)
        some = attend((q[at], k, v, table[at], length[at]), **options)
        for place, row in enumerate(order):
            np.testing.assert_array_equal(some[place], together[row])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_nodes_result_does_not_depend_on_the_nodes_after_it(dtype):
    _, (q, k, v, table, length) = scene(1, [5, 30, 0], 6, 4, dtype=dtype)
    options = {"ancestors": None, "window": None, "block_pages": 2}
    many = attend((q, k, v, table, length), **options)
    for nodes in (1, 2, 5):
        few = attend((q[:, :nodes], k, v, table, length), **options)
        if dtype == jnp.bfloat16:
            np.testing.assert_array_equal(few, many[:, :nodes])
        else:
            np.testing.assert_allclose(few, many[:, :nodes], atol=1e-6)


def test_a_slot_without_a_page_is_not_read():
    arrays, (q, k, v, table, length) = scene(2, [7], 3, 4)
    assert jnp.isnan(k[-1]).all() or jnp.isnan(k).any()
    k, v = k.at[-1].set(jnp.nan), v.at[-1].set(jnp.nan)
    last = table.shape[1]
    table = jnp.where(jnp.arange(last)[None] < 2, table, k.shape[0])
    options = {"ancestors": None, "window": None, "block_pages": 2}
    ours = attend((q, k, v, table, length), **options)
    right = dense(*arrays, [7], np.tril(np.ones((1, 3, 3), bool)), None)
    np.testing.assert_allclose(ours[:, 0], right[:, 0], atol=2e-6)


def test_a_table_that_is_not_whole_blocks_is_refused():
    _, inputs = scene(3, [7], 1, 4)
    with pytest.raises(ValueError, match="not whole blocks"):
        attend(inputs, ancestors=None, window=None, block_pages=3)


def test_the_twin_runs_until_a_benchmark_shows_the_kernel_to_be_faster():
    _, inputs, ancestors = kernel_scene(parents=[DEAD], lengths=(3,), d=8)
    by_default = paged_attention(*inputs, **kernel_options(ancestors))
    asked_for = paged_attention(
        *inputs, **kernel_options(ancestors), implementation="reference"
    )
    np.testing.assert_array_equal(by_default, asked_for)
    with pytest.raises(ValueError, match="there are reference, gpu"):
        paged_attention(*inputs, **kernel_options(ancestors), implementation="fast")
