import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.pallas.paged_attention import gpu, paged_attention
from jspec.pallas.paged_attention.tiles import Tiles, tiles_for
from jspec.rounds import DEAD, ancestors_of

HEADS, KEYS, D = 4, 2, 8
TREE = [DEAD, 0, 0, 1, 2, 2, DEAD, 4]


def scene(seed, lengths, nodes, size, *, room=40, dtype=jnp.float32, heads=HEADS, d=D):
    rng = np.random.default_rng(seed)
    b, each = len(lengths), -(-room // size)
    k = rng.standard_normal((b, room, KEYS, d)).astype(np.float32)
    v = rng.standard_normal((b, room, KEYS, d)).astype(np.float32)
    q = rng.standard_normal((b, nodes, heads, d)).astype(np.float32)
    k, v, q = (np.asarray(jnp.asarray(a, dtype), np.float32) for a in (k, v, q))
    pages = rng.permutation(b * each + 3)[: b * each].reshape(b, each)
    k_pages = np.full((b * each + 3, KEYS, size, d), np.nan, np.float32)
    v_pages = k_pages.copy()
    table = np.full((b, each), b * each + 3, np.int32)
    for row, length in enumerate(lengths):
        for slot in range(length + nodes):
            table[row, slot // size] = page = pages[row, slot // size]
            k_pages[page, :, slot % size] = k[row, slot]
            v_pages[page, :, slot % size] = v[row, slot]
    arrays = [jnp.asarray(a, dtype) for a in (q, k_pages, v_pages)]
    return (q, k, v), (*arrays, jnp.asarray(table), jnp.array(lengths, jnp.int32))


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


CHAIN = [DEAD, *range(16)]
SHAPES = {
    "one, tree": {"parents": [DEAD]},
    "tree": {"parents": TREE},
    "tree, window": {"parents": TREE, "window": 70},
    "tree, narrow window": {"parents": TREE, "window": 3},
    "chain, two warpgroups": {"parents": CHAIN[:9], "heads": 16, "lengths": [200]},
    "chain, four warpgroups": {"parents": CHAIN, "heads": 16, "lengths": [80]},
    "chain of a prompt": {"parents": [DEAD, *range(69)], "lengths": [20, 3]},
    "tree, heads of 256": {"parents": TREE, "d": 256, "lengths": [130]},
    "tree, big pages": {"parents": TREE, "size": 128, "lengths": [130]},
    "chain, float32": {"parents": CHAIN[:3], "d": 128, "dtype": jnp.float32},
    "tree, float32 of 64": {"parents": TREE, "lengths": [70], "dtype": jnp.float32},
}


def kernel_scene(*, parents, lengths=(37, 130), size=16, d=64, **options):
    arrays, inputs = scene(
        4, list(lengths), len(parents), size, room=256, d=d, **options
    )
    parent = jnp.tile(jnp.array(parents, jnp.int32), (len(lengths), 1))
    return arrays, inputs, ancestors_of(parent)


def kernel_options(ancestors, *, d=64, window=None):
    return {
        "ancestors": ancestors,
        "window": window,
        "scale": d**-0.5,
        "block_pages": 1,
    }


WARPGROUPS = {"chain, two warpgroups": 2, "chain, four warpgroups": 4}
SLOW = {"one, tree", "tree", "chain, float32", *WARPGROUPS}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in SHAPES
    ],
)
def test_the_kernel_agrees_with_its_twin_without_a_race(name, interpreted):
    asked = {"dtype": jnp.bfloat16, **SHAPES[name]}
    window, d = asked.pop("window", None), asked.get("d", 64)
    _, inputs, ancestors = kernel_scene(**asked)
    options = kernel_options(None if "chain" in name else ancestors, d=d, window=window)
    tiles = Tiles(
        split=64 if d == 256 else 128, warpgroups=WARPGROUPS.get(name, 1), stages=1
    )
    right = jax.jit(functools.partial(paged_attention, **options))(*inputs)
    ours = interpreted(gpu.paged_attention, *inputs, tiles=tiles, **options)
    assert ours.dtype == right.dtype
    ours, right = (np.asarray(a, np.float32) for a in (ours, right))
    exact = asked["dtype"] == jnp.float32
    np.testing.assert_allclose(ours, right, atol=2e-6 if exact else 8e-3)


