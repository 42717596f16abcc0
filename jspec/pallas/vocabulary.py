"""Rows of a vocabulary in chunks: what the kernels that judge drafts have in common.

A row of `V` logits is cut into chunks. `scan` reads every row once and leaves, of each
chunk, the largest logit, the sum of exponentials relative to it, and where it stands;
from these few numbers a row's normaliser, its likeliest token and a draw from it
follow, the draw with a second look at one chunk. Works on NVIDIA GPUs from Hopper on.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from jspec.pallas.lanes import LANES, LAST, find, lane_ids, load_entries
from jspec.pallas.tiles import Tiles
from jspec.rounds import DEAD

__all__ = [
    "NONE",
    "Chunked",
    "Merged",
    "buffers",
    "check_vocabulary",
    "fetch",
    "likeliest",
    "look_into",
    "merge",
    "scaled",
    "scan",
    "stream",
    "wide",
]

NONE = DEAD
"""Where an index may be absent."""


class Chunked(NamedTuple):
    """What a scan leaves of every chunk; entries beyond the last are undefined.

    Attributes:
      top: the largest logit, `inf` where one is not a number.
      best: where `top` stands, the lowest id among equals.
      total: the sum of exponentials, relative to `top`, if it was asked for.
    """

    top: Float[Array, "B N C"]
    best: Int[Array, "B N C"]
    total: Float[Array, "B N C"] | None = None


class Merged(NamedTuple):
    """In a kernel: a row's chunks, and what they come to.

    Attributes:
      tops: of the chunks.
      masses: of the chunks, relative to `top`.
      top: the largest logit; infinite in a row that has no law.
      mass: the sum of `masses`.
      best: the likeliest token, the lowest id among equals.
    """

    tops: Array
    masses: Array
    top: Array
    mass: Array
    best: Array


def check_vocabulary(kernel: str, *rows: Array) -> None:
    """Refuses what the copy engine cannot cut into whole lanes."""
    for a in rows:
        if a.shape[-1] % LANES:
            raise ValueError(
                f"{kernel} on a GPU needs a vocabulary of whole {LANES} ids, not "
                f"{a.shape[-1]}: pad the logits with -inf"
            )
        if a.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
            raise ValueError(
                f"{kernel} on a GPU reads bfloat16, float16 or float32, not {a.dtype}"
            )


def wide(a: Float[Array, "*S V"]) -> Float[Array, "R G lanes"]:
    """The rows as the copy engine sees them."""
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1] // LANES, LANES)


def scaled(logits: Array, temperature: Array) -> Array:
    """Logits over the temperature; as they are where it is 0. No number becomes inf."""
    x = logits.astype(jnp.float32) * jnp.where(temperature > 0, 1 / temperature, 1)
    return jnp.where(x != x, jnp.inf, x)


def scan(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    dropped: Int[Array, "B N"],
    *,
    tiles: Tiles,
    summed: bool = True,
    interpret: Any = None,
) -> Chunked:
    """The chunks of every row, in one read of the logits.

    Args:
      logits: in any of the three float dtypes.
      temperature: 0 leaves the logits as they are.
      dropped: an id that counts as impossible in its row, or -1.
      tiles: the cut.
      summed: whether the sums of exponentials are wanted.
      interpret: how a CPU runs the kernel; `None`: a GPU does.
    """
    b, n, v = logits.shape
    chunks, share = tiles.chunks(v), tiles.share(b * n, v)
    stored = jax.ShapeDtypeStruct((b, n, tiles.stored(v)), jnp.float32)

    def vocabulary_scan(x_ref, temp_ref, drop_ref, top_ref, best_ref, *refs):
        *total_ref, x, at = refs
        row, block = lax.axis_index("row"), lax.axis_index("block")
        r, node = lax.div(row, n), lax.rem(row, n)
        temp, drop = temp_ref[r], drop_ref[r, node]
        ids = tiles.ids()

        def visit(c: Array, slot: Array) -> None:
            here = ids + c * tiles.chunk
            a = plgpu.load(x.at[slot], layout=tiles.layout)
            a = scaled(a, temp)
            a = jnp.where((here < v) & (here != drop), a, -jnp.inf)
            top = jnp.max(a)
            top_ref[r, node, c] = top
            for ref in total_ref:
                mass = jnp.exp(a - jnp.where(top > -jnp.inf, top, 0.0))
                ref[r, node, c] = jnp.sum(mass)
            best_ref[r, node, c] = jnp.min(jnp.where(a == top, here, LAST))

        stream([(x_ref, row, x, at)], visit, block, share, chunks, tiles)

    return Chunked(
        *plgpu.kernel(
            vocabulary_scan,
            out_type=(stored, stored.update(dtype=jnp.int32), stored)[: 2 + summed],
            grid=(b * n, pl.cdiv(chunks, share)),
            grid_names=("row", "block"),
            scratch_types=[*buffers(logits.dtype, tiles)],
            interpret=interpret,
        )(wide(logits), temperature, dropped)
    )


def buffers(dtype: Any, tiles: Tiles, *, stages: int | None = None) -> tuple[Any, Any]:
    """Shared memory for chunks of one array on their way, and the barriers of each."""
    stages = stages or tiles.stages
    return (
        plgpu.SMEM((stages, *tiles.shape), dtype),
        plgpu.Barrier(num_barriers=stages),
    )


def fetch(source: tuple[Any, Any, Any, Any], c: Any, slot: Any, tiles: Tiles) -> None:
    """In a kernel: starts the copy of chunk `c`. Beyond the row's end come zeros."""
    from_ref, row, buffer, arrived = source
    rows = tiles.chunk // LANES
    plgpu.copy_gmem_to_smem(
        from_ref.at[row, pl.ds(c * rows, rows)], buffer.at[slot], arrived.at[slot]
    )


