"""The newest feature of every page: all that some drafters need to go on.

It lies in pages, not in rows, so a text that begins with cached pages goes on from
their last feature at once, and nothing of a row's former text is left in it.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.drafters.base import Memory, View
from jspec.drafters.layers import target_feature
from jspec.rounds import Evidence

__all__ = ["newest_feature", "places", "remember_newest", "write_features"]


def newest_feature(
    tail: Float[Array, "P E"],
    table: Int[Array, "B columns"],
    length: Int[Array, " B"],
    *,
    size: int,
) -> Float[Array, "B E"]:
    """The feature of each row's last committed token; zero where there is none.

    Args:
      tail: a feature a page.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      size: tokens of a page.
    """
    column = jnp.maximum(length - 1, 0) // size
    page = jnp.take_along_axis(table, column[:, None], axis=1, mode="clip")[:, 0]
    found = tail.at[page].get(mode="fill", fill_value=0)
    return jnp.where((length > 0)[:, None], found, 0)


def write_features(
    tail: Float[Array, "P E"],
    table: Int[Array, "B columns"],
    evidence: Evidence,
    features: Float[Array, "B T E"],
    *,
    size: int,
) -> Float[Array, "P E"]:
    """Remembers the features of the last committed tokens, of a row and of a page."""
    steps = jnp.arange(features.shape[1])[None]
    slot = evidence.start[:, None] + steps
    newest = (steps == evidence.count[:, None] - 1) | (slot % size == size - 1)
    real = newest & (steps < evidence.count[:, None])
    page, _ = places(tail.shape[0], table, slot, real, size=size)
    return tail.at[page].set(features.astype(tail.dtype), mode="drop")


def remember_newest(memory: Memory, evidence: Evidence, view: View) -> Memory:
    """All that `observe` has to do for a drafter whose pages are such a tail."""
    assert evidence.features is not None
    features = target_feature(view.target, evidence.features)
    size, table = view.cache.pages.text.shape[1], view.cache.table
    tail = write_features(memory.pages, table, evidence, features, size=size)
    return dataclasses.replace(memory, pages=tail)


def places(
    pages: int,
    table: Int[Array, "B columns"],
    slot: Int[Array, "B T"],
    real: Bool[Array, "B T"],
    *,
    size: int,
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Page and place of each slot; page `pages`, which is none, if it is not real."""
    column = slot // size
    page = jnp.take_along_axis(table, column, axis=1, mode="clip")
    return jnp.where(real & (column < table.shape[1]), page, pages), slot % size
