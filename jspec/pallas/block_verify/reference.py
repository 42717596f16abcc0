"""What block verification of a chain means, from logits, in plain `jnp`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.pallas.lse import summarise
from jspec.pallas.residual_draw.reference import residual_draw

__all__ = ["block_verify"]


def block_verify(
    logits: Float[Array, "B N V"],
    temperature: Float[Array, " B"],
    tokens: Int[Array, "B N"],
    parent: Int[Array, "B N"],
    coins: Float[Array, "B G"],
    uniform: Float[Array, " B"],
    *,
    q: Float[Array, "B N V"] | None = None,
) -> tuple[Int[Array, " B"], Int[Array, " B"], Bool[Array, " B"]]:
    """Block verification (Sun et al. 2024, Algorithm 2) with given noise.

    With `w_0 = 1` and `w_i = min(1, w_{i-1} p(x_i) / q(x_i))`, the first `i` of `n`
    drafts pass with probability `m / (m + 1 - w_i)`, `m` the sum of `max(0, w_i p - q)`
    after them, and all `n` with `w_n`. The longest passing prefix is kept, and leaves
    `norm(max(0, w_i p - q))` to the token after it. At temperature 0 the law is a
    point mass on the likeliest token, and the rule is the standard one.

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
    b, n, v = logits.shape
    hot = temperature > 0
    warmth = jnp.where(hot, temperature, 1)
    rows = summarise(logits.astype(jnp.float32) / warmth[:, None, None])
    sound = jnp.isfinite(rows.top)
    drafted = tokens[:, 1:]
    own = jnp.take_along_axis(logits[:, :-1], drafted[..., None], axis=2)[..., 0]
    own = own.astype(jnp.float32) / warmth[:, None] - rows.lse[:, :-1]
    wins = (rows.best[:, :-1] == drafted).astype(jnp.float32)
    chance = jnp.where(hot[:, None], jnp.exp(own), wins)
    chance = jnp.where(sound[:, :-1], chance, jnp.nan)
    ratio = chance
    if q is not None:
        drawn = jnp.take_along_axis(q[:, 1:], drafted[..., None], axis=2)[..., 0]
        ratio = jnp.where(drawn > 0, chance / jnp.where(drawn > 0, drawn, 1), 0)
    offered = parent[:, 1:] == jnp.arange(n - 1)[None]
    offered = jnp.cumprod(offered, axis=1).astype(bool)
    end = offered.sum(1, dtype=jnp.int32)

    def grow(weight: Array, ratio: Array) -> tuple[Array, Array]:
        weight = jnp.minimum(weight * ratio, 1)
        return weight, weight

    ones = jnp.ones((b,), jnp.float32)
    _, weight = jax.lax.scan(grow, ones, ratio.T)
    weight = jnp.concatenate([ones[:, None], weight.T], axis=1)

    if q is None:
        rest = jnp.where(hot[:, None], jnp.maximum(-jnp.expm1(own), 0), 1 - wins)
        mass = weight[:, :-1] * rest
    else:
        p = logits.astype(jnp.float32) / warmth[:, None, None] - rows.lse[..., None]
        point = jax.nn.one_hot(rows.best, v, dtype=jnp.float32)
        p = jnp.where(hot[:, None, None], jnp.exp(p), point)[:, :-1]
        mass = jnp.maximum(weight[:, :-1, None] * p - q[:, 1:], 0).sum(-1)
    room = mass + 1 - weight[:, :-1]
    inner = jnp.where(room > 0, mass / jnp.where(room > 0, room, 1), 1)
    inner = jnp.where(jnp.isnan(mass), jnp.nan, inner)
    nodes = jnp.arange(n, dtype=jnp.int32)[None]
    bar = jnp.pad(inner, ((0, 0), (0, 1)))
    bar = jnp.where(nodes == end[:, None], weight, bar)[:, 1:]
    passed = (coins < bar) & (nodes[:, 1:] <= end[:, None])
    accepted = jnp.max(jnp.where(passed, nodes[:, 1:], 0), axis=1, initial=0)

    def at(a: Array, node: Array) -> Array:
        index = node.reshape(b, *(1,) * (a.ndim - 1))
        return jnp.take_along_axis(a, index, axis=1)[:, 0]

    after = jnp.minimum(accepted + 1, n - 1)
    refused = accepted < end
    logit = at(logits, accepted)
    if q is None:
        token = jnp.where(refused, at(tokens, after), -1)
        left = residual_draw(
            logit, uniform, token=token, lse=at(rows.lse, accepted), temperature=warmth
        )
    else:
        # The weight is no part of a law, and the draw does not ask for one.
        law = jnp.exp(
            logit.astype(jnp.float32) / warmth[:, None]
            - at(rows.lse, accepted)[:, None]
        )
        scale = jnp.where(refused, at(weight, accepted), 1)[:, None]
        against = jnp.where(refused[:, None], at(q, after), 0)
        left = residual_draw(law * scale, uniform, q=against)
    bonus = jnp.where(hot, left, at(rows.best, accepted))
    return accepted, bonus, at(sound, accepted)
