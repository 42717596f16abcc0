"""Puts what a row's blocks left together, in the order of the text."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, DTypeLike, Float, Int

from jspec.pallas.paged_attention.products import shared
from jspec.pallas.paged_attention.sums import (
    BY_ROW,
    WGMMA,
    add_sums,
    no_sums,
    wide,
)
from jspec.pallas.paged_attention.tiles import COLUMNS, ROWS

__all__ = ["merge"]


def merge(
    mixed: Float[Array, "rows units R D"],
    sums: Float[Array, "rows units tiles 2 64"],
    ends: Int[Array, "B 2"],
    *,
    heads: int,
    group: int,
    dtype: DTypeLike,
    interpret: Any = None,
) -> Float[Array, "rows R D"]:
    """Softmax attention from its sums over parts of the text, exactly.

    Parts are added up by groups, and groups to the row. Only parts that a row has are
    read: the others were never written.

    Args:
      mixed: values, weighted, of each part.
      sums: in two rows each part's maximum and weight.
      ends: first and behind the last part of each row.
      heads: key heads of a row.
      group: parts of a group; 1: what was left are groups.
      dtype: of the result.
      interpret: `plgpu.InterpretGPUParams()` runs it on a CPU.
    """
    many, _, total, d = mixed.shape
    rows = min(ROWS, total)
    # Registers hold the sums of a group and of a row for so many columns.
    width = min(d, COLUMNS)

    def merge_splits(mixed_ref, sums_ref, ends_ref, out_ref, mixed_s, out_s, here):
        which, tile = lax.axis_index("which"), lax.axis_index("tile")
        columns = pl.ds(lax.axis_index("part") * width, width)
        row = lax.div(which, heads)
        first, last = ends_ref[row, 0], ends_ref[row, 1]
        my_rows = pl.ds(tile * ROWS, rows)

        def fetch(unit):
            slot = lax.rem(unit, 2)
            plgpu.copy_gmem_to_smem(
                mixed_ref.at[which, unit, my_rows, columns],
                mixed_s.at[slot, pl.ds(0, rows)],
                here.at[slot],
            )

        pl.when(first < last)(lambda: fetch(first))

        def add(unit, so_far):
            slot = lax.rem(unit, 2)
            pl.when(unit + 1 < last)(lambda: fetch(unit + 1))
            plgpu.barrier_wait(here.at[slot])
            its_top, its_total = (
                plgpu.load(
                    sums_ref.at[which, unit, tile, i], layout=BY_ROW, optimized=False
                )
                for i in range(2)
            )
            its_mixed = plgpu.load(mixed_s.at[slot], layout=WGMMA)
            # Read before the copy engine overwrites it.
            plgpu.commit_smem()
            return add_sums(so_far, (its_mixed, its_top, its_total))

        def add_group(index, so_far):
            begin = jnp.maximum(index * group, first)
            end = jnp.minimum((index + 1) * group, last)
            its = lax.fori_loop(begin, end, add, no_sums(width))
            return add_sums(so_far, its)

        if group == 1:
            mixed, _, total = lax.fori_loop(first, last, add, no_sums(width))
        else:
            groups = lax.div(first, group), lax.div(last + group - 1, group)
            mixed, _, total = lax.fori_loop(*groups, add_group, no_sums(width))
        total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
        out_s[...] = (mixed / wide(total, mixed)).astype(dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(
            out_s.at[pl.ds(0, rows)], out_ref.at[which, my_rows, columns]
        )
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        merge_splits,
        out_type=jax.ShapeDtypeStruct((many, total, d), dtype),
        grid=(d // width, pl.cdiv(total, ROWS), many),
        grid_names=("part", "tile", "which"),
        interpret=interpret,
        scratch_types=[
            shared(2, ROWS, width, dtype=jnp.float32),
            shared(ROWS, width, dtype=dtype),
            plgpu.Barrier(num_barriers=2),
        ],
    )(mixed, sums, ends)