def stream(
    sources: list[tuple[Any, Any, Any, Any]],
    visit: Callable[[Array, Array], None],
    block: Array,
    share: int,
    chunks: int,
    tiles: Tiles,
) -> None:
    """In a kernel: visits this block's chunks while the next ones are on their way."""
    todo = jnp.minimum(share, chunks - block * share)

    def start(j: Any, slot: Any) -> None:
        for source in sources:
            fetch(source, block * share + j, slot, tiles)

    for j in range(min(tiles.stages, share)):
        pl.when(j < todo)(lambda j=j: start(j, j))

    def body(j: Array, nothing: Array) -> Array:
        slot = lax.rem(j, tiles.stages)
        for *_, arrived in sources:
            plgpu.barrier_wait(arrived.at[slot])
        visit(block * share + j, slot)
        # All threads have read the slot before the copy engine fills it anew.
        plgpu.commit_smem()
        pl.when(j + tiles.stages < todo)(lambda: start(j + tiles.stages, slot))
        return nothing

    lax.fori_loop(0, todo, body, 0)


def likeliest(
    refs: Chunked, r: Array, node: Array, chunks: int
) -> tuple[Array, Array, Array]:
    """In a kernel: the largest logits of a row's chunks, the row's, and where it is."""
    tops = load_entries(refs.top.at[r, node], chunks, -jnp.inf)
    best = load_entries(refs.best.at[r, node], chunks, LAST)
    top = jnp.max(tops)
    best = jnp.min(jnp.where(tops == top, best, LAST))
    return tops, top, best


def merge(refs: Chunked, r: Array, node: Array, chunks: int) -> Merged:
    """In a kernel: what the chunks of a row come to."""
    assert refs.total is not None
    tops, top, best = likeliest(refs, r, node, chunks)
    masses = load_entries(refs.total.at[r, node], chunks, 0.0) * jnp.exp(
        tops - jnp.where(top > -jnp.inf, top, 0.0)
    )
    return Merged(tops, masses, top, jnp.sum(masses), best)


def look_into(
    masses: Array,
    uniform: Array,
    sources: list[tuple[Any, Any, Any, Any]],
    weigh: Callable[..., Array],
    tiles: Tiles,
) -> Array:
    """In a kernel: draws a chunk by its mass, then an id by a second look at it.

    Args:
      masses: of a row's chunks.
      uniform: in `[0, 1)`.
      sources: what to fetch of the chunk.
      weigh: `weigh(ids, *chunks)`: weights in proportion to the chunk's share of its
        mass, 0 beyond the vocabulary.
      tiles: the cut.
    """
    target = uniform * jnp.sum(masses)
    c, before, mass = find(masses, lane_ids(masses.shape), target)
    for source in sources:
        fetch(source, c, 0, tiles)
    for *_, arrived in sources:
        plgpu.barrier_wait(arrived.at[0])
    ids = tiles.ids()
    here = ids + c * tiles.chunk
    weights = weigh(
        here,
        *(plgpu.load(a.at[0], layout=tiles.layout) for _, _, a, _ in sources),
    )
    share = jnp.clip((target - before) / jnp.where(mass > 0, mass, 1.0), 0.0, 1.0)
    place, _, _ = find(weights, ids, share * jnp.sum(weights))
    return c * tiles.chunk + place
