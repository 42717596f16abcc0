"""Puts the stretches of a row together, in the order of the text."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from jspec.pallas.paged_attention.reference import LOWEST
from jspec.pallas.paged_attention.tiles import ROWS

__all__ = ["merge"]


def merge(
    mixed: Float[Array, "rows splits R D"],
    sums: Float[Array, "rows splits tiles 2 64"],
    ends: Int[Array, "B 2"],
    *,
    heads: int,
    interpret: Any = None,
) -> Float[Array, "rows R D"]:
    """Softmax attention from its sums over stretches of tokens, exactly.

    Sums that were taken below their own maximum are brought below the common one
    (Milakov and Gimelshein 2018, section 3.1). Only stretches that a row has are read:
    the others were never written.

    Args:
      mixed: values, weighted, of each stretch.
      sums: in two rows each stretch's maximum and weight.
      ends: first and behind the last stretch of each row.
      heads: key heads of a row.
      interpret: `plgpu.InterpretGPUParams()` runs it on a CPU.
    """
    many, _, total, d = mixed.shape
    rows = min(ROWS, total)
    by_row = plgpu.Layout.WGMMA.reduce(1)

    def merge_splits(mixed_ref, sums_ref, ends_ref, out_ref, mixed_s, here):
        which, tile = lax.axis_index("which"), lax.axis_index("tile")
        row = lax.div(which, heads)
        first, last = ends_ref[row, 0], ends_ref[row, 1]
        my_rows = pl.ds(tile * ROWS, rows)

        def fetch(split):
            slot = lax.rem(split, 2)
            plgpu.copy_gmem_to_smem(
                mixed_ref.at[which, split, my_rows],
                mixed_s.at[slot, pl.ds(0, rows)],
                here.at[slot],
            )

        pl.when(first < last)(lambda: fetch(first))

        def add(split, carry):
            mixed, top, total = carry
            slot = lax.rem(split, 2)
            pl.when(split + 1 < last)(lambda: fetch(split + 1))
            plgpu.barrier_wait(here.at[slot])
            its_top, its_total = (
                plgpu.load(
                    sums_ref.at[which, split, tile, i], layout=by_row, optimized=False
                )
                for i in range(2)
            )
            its_mixed = plgpu.load(mixed_s.at[slot], layout=plgpu.Layout.WGMMA)
            # Read before the copy engine overwrites it.
            plgpu.commit_smem()
            higher = jnp.maximum(top, its_top)
            fade, its_fade = jnp.exp(top - higher), jnp.exp(its_top - higher)

            def wide(a):
                return lax.broadcast_in_dim(a, mixed.shape, (0,))

            mixed = mixed * wide(fade) + its_mixed * wide(its_fade)
            return mixed, higher, total * fade + its_total * its_fade

        empty = (
            plgpu.layout_cast(jnp.zeros((ROWS, d), jnp.float32), plgpu.Layout.WGMMA),
            plgpu.layout_cast(jnp.full((ROWS,), LOWEST, jnp.float32), by_row),
            plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), by_row),
        )
        mixed, _, total = lax.fori_loop(first, last, add, empty)
        total = jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
        mixed_s[0] = mixed / lax.broadcast_in_dim(total, mixed.shape, (0,))
        plgpu.commit_smem()
        out = out_ref.at[which, my_rows]
        plgpu.copy_smem_to_gmem(mixed_s.at[0, pl.ds(0, rows)], out)
        plgpu.wait_smem_to_gmem(0)

    broad = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        merge_splits,
        out_type=jax.ShapeDtypeStruct((many, total, d), jnp.float32),
        grid=(pl.cdiv(total, ROWS), many),
        grid_names=("tile", "which"),
        interpret=interpret,
        scratch_types=[
            plgpu.SMEM((2, ROWS, d), jnp.float32, transforms=broad),
            plgpu.Barrier(num_barriers=2),
        ],
    )(mixed, sums, ends)