def test_a_row_without_pages_and_its_neighbours_nan_are_silent(interpreted):
    _, (q, k, v, table, length), ancestors = kernel_scene(
        parents=TREE, lengths=(70, 0), dtype=jnp.bfloat16
    )
    table = table.at[1].set(k.shape[0])
    options = kernel_options(ancestors)
    right = jax.jit(functools.partial(paged_attention, **options))(
        q[:1], k, v, table[:1], length[:1], ancestors=ancestors[:1]
    )
    ours = interpreted(
        gpu.paged_attention, q, k, v, table, length, tiles=Tiles(split=64), **options
    )
    assert jnp.isfinite(ours).all() and (ours[1] == 0).all()
    np.testing.assert_allclose(
        np.asarray(ours[:1], np.float32), np.asarray(right, np.float32), atol=8e-3
    )


@pytest.mark.slow
def test_the_kernels_bits_depend_neither_on_neighbours_nor_on_the_nodes_after(
    interpreted,
):
    _, (q, k, v, table, length), _ = kernel_scene(
        parents=CHAIN[:6], lengths=(130, 9), dtype=jnp.bfloat16
    )
    options = kernel_options(None) | {"tiles": Tiles(split=64)}
    many = interpreted(gpu.paged_attention, q, k, v, table, length, **options)
    few = interpreted(
        gpu.paged_attention, q[:1, :2], k, v, table[:1], length[:1], **options
    )
    np.testing.assert_array_equal(
        np.asarray(few, np.float32), np.asarray(many[:1, :2], np.float32)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": 8}, "heads of 64 or 128 or 256 numbers in bfloat16, not of 8"),
        ({"d": 256, "dtype": jnp.float32}, "heads of 64 or 128 numbers in float32"),
        ({"size": 4}, "pages of a multiple of 8 tokens"),
        ({"parents": [DEAD] * 65}, "1 to 64 nodes of a tree, not 65"),
    ],
)
def test_the_kernel_refuses_what_it_was_not_written_for(change, message):
    asked = {"parents": [DEAD], "lengths": (3,), "dtype": jnp.bfloat16, **change}
    _, inputs, ancestors = kernel_scene(**asked)
    with pytest.raises(ValueError, match=message):
        paged_attention(*inputs, **kernel_options(ancestors), implementation="gpu")


def test_the_twin_runs_until_a_benchmark_shows_the_kernel_to_be_faster():
    _, inputs, ancestors = kernel_scene(parents=[DEAD], lengths=(3,), d=8)
    by_default = paged_attention(*inputs, **kernel_options(ancestors))
    asked_for = paged_attention(
        *inputs, **kernel_options(ancestors), implementation="reference"
    )
    np.testing.assert_array_equal(by_default, asked_for)
    with pytest.raises(ValueError, match="there are reference, gpu"):
        paged_attention(*inputs, **kernel_options(ancestors), implementation="fast")


def test_stretches_follow_the_room_and_nothing_that_a_round_brings():
    for room, split in [(256, 512), (8192, 512), (32768, 2048)]:
        for rows in (1, 4, 64, 500):
            tiles = tiles_for(rows=rows, width=128, room=room, dtype=jnp.bfloat16)
            assert tiles.split == split


@pytest.mark.parametrize(
    ("rows", "width", "blocks"),
    [
        (64, 128, 1),
        (128, 128, 1),
        (192, 128, 1),
        (256, 128, 2),
        (256, 64, 1),
        (512, 64, 2),
        (512, 128, 3),
        (64, 256, 1),
        (256, 256, 4),
    ],
)
def test_blocks_that_read_the_same_keys_are_as_many_as_documented(rows, width, blocks):
    tiles = tiles_for(rows=rows, width=width, room=4096, dtype=jnp.bfloat16)
    assert -(-rows // (64 * tiles.warpgroups)) == blocks
