"""Attention in the open: every anchor of a text at once, with gradients."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.tree import pytree

__all__ = ["Seen", "causal", "mix", "near"]

LOWEST = -1e30
"""A score that nothing has: finite, so that a row which sees nothing gives no NaN."""


@pytree
class Seen:
    """Keys and values of one kind, and which rows see them.

    Attributes:
      k: keys, rotated; of a text, or of each anchor.
      v: values.
      seen: of row `w` of anchor `a`; the last axis is that of the keys.
    """

    k: Float[Array, "B T K D"] | Float[Array, "B A N K D"]
    v: Float[Array, "B T K D"] | Float[Array, "B A N K D"]
    seen: Bool[Array, "#B #A W M"]


def mix(
    q: Float[Array, "B A W H D"], kinds: tuple[Seen, ...]
) -> Float[Array, "B A W H D"]:
    """Softmax attention of the rows of every anchor, over all kinds of keys at once.

    Keys of a text are shared by its anchors; keys of an anchor are its own drafts'.
    """
    b, a, w, h, d = q.shape
    heads = kinds[0].k.shape[-2]
    queries = q.reshape(b, a, w, heads, h // heads, d)
    scores, sizes = [], []
    for kind in kinds:
        shared = "t" if kind.k.ndim == 4 else "an"
        found = jnp.einsum(
            f"bawkgd,b{shared}kd->bawkg{shared[-1]}",
            queries,
            kind.k.astype(q.dtype),
            preferred_element_type=jnp.float32,
        )
        found = jnp.where(kind.seen[:, :, :, None, None], found * d**-0.5, LOWEST)
        scores.append(found)
        sizes.append(found.shape[-1])
    law = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(q.dtype)
    mixed = jnp.zeros((b, a, w, heads, h // heads, d), jnp.float32)
    start = 0
    for kind, size in zip(kinds, sizes, strict=True):
        shared = "t" if kind.k.ndim == 4 else "an"
        mixed += jnp.einsum(
            f"bawkg{shared[-1]},b{shared}kd->bawkgd",
            law[..., start : start + size],
            kind.v.astype(q.dtype),
            preferred_element_type=jnp.float32,
        )
        start += size
    return mixed.reshape(b, a, w, h, d).astype(q.dtype)


def causal(
    anchors: Int[Array, "B A"],
    depth: Int[Array, " W"],
    length: int,
    *,
    own: bool,
    first: int = 0,
    window: int | None = None,
    sink: int = 0,
) -> Bool[Array, "B A W T"]:
    """Which slots of its text each row sees: those before its anchor.

    Args:
      anchors: positions of the anchors.
      depth: how far behind its anchor each row stands.
      length: slots of a text.
      own: whether the anchor's own slot is seen too.
      first: the first slot that can be seen.
      window: how many slots back a row sees, itself included; `None`: all.
      sink: so many of the first slots are seen past the window.
    """
    slots = jnp.arange(length)[None, None, None]
    seen = slots < (anchors + own)[:, :, None, None]
    seen &= slots >= first
    if window is not None:
        place = anchors[:, :, None, None] + depth[None, None, :, None]
        seen &= (place - slots < window) | (slots < first + sink)
    return jnp.broadcast_to(seen, (*anchors.shape, depth.shape[0], length))


def near(
    depth: Int[Array, " W"],
    others: Int[Array, " N"],
    *,
    window: int | None = None,
    blind: bool = True,
) -> Bool[Array, "1 1 W N"]:
    """Which of an anchor's own rows each row sees.

    Args:
      depth: how far behind the anchor each row stands.
      others: and those that may be seen.
      window: how many slots away a row sees, itself included; `None`: all.
      blind: whether it does not see those behind it.
    """
    apart = depth[:, None] - others[None]
    seen = apart >= 0 if blind else jnp.ones(apart.shape, bool)
    if window is not None:
        seen &= jnp.abs(apart) < window
    return seen[None, None]
