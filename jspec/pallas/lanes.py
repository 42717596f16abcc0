"""Numbers spread over the threads of a block: what Mosaic has no word for.

All functions are called in a kernel.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

__all__ = ["LANES", "LAST", "either", "find", "lane_ids", "load_entries", "load_lanes"]

LANES = 128
"""Threads of a warpgroup."""

LAST = jnp.iinfo(jnp.int32).max
"""An index beyond all."""


def lane_ids(shape: tuple[int, ...]) -> Array:
    """0, 1, ..., one or more a thread."""
    layout = plgpu.Layout.WG_STRIDED(shape, 1)
    return plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)


def either(flag: Array, ids: Array, yes: Array, no: Array) -> Array:
    """`yes` or `no`, whole; a scalar does not choose between vectors."""
    return jnp.where(ids < jnp.where(flag, LAST, 0), yes, no)


def load_lanes(ref: Any) -> Array:
    """Whole lanes of numbers from the GPU's memory."""
    layout = plgpu.Layout.WG_STRIDED(ref.shape, 1)
    return plgpu.load(ref, layout=layout, optimized=False)


def load_entries(ref: Any, chunks: int, otherwise: float | int) -> Array:
    """The numbers of a row's chunks."""
    return jnp.where(lane_ids(ref.shape) < chunks, load_lanes(ref), otherwise)


def find(weights: Array, at: Array, target: Array) -> tuple[Array, Array, Array]:
    """Where the running sum of `weights` first exceeds `target`.

    By halving, each time one sum over the warpgroup: sums over a growing set in a
    fixed order never fall, so an entry without weight is never found, unless all are
    without. A target that rounding has pushed beyond the sum finds the last weight.

    Args:
      weights: not negative.
      at: where each stands, from 0 on.
      target: at least 0.

    Returns:
      the place, the sum before it, and its weight.
    """
    whole = jnp.sum(weights)
    place = jnp.int32(0)
    for bit in reversed(range((math.prod(weights.shape) - 1).bit_length())):
        middle = place + (1 << bit)
        before = jnp.sum(jnp.where(at < middle, weights, 0.0))
        place = jnp.where((before <= target) & (before < whole), middle, place)
    before = jnp.sum(jnp.where(at < place, weights, 0.0))
    return place, before, jnp.sum(jnp.where(at == place, weights, 0.0))
