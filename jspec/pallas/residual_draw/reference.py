"""What a draw from what two laws leave means, in plain `jnp`."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.sampling import GROUP, seek

__all__ = ["residual_draw"]


def residual_draw(
    p: Float[Array, "B V"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B V"] | None = None,
    token: Int[Array, " B"] | None = None,
    lse: Float[Array, " B"] | None = None,
    temperature: Float[Array, " B"] | None = None,
) -> Int[Array, " B"]:
    """Draws one token a row from `norm(max(0, p - q))`, by inverse CDF.

    Sums of neighbours first, then one group of them: a uniform a row, and no random
    number a token. A row where nothing is left draws from `p` instead. A token without
    weight is never drawn.

    Args:
      p: a law; with `lse`, logits.
      uniform: in `[0, 1)`.
      q: the law to subtract.
      token: instead, the id that `q` is certain of; -1: nothing is subtracted.
      lse: the logarithm of the sum of exponentials of `p` over `temperature`.
      temperature: above 0; `None`: 1.
    """
    b, v = p.shape
    width = math.gcd(v, GROUP)
    groups = (b, v // width, width)

    def laws(p: Array, q: Array | None, ids: Array) -> tuple[Array, Array]:
        law = p.astype(jnp.float32)
        if lse is not None:
            hot = jnp.ones_like(lse) if temperature is None else temperature
            law = jnp.exp(law / hot[:, None, None] - lse[:, None, None])
        if q is not None:
            return law, jnp.maximum(law - q.astype(jnp.float32), 0)
        if token is not None:
            return law, jnp.where(ids == token[:, None, None], 0, law)
        return law, law

    def group(a: Array, place: Array) -> Array:
        return jnp.take_along_axis(a, place[:, None, None], axis=1)

    p = p.reshape(groups)
    q = None if q is None else q.reshape(groups)
    ids = jnp.arange(v, dtype=jnp.int32).reshape(1, *groups[1:])
    law, left = (a.sum(-1) for a in laws(p, q, ids))
    bare = ~(left.sum(-1) > 0)
    sums = jnp.where(bare[:, None], law, left)
    place, share = seek(sums, uniform * sums.sum(-1))
    ids = jnp.broadcast_to(ids, groups)
    here = group(ids, place)
    law, left = laws(group(p, place), None if q is None else group(q, place), here)
    weights = jnp.where(bare[:, None, None], law, left)[:, 0]
    column, _ = seek(weights, share * weights.sum(-1))
    return place * width + column
