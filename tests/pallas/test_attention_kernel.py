import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import aot
from jspec.pallas.paged_attention import gpu, paged_attention
from jspec.pallas.paged_attention.tiles import Tiles, tiles_for
from jspec.rounds import DEAD
from tests.pallas import figures
from tests.pallas.paged import TREE, kernel_options, kernel_scene

CHAIN = [DEAD, *range(16)]
SHAPES = {
    "one, tree": {"parents": [DEAD]},
    "tree": {"parents": TREE},
    "tree, window": {"parents": TREE, "window": 70},
    "tree, narrow window": {"parents": TREE, "window": 3},
    "chain, two warpgroups": {"parents": CHAIN[:9], "heads": 16, "lengths": [200]},
    "chain, cluster": {"parents": CHAIN, "heads": 16, "lengths": [80]},
    "chain of a prompt": {"parents": [DEAD, *range(69)], "lengths": [20, 3]},
    "tree, heads of 256": {"parents": TREE, "d": 256, "lengths": [130]},
    "tree, big pages": {"parents": TREE, "size": 128, "lengths": [130]},
    "chain, float32": {"parents": CHAIN[:3], "d": 128, "dtype": jnp.float32},
    "tree, float32 of 64": {"parents": TREE, "lengths": [70], "dtype": jnp.float32},
}


TILES = {
    "chain, two warpgroups": {"warpgroups": 2},
    "chain, cluster": {"cluster": 2},
    "tree, heads of 256": {"split": 64},
}
SLOW = {"one, tree", "tree", "chain, float32", *TILES} - {"tree, heads of 256"}


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
    tiles = Tiles(**{"split": 128, "stages": 1, **TILES.get(name, {})})
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


@pytest.mark.parametrize(
    ("dtype", "ways"),
    [
        (jnp.bfloat16, ((1, 1), (2, 4))),
        pytest.param(jnp.float32, ((1, 1), (2, 1), (1, 4)), marks=pytest.mark.slow),
    ],
)
def test_blocks_that_share_their_work_otherwise_leave_the_same_bits(
    dtype, ways, interpreted
):
    _, inputs, _ = kernel_scene(
        parents=CHAIN[:9], heads=16, lengths=(330,), room=384, dtype=dtype
    )
    options = kernel_options(None, window=320)
    right = jax.jit(functools.partial(paged_attention, **options))(*inputs)
    found = []
    for cluster, gather in ways:
        tiles = Tiles(split=64, stages=1, cluster=cluster, gather=gather)
        ours = interpreted(gpu.paged_attention, *inputs, tiles=tiles, **options)
        found.append(np.asarray(ours, np.float32))
    for ours in found[1:]:
        np.testing.assert_array_equal(ours, found[0])
    exact = dtype == jnp.float32
    right = np.asarray(right, np.float32)
    np.testing.assert_allclose(found[0], right, atol=2e-6 if exact else 8e-3)


@pytest.mark.aot
@pytest.mark.slow
def test_blocks_of_a_cluster_bring_all_keys_and_values_to_each_other():
    run, shapes = figures.CASES["attention, tree of 60"]
    attend, _ = aot.compile_for(run, *shapes).kernels
    copies = re.findall(r"cp\.async\.bulk\.tensor\S*global\.mbarrier\S*", attend.ptx)
    alone = [copy for copy in copies if "multicast::cluster" not in copy]
    assert len(alone) == len("q") and len(copies) > len(alone)
    assert ".reqnctapercluster 2, 1, 1" in attend.ptx
    assert "mbarrier.arrive.shared::cluster" in attend.ptx


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


def test_stretches_follow_the_room_and_nothing_that_a_round_brings():
    for room, split in [(256, 512), (8192, 512), (32768, 2048)]:
        for rows, pairs in itertools.product((1, 4, 64, 500), (1, 8, 512)):
            assert rule(rows=rows, room=room, pairs=pairs).split == split


def rule(*, width=128, room=4096, size=16, pairs=64, dtype=jnp.bfloat16, **asked):
    return tiles_for(
        width=width, room=room, size=size, pairs=pairs, dtype=dtype, **asked
    )


@pytest.mark.parametrize(
    ("rows", "asked", "warpgroups", "cluster", "readings"),
    [
        (64, {}, 1, 1, 1),
        (128, {}, 2, 1, 1),
        (192, {}, 2, 2, 1),
        (256, {}, 2, 2, 1),
        (512, {}, 2, 4, 1),
        (1024, {}, 2, 4, 2),
        (1024, {"size": 32}, 2, 8, 1),
        (2048, {"size": 32}, 2, 8, 2),
        (256, {"width": 64}, 2, 2, 1),
        (512, {"width": 64}, 2, 2, 2),
        (256, {"width": 64, "size": 8}, 2, 1, 2),
        (64, {"width": 256}, 1, 1, 1),
        (256, {"width": 256}, 1, 4, 1),
        (512, {"width": 256}, 1, 8, 1),
        (256, {"dtype": jnp.float32}, 1, 4, 1),
    ],
)
def test_keys_are_read_as_often_as_documented(
    rows, asked, warpgroups, cluster, readings
):
    tiles = rule(rows=rows, **asked)
    assert (tiles.warpgroups, tiles.cluster) == (warpgroups, cluster)
    assert -(-rows // (64 * warpgroups * cluster)) == readings


@pytest.mark.parametrize(
    ("rows", "asked", "gather"),
    [
        (64, {}, 1),
        (72, {}, 4),
        (256, {}, 4),
        (256, {"pairs": 8}, 1),
        (256, {"pairs": 8, "room": 32768}, 1),
        (512, {"pairs": 16}, 4),
        (256, {"dtype": jnp.float32}, 1),
    ],
)
def test_blocks_add_up_stretches_where_these_leave_many_bytes_and_blocks_suffice(
    rows, asked, gather
):
    assert rule(rows=rows, **asked).gather == gather
