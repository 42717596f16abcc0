"""What the ancestors of a tree as integers mean, in plain `jnp`."""

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from jspec.masks import WORD, words_for

__all__ = ["tree_mask"]


def tree_mask(parent: Int[Array, "B N"]) -> UInt32[Array, "B N W"]:
    """Which nodes each node descends from, itself included, a bit a node.

    Bit `m % 32` of word `m // 32` is node `m`, as `jspec.masks.pack_words` packs
    `jspec.rounds.ancestors_of(parent)`. Paths are doubled in every step.
    """
    n = parent.shape[1]
    words = words_for(n)
    nodes = jnp.arange(n, dtype=jnp.int32)
    word = jnp.arange(words, dtype=jnp.int32)
    bit = jnp.uint32(1) << (nodes % WORD).astype(jnp.uint32)
    own = jnp.where(nodes[:, None] // WORD == word[None], bit[:, None], 0)
    seen = jnp.broadcast_to(own, (*parent.shape, words)).astype(jnp.uint32)
    up = parent
    for _ in range(max(n - 1, 1).bit_length()):
        at = jnp.maximum(up, 0)
        there = jnp.take_along_axis(seen, at[..., None], axis=1)
        seen |= jnp.where((up >= 0)[..., None], there, 0)
        up = jnp.where(up >= 0, jnp.take_along_axis(up, at, axis=1), -1)
    return seen
