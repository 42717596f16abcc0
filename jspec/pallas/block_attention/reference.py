"""What a draft block's attention means, in plain `jnp`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["block_attention"]

LOWEST = -1e30
"""A score no token has: finite, so that a fully masked block gives no NaN."""


def block_attention(
    q: Float[Array, "B N H D"],
    k: Float[Array, "B N K D"],
    v: Float[Array, "B N K D"],
    k_pages: Float[Array, "P K S D"],
    v_pages: Float[Array, "P K S D"],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    *,
    causal: bool,
    window: int | None,
    reach: int | None,
    scale: float,
    block_pages: int,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B N H D"]:
    """Softmax attention to committed slots, and to a block that is never written.

    Node `n` stands at position `length + n`. It sees the committed slots, and of the
    block all nodes, or those up to itself if `causal`. The block's keys come as
    arguments, so drafting leaves the pages as they were. Of the context only blocks
    within reach are read, each row's from its own first one on: the cost follows
    what can be seen, and a row's result does not depend on its neighbours.

    Args:
      q: queries, rotated.
      k: the block's own keys, rotated.
      v: the block's own values.
      k_pages: the context's keys, rotated.
      v_pages: the context's values.
      table: pages of each row; an entry `P` is no page.
      length: committed tokens of each row.
      causal: whether a node is blind to the nodes behind it.
      window: how many positions away a node sees, itself included; `None`: all.
      reach: only so many of the newest committed slots are seen; `None`: all.
      scale: of the scores.
      block_pages: pages that one step reads.
      sinks: a score per head that takes weight and adds no value (attention sink).
    """
    b, n, h, d = q.shape
    heads, size = k_pages.shape[1:3]
    group, block = h // heads, block_pages * size
    nodes = jnp.arange(n)
    place = length[:, None] + nodes[None]
    queries = q.reshape(b, n, heads, group, d).transpose(0, 2, 1, 3, 4)
    queries = queries.reshape(b, heads, n * group, d).astype(k_pages.dtype)

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

    nearest = length if reach is None else jnp.minimum(length, reach)
    if window is not None:
        nearest = jnp.minimum(nearest, window - 1)
    first = (length - nearest) // block
    count = jnp.max(-(-length // block) - first)

    def visit(step: Array, carry: tuple[Array, Array, Array]):
        at = first + step
        columns = at[:, None] * block_pages + jnp.arange(block_pages)[None]
        pages = jnp.take_along_axis(table, columns, axis=1, mode="clip")
        slot = at[:, None] * block + jnp.arange(block)[None]
        held = jnp.repeat(pages < k_pages.shape[0], size, axis=1)
        held &= (slot < length[:, None]) & (slot >= (length - nearest)[:, None])
        seen = jnp.broadcast_to(held[:, None], (b, n, block))
        if window is not None:
            seen &= place[:, :, None] - slot[:, None] < window

        def rows(a: Array) -> Array:
            taken = a.at[pages].get(mode="clip").transpose(0, 2, 1, 3, 4)
            return taken.reshape(b, heads, block, d)

        values = jnp.where(held[:, None, :, None], rows(v_pages), 0)
        return fold(carry, rows(k_pages), values, seen)

    shape = queries.shape[:3]
    sink = jnp.full((h,), LOWEST) if sinks is None else sinks.astype(jnp.float32)
    top = jnp.tile(sink.reshape(1, heads, group), (b, 1, n))
    start = (top, (top > LOWEST).astype(jnp.float32), jnp.zeros((*shape, d)))
    apart = nodes[:, None] - nodes[None]
    among = apart >= 0 if causal else jnp.ones((n, n), bool)
    if window is not None:
        among &= jnp.abs(apart) < window
    own = [a.transpose(0, 2, 1, 3).astype(k_pages.dtype) for a in (k, v)]
    carry = fold(start, own[0], own[1], jnp.broadcast_to(among, (b, n, n)))
    _, total, mixed = jax.lax.fori_loop(0, count, visit, carry)
    out = (mixed / total[..., None]).reshape(b, heads, n, group, d)
    return out.transpose(0, 2, 1, 3, 4).reshape(b, n, h, d).astype(q.dtype)
