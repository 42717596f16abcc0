"""What greedy verification of a token tree means, in plain `jnp`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.rounds import DEAD, ROOT

__all__ = ["greedy_verify"]


def greedy_verify(
    logits: Float[Array, "B N V"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
) -> tuple[Bool[Array, "B N"], Int[Array, " B"], Bool[Array, " B"]]:
    """Walks each tree along the target's likeliest tokens.

    Each node's choice is the lowest id among its largest logits; of the children that
    carry their parent's choice, the first is kept. At a node without a law (a logit
    that is `inf` or not a number, or none above `-inf`) the walk ends.

    Args:
      logits: the target's, for the successor of each node.
      tokens: ids of the nodes.
      parent: of each node; `DEAD`: not offered.

    Returns:
      the nodes kept, the anchor among them; the choice of the last of them; and
      whether that one has a law: where not, the bonus means nothing.
    """
    x = jnp.where(jnp.isnan(logits), jnp.inf, logits)
    choice = jnp.argmax(x, axis=-1).astype(jnp.int32)
    sound = jnp.isfinite(jnp.take_along_axis(x, choice[..., None], axis=-1)[..., 0])

    def walk(choice, sound, tokens, parent):
        def visit(here, node):
            i, x, parent = node
            keep = (parent == here) & (parent != DEAD) & (x == choice[here])
            keep &= sound[here]
            return jnp.where(keep, i, here), keep

        nodes = jnp.arange(len(tokens), dtype=jnp.int32)
        drafted = (nodes[1:], tokens[1:], parent[1:])
        here, kept = jax.lax.scan(visit, jnp.int32(ROOT), drafted)
        return jnp.append(True, kept), choice[here], sound[here]

    return jax.vmap(walk)(choice, sound, tokens, parent)
