"""What a draw from what two laws leave means, in plain `jnp`."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.sampling import inverse_cdf

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
    law = p.astype(jnp.float32)
    if lse is not None:
        hot = jnp.ones_like(lse) if temperature is None else temperature
        law = jnp.exp(law / hot[:, None] - lse[:, None])
    left = law
    if q is not None:
        left = jnp.maximum(law - q.astype(jnp.float32), 0)
    elif token is not None:
        left = jnp.where(jnp.arange(p.shape[1])[None] == token[:, None], 0, law)
    bare = ~(left.sum(-1, keepdims=True) > 0)
    return inverse_cdf(jnp.where(bare, law, left), uniform)
