"""The ancestors of a tree as integers, on an NVIDIA GPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int, UInt32

from jspec.masks import WORD, words_for
from jspec.rounds import DEAD

__all__ = ["tree_mask"]

NODES = 64
"""Rows of a tile of the tensor cores, whose layout the kernel borrows."""


def tree_mask(
    parent: Int[Array, "B N"], *, interpret: Any = None
) -> UInt32[Array, "B N W"]:
    """The twin's meaning, in one kernel of as many steps as the deepest path has.

    Floor: 4 bytes a node read, 4 or 8 written; moved: those of 64 nodes. What is won
    over plain `jnp` are launches.
    """
    b, n = parent.shape
    if n > NODES:
        raise ValueError(
            f"tree_mask on a GPU takes trees of at most {NODES} nodes, not {n}"
        )
    words = words_for(n)
    parent = jnp.pad(parent, ((0, 0), (0, NODES - n)), constant_values=DEAD)
    square = (NODES, NODES)

    def ancestor_words(parent_ref, out_ref, parent_shared, out_shared, arrived):
        r = lax.axis_index("row")
        plgpu.copy_gmem_to_smem(parent_ref.at[r], parent_shared, arrived)
        plgpu.barrier_wait(arrived)
        wide = plgpu.Layout.WGMMA

        def load_along(axis: int) -> Array:
            layout = wide.reduce(1 - axis)
            return plgpu.load(parent_shared, layout=layout, optimized=False)

        column = plgpu.broadcasted_iota(jnp.int32, square, 1, layout=wide)
        own = plgpu.broadcasted_iota(jnp.int32, (NODES,), 0, layout=wide.reduce(1))

        def bits(node: Array, word: int) -> Array:
            here = (node >= word * WORD) & (node < (word + 1) * WORD)
            return jnp.where(here, 1 << (node & (WORD - 1)), 0)

        def climb(carry):
            up, seen = carry
            seen = tuple(a | bits(up, word) for word, a in enumerate(seen))
            # Loaded here: outside the loop, no layout is found for it.
            above = lax.broadcast_in_dim(load_along(1), square, (1,))
            here = lax.broadcast_in_dim(up, square, (0,)) == column
            # One column at most is met; above the root there is -1, as in `DEAD`.
            up = jnp.sum(jnp.where(here, above + 1, 0), axis=1) - 1
            return up, seen

        seen = tuple(bits(own, word) for word in range(words))
        start = (load_along(0), seen)
        _, seen = lax.while_loop(lambda carry: jnp.max(carry[0]) >= 0, climb, start)
        for word, a in enumerate(seen):
            out_shared[word] = a
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_shared, out_ref.at[r])
        plgpu.wait_smem_to_gmem(0)

    packed = plgpu.kernel(
        ancestor_words,
        out_type=jax.ShapeDtypeStruct((b, words, NODES), jnp.int32),
        grid=(b,),
        grid_names=("row",),
        scratch_types=[
            plgpu.SMEM((NODES,), jnp.int32),
            plgpu.SMEM((words, NODES), jnp.int32),
            plgpu.Barrier(),
        ],
        interpret=interpret,
    )(parent)
    packed = packed[:, :, :n].transpose(0, 2, 1)
    return lax.bitcast_convert_type(packed, jnp.uint32)
