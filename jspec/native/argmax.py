"""The call: rows in, the place of each row's largest number out."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["argmax"]


def argmax(x: Float[Array, "*S V"]) -> Int[Array, "*S"]:
    """`jnp.argmax` of the last axis of float32: the first of equals, NaN before all.

    XLA looks at one number after the other; of 49 152 that takes a tenth of a
    millisecond a row.
    """
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    call = jax.ffi.ffi_call(
        "jspec_argmax",
        jax.ShapeDtypeStruct(rows.shape[:1], jnp.int32),
        vmap_method="broadcast_all",
    )
    return call(rows).reshape(x.shape[:-1])
