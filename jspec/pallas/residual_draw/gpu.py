"""A draw from what two laws leave, on an NVIDIA GPU."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from jspec.pallas.lanes import either, lane_ids, load_entries
from jspec.pallas.tiles import Tiles
from jspec.pallas.vocabulary import (
    NONE,
    buffers,
    check_vocabulary,
    look_into,
    scaled,
    stream,
    wide,
)

__all__ = ["Residual", "draw_residual", "residual_draw", "sum_residual"]


class Residual(NamedTuple):
    """Which rows' residuals are meant: `max(0, weight * p - q)`, `M` of them a row.

    Attributes:
      node: the row of `p`; -1: not wanted.
      against: with a dense `q`, its row; with none, an id that is impossible; -1:
        nothing is subtracted.
      weight: of `p`.
      lse: of the logits over the temperature; with a law, unused.
    """

    node: Int[Array, "B M"]
    against: Int[Array, "B M"]
    weight: Float[Array, "B M"]
    lse: Float[Array, "B M"]


def residual_draw(
    p: Float[Array, "B V"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B V"] | None = None,
    token: Int[Array, " B"] | None = None,
    lse: Float[Array, " B"] | None = None,
    temperature: Float[Array, " B"] | None = None,
    tiles: Tiles | None = None,
    interpret: Any = None,
) -> Int[Array, " B"]:
    """The twin's meaning, in two kernels: sums of chunks, then a look into one.

    Floor: `p` and `q` once. Moved: the same, one chunk of 2048 ids of each again, and
    16 bytes a chunk: 1.02 of it at 128256 ids. Kernel and twin add in another order:
    where a uniform falls on a boundary to the last bits they may draw neighbours.
    """
    b = len(p)
    tiles = tiles or Tiles()
    ones = jnp.ones((b,), jnp.float32)
    start = jnp.zeros((b, 1), jnp.int32)
    absent = jnp.full((b, 1), NONE, jnp.int32)
    certain = absent if token is None else token[:, None]
    residual = Residual(
        node=start,
        against=certain if q is None else start,
        weight=ones[:, None],
        lse=ones[:, None] if lse is None else lse[:, None],
    )
    options = {"from_law": lse is None, "interpret": interpret}
    laws = (p[:, None], None if q is None else q[:, None])
    hot = ones if temperature is None else temperature
    sums = sum_residual(*laws, hot, residual, tiles=tiles, **options)
    return draw_residual(
        *laws,
        hot,
        residual,
        sums,
        start[:, 0],
        uniform,
        absent,
        tiles=tiles,
        **options,
    )


def remains(
    p: Array, q: Array | None, ids: Array, hot: Array, of: Any, v: int, from_law: bool
) -> tuple[Array, Array]:
    """In a kernel: the law of a chunk, and what is left of it; nothing beyond `v`."""
    _, against, weight, lse = of
    law = p.astype(jnp.float32) if from_law else jnp.exp(scaled(p, hot) - lse)
    law = jnp.where(ids < v, law, 0.0)
    left = law * weight
    if q is None:
        return law, jnp.where(ids == against, 0.0, left)
    q = q.astype(jnp.float32) * jnp.where(against >= 0, 1.0, 0.0)
    return law, jnp.where(ids < v, jnp.maximum(left - q, 0.0), 0.0)


def sum_residual(
    p: Float[Array, "B N V"],
    q: Float[Array, "B N V"] | None,
    temperature: Float[Array, " B"],
    residual: Residual,
    *,
    tiles: Tiles,
    from_law: bool = False,
    interpret: Any = None,
) -> tuple[Float[Array, "B M C"], Float[Array, "B M C"]]:
    """Of every chunk: the sum of what is left, and of the law itself."""
    check_vocabulary("residual_draw", p, *([] if q is None else [q]))
    b, n, v = p.shape
    m = residual.node.shape[1]
    chunks, share = tiles.chunks(v), tiles.share(b * m, v)
    stored = jax.ShapeDtypeStruct((b, m, tiles.stored(v)), jnp.float32)
    arrays = [wide(p)] if q is None else [wide(p), wide(q)]

    def residual_sum(*refs):
        (hot_ref, *residual_refs), refs = refs[:5], refs[5:]
        laws, refs = refs[: len(arrays)], refs[len(arrays) :]
        left_ref, law_ref, *scratch = refs
        each, block = lax.axis_index("each"), lax.axis_index("block")
        r, entry = lax.div(each, m), lax.rem(each, m)
        of = tuple(ref[r, entry] for ref in residual_refs)
        node, against, *_ = of
        rows = (r * n + node, r * n + jnp.maximum(against, 0))
        sources = [
            (law, row, scratch[2 * i], scratch[2 * i + 1])
            for i, (law, row) in enumerate(zip(laws, rows, strict=False))
        ]
        ids, hot = tiles.ids(), hot_ref[r]

        def visit(c: Array, slot: Array) -> None:
            p, *q = (
                plgpu.load(buffer.at[slot], layout=tiles.layout)
                for _, _, buffer, _ in sources
            )
            here = ids + c * tiles.chunk
            law, left = remains(p, q[0] if q else None, here, hot, of, v, from_law)
            left_ref[r, entry, c] = jnp.sum(left)
            law_ref[r, entry, c] = jnp.sum(law)

        @pl.when(node >= 0)
        def _():
            stream(sources, visit, block, share, chunks, tiles)

    return plgpu.kernel(
        residual_sum,
        out_type=(stored, stored),
        grid=(b * m, pl.cdiv(chunks, share)),
        grid_names=("each", "block"),
        scratch_types=[part for a in arrays for part in buffers(a.dtype, tiles)],
        interpret=interpret,
    )(temperature, *residual, *arrays)


def draw_residual(
    p: Float[Array, "B N V"],
    q: Float[Array, "B N V"] | None,
    temperature: Float[Array, " B"],
    residual: Residual,
    sums: tuple[Float[Array, "B M C"], Float[Array, "B M C"]],
    entry: Int[Array, " B"],
    uniform: Float[Array, " B"],
    forced: Int[Array, "B M"],
    *,
    tiles: Tiles,
    from_law: bool = False,
    interpret: Any = None,
) -> Int[Array, " B"]:
    """One token a row, of the residual `entry`; where `forced` is an id, that one."""
    b, n, v = p.shape
    chunks = tiles.chunks(v)
    arrays = [wide(p)] if q is None else [wide(p), wide(q)]

    def residual_pick(*refs):
        (hot_ref, *residual_refs), refs = refs[:5], refs[5:]
        (left_ref, law_ref, entry_ref), refs = refs[:3], refs[3:]
        (uniform_ref, forced_ref), refs = refs[:2], refs[2:]
        laws, refs = refs[: len(arrays)], refs[len(arrays) :]
        drawn_ref, *scratch = refs
        r = lax.axis_index("row")
        entry = entry_ref[r]
        of = tuple(ref[r, entry] for ref in residual_refs)
        node, against, *_ = of
        rows = (r * n + jnp.maximum(node, 0), r * n + jnp.maximum(against, 0))
        left = load_entries(left_ref.at[r, entry], chunks, 0.0)
        bare = ~(jnp.sum(left) > 0)
        plain = load_entries(law_ref.at[r, entry], chunks, 0.0)

        def weigh(ids: Array, p: Array, *q: Array) -> Array:
            against = q[0] if q else None
            law, left = remains(p, against, ids, hot_ref[r], of, v, from_law)
            return either(bare, ids, law, left)

        sources = [
            (law, row, scratch[2 * i], scratch[2 * i + 1])
            for i, (law, row) in enumerate(zip(laws, rows, strict=False))
        ]
        sums = either(bare, lane_ids(left.shape), plain, left)
        drawn = look_into(sums, uniform_ref[r], sources, weigh, tiles)
        forced = forced_ref[r, entry]
        drawn_ref[r] = jnp.where(forced >= 0, forced, drawn)

    return plgpu.kernel(
        residual_pick,
        out_type=jax.ShapeDtypeStruct((b,), jnp.int32),
        grid=(b,),
        grid_names=("row",),
        scratch_types=[
            part for a in arrays for part in buffers(a.dtype, tiles, stages=1)
        ],
        interpret=interpret,
    )(temperature, *residual, *sums, entry, uniform, forced, *arrays)
