"""The kernel: softmax sums of every part of every row's tokens."""

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
    shared,
    split,
)
from jspec.pallas.paged_attention.reference import LOWEST
from jspec.pallas.paged_attention.share import share_of
from jspec.pallas.paged_attention.sight import seen_from
from jspec.pallas.paged_attention.strips import blank, split_into
from jspec.pallas.paged_attention.sums import (
    BY_ROW,
    WGMMA,
    add_sums,
    no_sums,
    wide,
)
from jspec.pallas.paged_attention.tiles import COLUMNS, ROWS, Tiles

__all__ = ["attend"]

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
    units: int,
    scale: float,
    tiles: Tiles,
    interpret: Any,
) -> tuple[Float[Array, "rows units R D"], Float[Array, "rows units tiles 2 64"]]:
    """Sums of each unit: mixed values, and in two rows maximum and weight.

    A unit is a stretch, or as many as `tiles` says, which the block adds up in the
    order of the text.

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
      workers: blocks of the grid that share a row's units.
      units: of the longest row.
      scale: of the scores.
      tiles: the sizes.
      interpret: see `gpu.paged_attention`.
    """
    b, (size, d) = len(bounds), k.shape[1:]
    block, stages, groups = tiles.block, tiles.stages, tiles.warpgroups
    cluster = tiles.cluster
    each = tiles.split // block
    reach = each * tiles.gather
    over = sight.shape[1] // groups
    # A block brings its share of a page to all of its cluster: they read it once.
    together = ("member",) if cluster > 1 else ()
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
        at = lax.axis_index("block") * cluster
        if cluster > 1:
            at += lax.axis_index("member")
        me = lax.axis_index("warpgroup")
        group, part = lax.div(me, parts), lax.rem(me, parts)
        queries = lax.div(at, over)
        row, head = lax.div(queries, heads), lax.rem(queries, heads)
        tile = lax.rem(at, over) * groups + group
        my_rows = pl.ds(tile * ROWS, rows)
        columns = pl.ds(part * width, width)

        length, written, first, last = (bounds_ref[row, i] for i in range(4))
        worker = lax.axis_index("worker")
        first_unit, mine, start, end = share_of(
            first, last, reach=reach, worker=worker, workers=workers
        )

        def block_of(step):
            unit = first_unit + lax.div(step, reach) * workers
            return unit * reach + lax.rem(step, reach)

        def pages_of(step):
            place = block_of(step) * block
            places = [lax.div(place + i * run, size) for i in range(runs)]
            return [table_ref[row, jnp.minimum(place, last_place)] for place in places]

        def fetch(step, pages):
            slot = lax.rem(step, stages)
            inside = 0 if size <= block else lax.rem(block_of(step) * block, size)
            for ref, to in ((k_ref, k_s), (v_ref, v_s)):
                for i, page in enumerate(pages):
                    plgpu.copy_gmem_to_smem(
                        ref.at[page * heads + head, pl.ds(inside, run)],
                        to.at[slot, 0, pl.ds(i * run, run)],
                        here.at[slot],
                        collective_axes=together or None,
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

        def in_pieces(ref, limit):
            """What tensor cores read: the array itself, or its pieces beside it."""
            if pieces == 1:
                return ref
            split_into(split_s[0], ref, limit)
            plgpu.commit_smem()
            return split_s[0]

        def shares_of(weights):
            if pieces == 1:
                return weights.astype(v.dtype)
            for i, piece in enumerate(split(weights, pieces)):
                split_s[1][i] = piece
            return split_s[1]

        def blank_once(ref, limit):
            pl.when(me == 0)(lambda: blank(ref, limit))
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
                pl.when(limit < block)(lambda: blank_once(v_s.at[slot], limit))
            keys = in_pieces(k_s.at[slot], limit)
            scores = product(q_s.at[group], keys, some=limit > 0, interpret=interpret)
            seen = seen_from(column + place, length, written, sights)
            scores = jnp.where(seen, scores * scale, LOWEST)
            higher = jnp.maximum(top, scores.max(axis=1))
            fade = jnp.exp(top - higher)
            weights = jnp.exp(scores - wide(higher, scores))
            total = total * fade + weights.sum(axis=1)
            mixed = mixed * wide(fade, mixed)
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

        def stretch(begin, stop):
            empty = (*no_sums(width, top=FLOOR), pages_of(begin + stages))
            return lax.fori_loop(begin, stop, visit, empty)[:3]

        def gather(begin, stop):
            """Stretches added up, their mix in shared memory: registers hold one."""
            mixed, top, total = no_sums(width)
            mixed_s[group, part] = mixed

            def add(index, so_far):
                its = stretch(
                    jnp.maximum(index * each, begin),
                    jnp.minimum((index + 1) * each, stop),
                )
                mixed = plgpu.load(mixed_s.at[group, part], layout=WGMMA)
                mixed, top, total = add_sums((mixed, *so_far), its)
                mixed_s[group, part] = mixed
                return top, total

            first, last = lax.div(begin, each), lax.div(stop + each - 1, each)
            return lax.fori_loop(first, last, add, (top, total))

        def sum_up(index, _):
            begin = jnp.maximum(index * reach, start)
            stop = jnp.minimum((index + 1) * reach, end)
            if tiles.gather > 1:
                top, total = gather(begin, stop)
            else:
                mixed_s[group, part], top, total = stretch(begin, stop)
            unit = first_unit + index * workers

            @pl.when(part == 0)
            def _():
                for i, its in enumerate((top, total)):
                    sums_ref[queries, unit, tile, i] = its

            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(
                mixed_s.at[group, part, pl.ds(0, rows)],
                mixed_ref.at[queries, unit, my_rows, columns],
            )
            plgpu.wait_smem_to_gmem(0)

        lax.fori_loop(0, mine, sum_up, None)

    # A slot is filled again when all that it was filled for have read it.
    done = plgpu.Barrier(num_arrivals=warpgroups, num_barriers=stages)
    if together:
        done = plgpu.ClusterBarrier(
            collective_axes=together, num_arrivals=warpgroups, num_barriers=stages
        )
    kernel.__name__ = "attend"
    beside = [
        shared(pieces, block, d, dtype=q.dtype),
        shared(pieces, ROWS, block, dtype=q.dtype),
    ]
    return plgpu.kernel(
        kernel,
        out_type=(
            jax.ShapeDtypeStruct((b * heads, units, q.shape[2], d), jnp.float32),
            jax.ShapeDtypeStruct(
                (b * heads, units, over * groups, 2, ROWS), jnp.float32
            ),
        ),
        # Blocks that read the same keys follow each other, so that they run together.
        grid=(workers, b * heads * over // cluster),
        grid_names=("worker", "block"),
        cluster=(cluster,) if together else (),
        cluster_names=together,
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
            done,
            *(beside if pieces > 1 else ()),
        ],
    )(q, k, v, table, sight, bounds)
