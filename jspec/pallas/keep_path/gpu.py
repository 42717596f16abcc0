"""Moving a kept path together in the pages, on an NVIDIA GPU, in place."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

__all__ = ["keep_path"]

WAVE = 8
"""Nodes on their way at once: more than most kept paths have."""

GROUP = 16
"""Arrays that one kernel moves; each needs descriptors of its own."""


def keep_path(
    pages: tuple[Float[Array, "P _ S _"], ...],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    path: Int[Array, "B N"],
    count: Int[Array, " B"],
    *,
    interpret: Any = None,
) -> tuple[Float[Array, "P _ S _"], ...]:
    """The twin's meaning: a kernel for 16 arrays alike, which are changed in place.

    Floor: each node that moves, read and written. Moved: the same; a node that already
    stands in its place is not touched. Plain `jnp` moves every node of the tree, kept
    or not, through a gathered copy.
    """
    for a in pages:
        _, heads, _, depth = a.shape
        width = depth * a.dtype.itemsize
        if width % 16 or heads * width % 128 or max(depth, heads) > 256:
            raise ValueError(
                "keep_path on a GPU needs heads of whole 16 bytes, a token of whole "
                f"128, and at most 256 of either, not {heads} heads of {depth} "
                f"{a.dtype}"
            )
    refs = tuple(jax.new_ref(a) for a in pages)
    alike: dict[Any, list[Any]] = {}
    for a, ref in zip(pages, refs, strict=True):
        alike.setdefault((a.shape, a.dtype), []).append(ref)
    for kind in alike.values():
        for start in range(0, len(kind), GROUP):
            some = tuple(kind[start : start + GROUP])
            move_together(some, table, length, path, count, interpret=interpret)
    return tuple(jax.freeze(ref) for ref in refs)


def move_together(
    pages: tuple[Any, ...],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    path: Int[Array, "B N"],
    count: Int[Array, " B"],
    *,
    interpret: Any = None,
) -> None:
    """One block for each row and array: waves of reads, each before its writes.

    A wave's writes go to places before those that later waves read from, since
    `path[j] >= j` and it rises; so overlapping moves need no second copy.
    """
    none, heads, size, depth = pages[0].shape
    b, columns = table.shape
    n = path.shape[1]
    wave = min(WAVE, n)

    def path_move(*refs):
        arrays, refs = refs[: len(pages)], refs[len(pages) :]
        table_ref, length_ref, path_ref, count_ref, held, arrived = refs
        r, which = lax.axis_index("row"), lax.axis_index("which")
        length, kept = length_ref[r], jnp.minimum(count_ref[r], n)

        def place(slot: Array) -> tuple[Array, Array]:
            column = lax.div(slot, size)
            page = table_ref[r, jnp.minimum(column, columns - 1)]
            return jnp.where(column < columns, page, none), lax.rem(slot, size)

        def each(first: Array, act: Any) -> None:
            def visit(i: Array, nothing: Array) -> Array:
                step = jnp.minimum(first + i, n - 1)
                node = path_ref[r, step]
                here, there = place(length + node), place(length + step)
                inside = (here[0] < none) & (there[0] < none) & (node != step)

                @pl.when((first + i < kept) & inside)
                def _():
                    act(i, here, there)

                return nothing

            lax.fori_loop(0, wave, visit, 0)

        def move(a: Any) -> None:
            def read(i: Array, here: Any, _: Any) -> None:
                plgpu.copy_gmem_to_smem(
                    a.at[here[0], :, here[1]], held.at[i], arrived.at[i]
                )

            def write(i: Array, _: Any, there: Any) -> None:
                plgpu.copy_smem_to_gmem(held.at[i], a.at[there[0], :, there[1]])

            def visit(w: Array, nothing: Array) -> Array:
                first = w * wave
                each(first, read)
                each(first, lambda i, *_: plgpu.barrier_wait(arrived.at[i]))
                plgpu.commit_smem()
                each(first, write)
                plgpu.wait_smem_to_gmem(0)
                return nothing

            lax.fori_loop(0, lax.div(kept + wave - 1, wave), visit, 0)

        for i, a in enumerate(arrays):
            pl.when(which == i)(lambda a=a: move(a))

    plgpu.kernel(
        path_move,
        out_type=(),
        grid=(len(pages), b),
        grid_names=("which", "row"),
        scratch_types=[
            plgpu.SMEM((wave, heads, depth), pages[0].dtype),
            plgpu.Barrier(num_barriers=wave),
        ],
        interpret=interpret,
    )(*pages, table, length, path, count)
