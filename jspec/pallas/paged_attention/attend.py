"""The kernel: softmax sums of every stretch of every row's tokens."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from jspec.pallas.paged_attention.products import (
    add_product,
    pieces_of,
    product,
    split,
)
from jspec.pallas.paged_attention.reference import LOWEST
from jspec.pallas.paged_attention.sight import seen_from
from jspec.pallas.paged_attention.tiles import COLUMNS, ROWS, STRIP, Tiles

__all__ = ["attend"]

WGMMA = plgpu.Layout.WGMMA
BY_ROW = plgpu.Layout.WGMMA.reduce(1)
FLOOR = LOWEST / 2
"""What a row's maximum starts at: what it does not see weighs `exp(LOWEST - FLOOR)`,
which is 0, so that nobody has to remember what was seen."""


def attend(
    q: Float[Array, "rows pieces R D"],
    k: Float[Array, "pages S D"],
    v: Float[Array, "pages S D"],
    table: Int[Array, "B M"],
    sight: Int[Array, "B tiles 3 64"],
    bounds: Int[Array, "B 4"],
    *,
    heads: int,
    workers: int,
    splits: int,
    scale: float,
    tiles: Tiles,
    interpret: Any,
) -> tuple[Float[Array, "rows splits R D"], Float[Array, "rows splits tiles 2 64"]]:
    """Sums of each stretch: mixed values, and in two rows maximum and weight.

    Args:
      q: query rows of a row's key head, whole tiles or one short one.
      k: keys, pages times key heads.
      v: values.
      table: page of each place, in range.
      sight: of each query row: the first committed token it sees, and in two words
        the nodes it sees.
      bounds: of each row: length, written tokens, first block and the one behind the
        last.
      heads: key heads.
      workers: blocks of the grid that share a row's stretches.
      splits: stretches of the longest row.
      scale: of the scores.
      tiles: the sizes.
      interpret: see `gpu.paged_attention`.
    """
    b, (size, d) = len(bounds), k.shape[1:]
    block, stages, groups = tiles.block, tiles.stages, tiles.warpgroups
    each = tiles.split // block
    over = sight.shape[1] // groups
    rows = min(ROWS, q.shape[2])
    pieces = pieces_of(k.dtype)
    # A warpgroup has registers for the sums of 128 columns: two share a wider head.
    width = min(d, COLUMNS)
    parts = d // width
    warpgroups = groups * parts
    run = min(size, block)
    runs = block // run
    last_place = table.shape[1] - 1

    def kernel(q_ref, k_ref, v_ref, table_ref, sight_ref, bounds_ref, *rest):
        mixed_ref, sums_ref, q_s, k_s, v_s, mixed_s, *more = rest
        q_here, here, clean, done, *split_s = more
        row, head = lax.axis_index("row"), lax.axis_index("head")
        me = lax.axis_index("warpgroup")
        group, part = lax.div(me, parts), lax.rem(me, parts)
        queries = row * heads + head
        tile = lax.axis_index("tile") * groups + group
        my_rows = pl.ds(tile * ROWS, rows)
        columns = pl.ds(part * width, width)

        # Steps are blocks, counted from the start of this worker's first stretch.
        worker = lax.axis_index("worker")
        length, written = bounds_ref[row, 0], bounds_ref[row, 1]
        first, last = bounds_ref[row, 2], bounds_ref[row, 3]
        first_split = lax.div(first, each) + worker
        count = lax.div(last + each - 1, each) - first_split
        mine = lax.div(jnp.maximum(count + workers - 1, 0), workers)
        start = jnp.where(worker == 0, lax.rem(first, each), 0)
        rest = last - (first_split + (mine - 1) * workers) * each
        end = jnp.where(mine > 0, (mine - 1) * each + jnp.minimum(rest, each), start)

        def block_of(step):
            split = first_split + lax.div(step, each) * workers
            return split * each + lax.rem(step, each)

        def pages_of(step):
            place = block_of(step) * block
            places = [lax.div(place + i * run, size) for i in range(runs)]
            return [table_ref[row, jnp.minimum(at, last_place)] for at in places]

        def fetch(step, pages):
            slot = lax.rem(step, stages)
            inside = 0 if size <= block else lax.rem(block_of(step) * block, size)
            for ref, to in ((k_ref, k_s), (v_ref, v_s)):
                for i, page in enumerate(pages):
                    plgpu.copy_gmem_to_smem(
                        ref.at[page * heads + head, pl.ds(inside, run)],
                        to.at[slot, 0, pl.ds(i * run, run)],
                        here.at[slot],
                    )

        @pl.when(part == 0)
        def _():
            for i in range(pieces):
                plgpu.copy_gmem_to_smem(
                    q_ref.at[queries, i, my_rows],
                    q_s.at[group, i, pl.ds(0, rows)],
                    q_here.at[group],
                )

        @pl.when(me == 0)
        def _():
            for i in range(stages):
                step = start + i
                pl.when(step < end)(lambda step=step: fetch(step, pages_of(step)))

        plgpu.barrier_wait(q_here.at[group])
        sights = [
            plgpu.load(sight_ref.at[row, tile, i], layout=BY_ROW, optimized=False)
            for i in range(3)
        ]
        column = plgpu.broadcasted_iota(jnp.int32, (ROWS, block), 1, layout=WGMMA)
        token = plgpu.broadcasted_iota(jnp.int32, (block, STRIP), 0, layout=WGMMA)

        def each_strip(change):
            for i in range(0, d, STRIP):
                change(pl.ds(i, STRIP))

        def in_pieces(ref, limit):
            """What tensor cores read: the array itself, or its pieces beside it."""
            if pieces == 1:
                return ref

            def split_strip(here):
                values = plgpu.load(ref.at[0, :, here], layout=WGMMA)
                values = jnp.where(token < limit, values, 0.0)
                for i, piece in enumerate(split(values, pieces)):
                    split_s[0][i, :, here] = piece

            each_strip(split_strip)
            plgpu.commit_smem()
            return split_s[0]

        def shares_of(weights):
            if pieces == 1:
                return weights.astype(v.dtype)
            for i, piece in enumerate(split(weights, pieces)):
                split_s[1][i] = piece
            return split_s[1]

        def blank(ref, limit):
            """Zeros what lies beyond: a weight of 0 does not silence a NaN."""

            def blank_strip(here):
                values = ref[0, :, here]
                blanked = jnp.where(token < limit, values, jnp.zeros_like(values))
                ref[0, :, here] = blanked

            pl.when(me == 0)(lambda: each_strip(blank_strip))
            plgpu.commit_smem()
            if warpgroups > 1:
                plgpu.barrier_arrive(clean)
                plgpu.barrier_wait(clean)

        def visit(step, carry):
            mixed, top, total, pages = carry
            slot = lax.rem(step, stages)
            place = block_of(step) * block
            limit = written - place
            plgpu.barrier_wait(here.at[slot])
            if pieces == 1:
                pl.when(limit < block)(lambda: blank(v_s.at[slot], limit))
            keys = in_pieces(k_s.at[slot], limit)
            scores = product(q_s.at[group], keys, some=limit > 0, interpret=interpret)
            seen = seen_from(column + place, length, written, sights)
            scores = jnp.where(seen, scores * scale, LOWEST)
            higher = jnp.maximum(top, scores.max(axis=1))
            fade = jnp.exp(top - higher)
            weights = jnp.exp(scores - lax.broadcast_in_dim(higher, scores.shape, (0,)))
            total = total * fade + weights.sum(axis=1)
            mixed = mixed * lax.broadcast_in_dim(fade, mixed.shape, (0,))
            shares = shares_of(weights)
            values = in_pieces(v_s.at[slot], limit).at[:, :, columns]
            mixed = add_product(
                mixed, shares, values, some=limit > 0, interpret=interpret
            )
            plgpu.barrier_arrive(done.at[slot])

            @pl.when(me == 0)
            def _():
                plgpu.barrier_wait(done.at[slot])
                pl.when(step + stages < end)(lambda: fetch(step + stages, pages))

            # Read one step ahead of their use.
            return mixed, higher, total, pages_of(step + stages + 1)

        def sum_up(index, _):
            begin = jnp.maximum(index * each, start)
            stop = jnp.minimum((index + 1) * each, end)
            empty = (
                plgpu.layout_cast(jnp.zeros((ROWS, width), jnp.float32), WGMMA),
                plgpu.layout_cast(jnp.full((ROWS,), FLOOR, jnp.float32), BY_ROW),
                plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), BY_ROW),
                pages_of(begin + stages),
            )
            mixed, top, total, _ = lax.fori_loop(begin, stop, visit, empty)
            split = first_split + index * workers

            @pl.when(part == 0)
            def _():
                for i, its in enumerate((top, total)):
                    sums_ref[queries, split, tile, i] = its

            mixed_s[group, part] = mixed
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(
                mixed_s.at[group, part, pl.ds(0, rows)],
                mixed_ref.at[queries, split, my_rows, columns],
            )
            plgpu.wait_smem_to_gmem(0)

        lax.fori_loop(0, mine, sum_up, None)

    def shared(*shape, dtype):
        columns = 128 // jnp.dtype(dtype).itemsize
        tiled = (plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(128))
        return plgpu.SMEM(shape, dtype, transforms=tiled)

    kernel.__name__ = "attend"
    beside = [
        shared(pieces, block, d, dtype=q.dtype),
        shared(pieces, ROWS, block, dtype=q.dtype),
    ]
    return plgpu.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((b * heads, splits, q.shape[2], d), jnp.float32),
            jax.ShapeDtypeStruct(
                (b * heads, splits, over * groups, 2, ROWS), jnp.float32
            ),
        ),
        # Blocks that read the same keys follow each other, so that they run together.
        grid=(over, workers, heads, b),
        grid_names=("tile", "worker", "head", "row"),
        num_threads=warpgroups,
        thread_name="warpgroup",
        # Rows are summed up within a warp.
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=0),
        interpret=interpret,
        scratch_types=[
            shared(groups, pieces, ROWS, d, dtype=q.dtype),
            shared(stages, 1, block, d, dtype=k.dtype),
            shared(stages, 1, block, d, dtype=v.dtype),
            shared(groups, parts, ROWS, width, dtype=jnp.float32),
            plgpu.Barrier(num_arrivals=pieces, num_barriers=groups),
            plgpu.Barrier(num_arrivals=2 * runs, num_barriers=stages),
            plgpu.Barrier(num_arrivals=warpgroups),
            plgpu.Barrier(num_arrivals=warpgroups, num_barriers=stages),
            *(beside if pieces > 1 else ()),
        ],
    )(q, k, v, table, sight, bounds)
