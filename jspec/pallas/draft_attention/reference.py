"""What a growing draft's attention means, in plain `jnp`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

__all__ = ["draft_attention"]

LOWEST = -1e30
"""A score no token has: finite, so that a fully masked block gives no NaN."""


def draft_attention(
    q: Float[Array, "B M H D"],
    k: Float[Array, "B N K D"],
    v: Float[Array, "B N K D"],
    k_pages: Float[Array, "P K S D"],
    v_pages: Float[Array, "P K S D"],
    table: Int[Array, "B columns"],
    length: Int[Array, " B"],
    *,
    seen: Bool[Array, "B M N"],
    place: Int[Array, "B M"],
    first: int,
    window: int | None,
    sink: int,
    scale: float,
    block_pages: int,
) -> Float[Array, "B M H D"]:
    """Softmax attention of some nodes to the committed slots and to drafted nodes.

    A draft grows node by node or level by level: the keys of all its nodes come as
    arguments, and only the newest ones ask. The pages stay as they were, so a draft
    that is thrown away leaves nothing behind. A node that sees nothing gives zero.
    Of the context only blocks within reach are read, each row's from its own first
    one on: a row's result does not depend on its neighbours.

    Args:
      q: queries, rotated.
      k: keys of all drafted nodes, rotated; those not yet drafted are never seen.
      v: their values.
      k_pages: committed keys, rotated.
      v_pages: committed values.
      table: pages of each row; an entry `P` is no page.
      length: slots before it are committed.
      seen: which nodes each query sees.
      place: where each query stands: a slot `s` is `place - s` back.
      first: the first slot that holds something.
      window: how many places back a query sees, itself included; `None`: all.
      sink: so many of the first slots are seen from everywhere.
      scale: of the scores.
      block_pages: pages that one step reads.
    """
    b, m, h, d = q.shape
    heads, size = k_pages.shape[1:3]
    group, block = h // heads, block_pages * size
    queries = q.reshape(b, m, heads, group, d).transpose(0, 2, 1, 3, 4)
    queries = queries.reshape(b, heads, m * group, d).astype(k_pages.dtype)

    def fold(carry: tuple[Array, Array, Array], k: Array, v: Array, seen: Array):
        top, total, mixed = carry
        scores = jnp.einsum(
            "bhqd,bhtd->bhqt", queries, k, preferred_element_type=jnp.float32
        )
        seen = jnp.repeat(seen, group, axis=1)[:, None]
        scores = jnp.where(seen, scores * scale, LOWEST)
        higher = jnp.maximum(top, scores.max(-1))
        fade = jnp.exp(top - higher)
        weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0)
        mixed = mixed * fade[..., None] + jnp.einsum(
            "bhqt,bhtd->bhqd",
            weights.astype(v.dtype),
            v,
            preferred_element_type=jnp.float32,
        )
        return higher, total * fade + weights.sum(-1), mixed

    nearest = length if window is None else jnp.minimum(length, window - 1)
    begin = (length - nearest) // block
    steps = jnp.max(-(-length // block) - begin)

    def read(at: Array, carry: tuple[Array, Array, Array], *, sinks: bool):
        columns = at[:, None] * block_pages + jnp.arange(block_pages)[None]
        pages = jnp.take_along_axis(table, columns, axis=1, mode="clip")
        slot = at[:, None] * block + jnp.arange(block)[None]
        held = jnp.repeat(pages < k_pages.shape[0], size, axis=1)
        held &= (columns < table.shape[1]).repeat(size, axis=1)
        held &= (slot < length[:, None]) & (slot >= first)
        near = jnp.ones((b, m, block), bool)
        if window is not None:
            near = place[:, :, None] - slot[:, None] < window
        if sinks:
            near = ~near & (slot < first + sink)[:, None]

        def rows(a: Array) -> Array:
            taken = a.at[pages].get(mode="clip").transpose(0, 2, 1, 3, 4)
            return taken.reshape(b, heads, block, d)

        values = jnp.where(held[:, None, :, None], rows(v_pages), 0)
        return fold(carry, rows(k_pages), values, held[:, None] & near)

    shape = queries.shape[:3]
    carry = (
        jnp.full(shape, LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, d), jnp.float32),
    )
    own = [a.transpose(0, 2, 1, 3).astype(k_pages.dtype) for a in (k, v)]
    carry = fold(carry, own[0], own[1], seen)
    if window is not None and sink:
        for at in range(-(-(first + sink) // block)):
            carry = read(jnp.full((b,), at), carry, sinks=True)
    _, total, mixed = jax.lax.fori_loop(
        0, steps, lambda step, carry: read(begin + step, carry, sinks=False), carry
    )
    out = mixed / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)[..., None]
    out = out.reshape(b, heads, m, group, d).transpose(0, 2, 1, 3, 4)
    return out.reshape(b, m, h, d).astype(q.dtype)
