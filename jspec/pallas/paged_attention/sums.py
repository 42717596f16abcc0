"""Softmax sums over a part of a text, and how the sums of two parts become one.

In a kernel, by one warpgroup: mixed values of 64 query rows, and of each row the
highest score and the weight. Two kernels put sums together; both do it here, with the
same operations in the same order, so that it does not show which of them did.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from jspec.pallas.paged_attention.reference import LOWEST
from jspec.pallas.paged_attention.tiles import ROWS

__all__ = ["BY_ROW", "WGMMA", "Sums", "add_sums", "no_sums", "wide"]

WGMMA = plgpu.Layout.WGMMA
BY_ROW = plgpu.Layout.WGMMA.reduce(1)
type Sums = tuple[Array, Array, Array]


def no_sums(width: int, *, top: float = LOWEST) -> Sums:
    """Of nothing: adding them changes no bit."""
    return (
        plgpu.layout_cast(jnp.zeros((ROWS, width), jnp.float32), WGMMA),
        plgpu.layout_cast(jnp.full((ROWS,), top, jnp.float32), BY_ROW),
        plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), BY_ROW),
    )


def add_sums(before: Sums, after: Sums) -> Sums:
    """Both below their common maximum (Milakov and Gimelshein 2018, section 3.1)."""
    mixed, top, total = before
    its_mixed, its_top, its_total = after
    higher = jnp.maximum(top, its_top)
    fade, its_fade = jnp.exp(top - higher), jnp.exp(its_top - higher)
    mixed = mixed * wide(fade, mixed) + its_mixed * wide(its_fade, mixed)
    return mixed, higher, total * fade + its_total * its_fade


def wide(by_row: Array, like: Array) -> Array:
    """A number of each row, in every column."""
    return lax.broadcast_in_dim(by_row, like.shape, (0,))
