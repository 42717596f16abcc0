"""What speculative sampling on a chain means, from logits, in plain `jnp`."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.lse import summarise
from jspec.pallas.residual_draw.reference import residual_draw

__all__ = ["rejection_verify"]


def rejection_verify(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    coins: Float[Array, "B G"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B N V"] | None = None,
) -> tuple[Int[Array, " B"], Int[Array, " B"], Bool[Array, " B"]]:
    """Speculative sampling (Leviathan et al. 2023, Algorithm 1) with given noise.

    A draft `x` is kept where `coin * q(x) < p(x)`; the first that is refused leaves
    `norm(max(0, p - q))` to the token after the kept ones. At temperature 0 the law is
    a point mass on the likeliest token, the lowest id among equals.

    Args:
      logits: the target's, for the successor of each node.
      temperature: of each row.
      tokens: the anchor, then the drafts.
      parent: the node before each, or `DEAD`: not offered, nor what follows it.
      coins: of each draft, in `[0, 1)`; the anchor has none.
      uniform: for the last token, in `[0, 1)`.
      q: the law each node was drawn from; `None`: drafting was certain.

    Returns:
      how many drafts are kept; the token after them; whether its row has a law: where
      not (a logit that is `inf` or not a number, or none above `-inf`), it means
      nothing.
    """
    b, n, _ = logits.shape
    hot = temperature > 0
    warmth = jnp.where(hot, temperature, 1)
    rows = summarise(logits.astype(jnp.float32) / warmth[:, None, None])
    drafted = tokens[:, 1:, None]
    own = jnp.take_along_axis(logits[:, :-1], drafted, axis=2)[..., 0]
    chance = jnp.exp(own.astype(jnp.float32) / warmth[:, None] - rows.lse[:, :-1])
    wins = (rows.best[:, :-1] == tokens[:, 1:]).astype(jnp.float32)
    chance = jnp.where(hot[:, None], chance, wins)
    bar = coins
    if q is not None:
        bar = coins * jnp.take_along_axis(q[:, 1:], drafted, axis=2)[..., 0]
    offered = parent[:, 1:] == jnp.arange(n - 1)[None]
    sound = jnp.isfinite(rows.top)
    passed = offered & (bar < chance) & sound[:, :-1]
    accepted = jnp.cumprod(passed, axis=1).sum(1, dtype=jnp.int32)

    def at(a: Array, node: Array) -> Array:
        index = node.reshape(b, *(1,) * (a.ndim - 1))
        return jnp.take_along_axis(a, index, axis=1)[:, 0]

    after = jnp.minimum(accepted + 1, n - 1)
    refused = (accepted < n - 1) & at(jnp.pad(offered, ((0, 0), (0, 1))), accepted)
    against = None
    if q is not None:
        against = jnp.where(refused[:, None], at(q, after), 0)
    drawn = residual_draw(
        at(logits, accepted),
        uniform,
        q=against,
        token=None if q is not None else jnp.where(refused, at(tokens, after), -1),
        lse=at(rows.lse, accepted),
        temperature=warmth,
    )
    bonus = jnp.where(hot, drawn, at(rows.best, accepted))
    return accepted, bonus, at(sound, accepted)
