"""Products on tensor cores: the only part of the kernel that an interpreter lacks."""

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, DTypeLike

__all__ = ["add_product", "pieces_of", "product", "shared", "split"]


def shared(*shape: int, dtype: DTypeLike) -> Any:
    """Shared memory, laid out as tensor cores read it and the copy engine fills it."""
    tile = plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize))
    return plgpu.SMEM(shape, dtype, transforms=(tile, plgpu.SwizzleTransform(128)))


def pieces_of(dtype: DTypeLike) -> int:
    """Bfloat16 numbers that one number is split into, for tensor cores to multiply it.

    They multiply float32 with 11 of its 24 bits; three bfloat16 have all of them.
    """
    return 3 if jnp.dtype(dtype) == jnp.float32 else 1


def split(values: Array, pieces: int) -> list[Array]:
    """Bfloat16 pieces that sum to `values`, the largest first."""
    found = []
    for _ in range(pieces):
        found.append(values.astype(jnp.bfloat16))
        values = values - found[-1].astype(jnp.float32)
    return found


def product(a: Any, b: Any, *, some: Array, interpret: Any) -> Array:
    """`a @ b.T` of two matrices in shared memory, a leading axis for their pieces.

    Args:
      a: the left matrix.
      b: the right one.
      some: whether there is anything to multiply.
      interpret: multiplies on a CPU.
    """
    shape = (a.shape[1], b.shape[1])
    if interpret:
        return _multiply(jnp.zeros(shape, jnp.float32), a, b, transposed=True)

    def sums(total: Any) -> Array:
        _accumulate(total, a, b, some=some, transposed=True)
        return total[...]

    return pl.run_scoped(sums, plgpu.ACC(shape, jnp.float32))


def add_product(total: Array, a: Any, b: Any, *, some: Array, interpret: Any) -> Array:
    """`total + a @ b`, where `a` without pieces is in registers."""
    if interpret:
        return _multiply(total, a, b, transposed=False)

    def sums(total: Any) -> None:
        _accumulate(total, a, b, some=some, transposed=False)

    added: Any = pl.run_state(sums)(plgpu.ACC.init(total))
    return added


def _accumulate(total: Any, a: Any, b: Any, *, some: Array, transposed: bool) -> None:
    """Adds the products that float32 would notice: (0,0) (0,1) (0,2) (1,0) (1,1) (2,0).

    In a loop whose length the compiler does not know: unrolled, the addresses of all
    its tiles would stay in registers.
    """

    def add(left: Any, right: Any) -> None:
        plgpu.wgmma(total, left, right.transpose((1, 0)) if transposed else right)

    if b.shape[0] == 1:
        add(a.at[0] if len(a.shape) == 3 else a, b.at[0])
        return

    @pl.loop(0, jnp.where(some, 6, 0))
    def _(pair: Array) -> None:
        i = (pair >= 3).astype(jnp.int32) + (pair >= 5).astype(jnp.int32)
        j = pair - jnp.where(pair >= 5, 5, jnp.where(pair >= 3, 3, 0))
        add(a.at[i], b.at[j])


def _multiply(total: Array, a: Any, b: Any, *, transposed: bool) -> Array:
    """The same with plain products."""
    pieces = b.shape[0]
    left = [a[i] for i in range(pieces)] if len(a.shape) == 3 else [a]
    for i in range(pieces):
        for j in range(pieces - i):
            right = b[j].T if transposed else b[j]
            total += jnp.dot(left[i], right, preferred_element_type=jnp.float32)
    # Before the copy engine overwrites what was read; tensor cores need no such word.
    plgpu.commit_smem()
    return total
