"""Packed matrices: how they lie, and the call of their products."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float

from jspec.native.room import held, room

__all__ = ["COLUMNS", "pack", "packable", "packed", "panel_product", "repack", "unpack"]

COLUMNS = 32
"""Of one panel."""

DTYPES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16))


def packable(w: Float[Array, "I O"]) -> bool:
    """Whether the panels of a matrix would be whole."""
    return w.dtype in DTYPES and w.shape[0] % 2 == 0 and w.shape[1] % COLUMNS == 0


def pack(w: Any) -> Any:
    """A matrix `[in, out]` as the products read it, front to back; of the same size.

    Returns:
      float32 `[O / 32, I, 32]`; bfloat16 `[O / 32, I / 2, 32, 2]`, so that two rows
      meet in one instruction.
    """
    i, o = w.shape
    if w.dtype == jnp.float32:
        return w.reshape(i, o // COLUMNS, COLUMNS).swapaxes(0, 1)
    return w.reshape(i // 2, 2, o // COLUMNS, COLUMNS).transpose(2, 0, 3, 1)


def repack(w: Float[Array, "I O"]) -> Array:
    """`pack`, by the host and into huge pages: nothing is compiled."""
    panels = pack(np.asarray(w))
    filled = room(panels.shape, panels.dtype)
    filled[...] = panels
    return held(filled)


def packed(w: Array) -> bool:
    """Whether `w` is what `pack` makes."""
    return w.ndim > 2


def unpack(w: Array) -> Float[Array, "I O"]:
    """The matrix."""
    if w.ndim == 3:
        return w.swapaxes(0, 1).reshape(w.shape[1], -1)
    return w.transpose(1, 3, 0, 2).reshape(2 * w.shape[1], -1)


def panel_product(
    x: Float[Array, "R I"], w: Array, *, out: DTypeLike | None = None
) -> Float[Array, "R O"]:
    """`x @ w` for a packed `w`.

    Every sum runs down the matrix, whatever `R` is: a row's bits do not depend on the
    rows beside it. Sums are float32.

    Args:
      x: of the dtype of `w`.
      w: packed.
      out: the dtype of the result: that of `x`, or float32.
    """
    shape = (x.shape[0], w.shape[0] * COLUMNS)
    call = jax.ffi.ffi_call(
        "jspec_panels",
        jax.ShapeDtypeStruct(shape, out or x.dtype),
        vmap_method="sequential",
    )
    return call(x, w)
