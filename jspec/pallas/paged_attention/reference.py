"""What attention over a paged cache means, in plain `jnp`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

__all__ = ["paged_attention"]

LOWEST = -1e30
"""A score no token has: finite, so that a fully masked block gives no NaN."""


def paged_attention(
    q: Float[Array, "B N H D"],
    k_pages: Float[Array, "P K S D"],
    v_pages: Float[Array, "P K S D"],
    table: Int[Array, "B M"],
    length: Int[Array, " B"],
    *,
    ancestors: Bool[Array, "B N N"] | None,
    window: int | None,
    scale: float,
    block_pages: int,
    cap: float | None = None,
) -> Float[Array, "B N H D"]:
    """Softmax attention by blocks of pages (Milakov and Gimelshein 2018).

    Node `n` of a row stands in slot `length + n` and sees every slot below `length`
    and, among the nodes, its ancestors and itself. The loop runs to the longest row,
    so its cost follows the context in use and not the room; blocks lie at fixed
    positions, so a row's result depends neither on its neighbours nor on how many
    nodes are asked about at once.

    Args:
      q: queries, rotated.
      k_pages: keys, rotated.
      v_pages: values.
      table: pages of each row; an entry `P` is no page, and what it would hold is
        never seen by a node whose own slots have pages.
      length: committed tokens of each row.
      ancestors: `None`: a chain, where node `n` descends from all nodes before it.
      window: how many positions back a node sees, itself included; `None`: all.
      scale: of the scores.
      block_pages: pages of one block; divides the table's width.
      cap: scores are `cap * tanh(score / cap)` (Gemma 2, arXiv:2408.00118, §2);
        `None`: as they are.
    """
    b, n, h, d = q.shape
    heads, size = k_pages.shape[1:3]
    group = h // heads
    block = block_pages * size
    if table.shape[1] % block_pages:
        raise ValueError(
            f"a table of {table.shape[1]} pages is not whole blocks of {block_pages}"
        )
    nodes = jnp.arange(n)
    depth = (
        jnp.broadcast_to(nodes, (b, n))
        if ancestors is None
        else ancestors.sum(-1, dtype=jnp.int32) - 1
    )
    place = length[:, None] + depth
    queries = q.reshape(b, n, heads, group, d).transpose(0, 2, 1, 3, 4)
    queries = queries.reshape(b, heads, n * group, d).astype(k_pages.dtype)
    lone = n * group == 1
    if lone:
        queries = jnp.pad(queries, ((0, 0), (0, 0), (0, 1), (0, 0)))

    def visible(start: Array) -> Array:
        slot = start + jnp.arange(block)
        node = slot[None] - length[:, None]
        if ancestors is None:
            seen = node[:, None] <= nodes[None, :, None]
            where = jnp.broadcast_to(slot[None], (b, block))
        else:
            among = (node >= 0) & (node < n)
            index = jnp.clip(node, 0, n - 1)
            related = jnp.take_along_axis(
                ancestors, jnp.broadcast_to(index[:, None], (b, n, block)), axis=2
            )
            seen = (node < 0)[:, None] | (among[:, None] & related)
            at_depth = length[:, None] + jnp.take_along_axis(depth, index, axis=1)
            where = jnp.where(node < 0, slot[None], at_depth)
        if window is not None:
            seen &= place[:, :, None] - where[:, None] < window
        return seen

    def visit(step: Array, carry: tuple[Array, Array, Array]):
        top, total, mixed = carry
        pages = jax.lax.dynamic_slice_in_dim(
            table, step * block_pages, block_pages, axis=1
        )

        def rows(a: Array) -> Array:
            taken = a.at[pages].get(mode="clip").transpose(0, 2, 1, 3, 4)
            return taken.reshape(b, heads, block, d)

        k, v = rows(k_pages), rows(v_pages)
        written = step * block + jnp.arange(block)[None] < length[:, None] + n
        written &= jnp.repeat(pages < k_pages.shape[0], size, axis=1)
        v = jnp.where(written[:, None, :, None], v, 0)
        scores = jnp.einsum(
            "bhqd,bhtd->bhqt", queries, k, preferred_element_type=jnp.float32
        )
        seen = jnp.repeat(visible(step * block), group, axis=1)[:, None]
        if lone:
            seen = jnp.pad(seen, ((0, 0), (0, 0), (0, 1), (0, 0)))
        scores *= scale
        if cap is not None:
            scores = cap * jnp.tanh(scores / cap)
        scores = jnp.where(seen, scores, LOWEST)
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

    shape = queries.shape[:3]
    start = (
        jnp.full(shape, LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, d), jnp.float32),
    )
    blocks = jnp.minimum(-(-(length.max() + n) // block), table.shape[1] // block_pages)
    _, total, mixed = jax.lax.fori_loop(0, blocks, visit, start)
    out = mixed / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)[..., None]
    out = out[:, :, : n * group].reshape(b, heads, n, group, d)
    return out.transpose(0, 2, 1, 3, 4).reshape(b, n, h, d).astype(q.dtype)
