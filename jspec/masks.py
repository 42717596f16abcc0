"""Who sees whom in a token tree: three packings of one mask, and ways between them.

Query-only: `[b, n, m]`, whether node `n` descends from node `m` or is it; what
`jspec.rounds.ancestors_of` makes of parents. Full: the same over the slots of a cache
that holds the row's text before the nodes. Words: one integer a node, bit `m` for node
`m`, in as many words of 32 bits as the tree needs (one up to 32 nodes, two up to 64).
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

__all__ = [
    "WORD",
    "full_mask",
    "pack_words",
    "parents_of",
    "query_mask",
    "unpack_words",
    "words_for",
]

WORD = 32
"""Nodes that one word holds."""


def words_for(nodes: int) -> int:
    """Words that a node's ancestors take in a tree of `nodes`."""
    return -(-nodes // WORD)


def pack_words(ancestors: Bool[Array, "B N N"]) -> UInt32[Array, "B N W"]:
    """One integer a node: bit `m % 32` of word `m // 32` is node `m`."""
    b, n, _ = ancestors.shape
    short = words_for(n) * WORD - n
    bits = jnp.pad(ancestors, ((0, 0), (0, 0), (0, short))).astype(jnp.uint32)
    bits = bits.reshape(b, n, words_for(n), WORD)
    places = jnp.arange(WORD, dtype=jnp.uint32)
    return (bits << places[None, None, None]).sum(-1, dtype=jnp.uint32)


def unpack_words(words: UInt32[Array, "B N W"]) -> Bool[Array, "B N N"]:
    """The query-only mask of what `pack_words` packed."""
    b, n, w = words.shape
    places = jnp.arange(WORD, dtype=jnp.uint32)
    bits = (words[..., None] >> places[None, None, None]) & 1
    return bits.reshape(b, n, w * WORD)[..., :n].astype(bool)


def full_mask(
    ancestors: Bool[Array, "B N N"], length: Int[Array, " B"], slots: int
) -> Bool[Array, "B N T"]:
    """Over a cache's slots: the committed text, then node `m` in slot `length + m`.

    Args:
      ancestors: the query-only mask.
      length: committed tokens of each row.
      slots: of the cache; nodes beyond them are seen by nobody.
    """
    b, n, _ = ancestors.shape
    at = jnp.arange(slots)[None] - length[:, None]
    node = jnp.broadcast_to(jnp.clip(at, 0, n - 1)[:, None], (b, n, slots))
    inside = jnp.take_along_axis(ancestors, node, axis=2)
    return jnp.where(at[:, None] < 0, True, inside & (at < n)[:, None])


def query_mask(
    full: Bool[Array, "B N T"], length: Int[Array, " B"]
) -> Bool[Array, "B N N"]:
    """The query-only mask within a full one; slots beyond `T` count as unseen."""
    b, n, slots = full.shape
    at = length[:, None] + jnp.arange(n)[None]
    slot = jnp.broadcast_to(jnp.minimum(at, slots - 1)[:, None], (b, n, n))
    return jnp.take_along_axis(full, slot, axis=2) & (at < slots)[:, None]


def parents_of(ancestors: Bool[Array, "B N N"]) -> Int[Array, "B N"]:
    """The parent of each node: its last strict ancestor, or -1 if it has none."""
    n = ancestors.shape[1]
    nodes = jnp.arange(n, dtype=jnp.int32)
    strict = ancestors & (nodes[None] < nodes[:, None])[None]
    return jnp.where(strict, nodes[None, None], -1).max(-1)
