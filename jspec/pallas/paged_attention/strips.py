"""In the attention kernel: changes of a step's keys or values in shared memory.

A strip of columns at once, so that few registers hold them. What lies beyond the tokens
that were written may be no number, and a weight of 0 does not silence it.
"""

from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from jspec.pallas.paged_attention.products import split
from jspec.pallas.paged_attention.sums import WGMMA
from jspec.pallas.paged_attention.tiles import STRIP

__all__ = ["blank", "split_into"]


def blank(ref: Any, limit: Array) -> None:
    """Zeros tokens from `limit` on."""
    token = _tokens(ref)
    for strip in _strips(ref):
        values = ref[0, :, strip]
        ref[0, :, strip] = jnp.where(token < limit, values, jnp.zeros_like(values))


def split_into(to: Any, ref: Any, limit: Array) -> None:
    """Pieces of the numbers, of tokens from `limit` on zeros."""
    token = _tokens(ref)
    for strip in _strips(ref):
        values = plgpu.load(ref.at[0, :, strip], layout=WGMMA)
        values = jnp.where(token < limit, values, 0.0)
        for i, piece in enumerate(split(values, to.shape[0])):
            to[i, :, strip] = piece


def _tokens(ref: Any) -> Array:
    shape = (ref.shape[1], STRIP)
    return plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=WGMMA)


def _strips(ref: Any) -> list[Any]:
    return [pl.ds(i, STRIP) for i in range(0, ref.shape[2], STRIP)]
