"""What every rule shares: a draft's law in three forms, coins, and the last draw."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jspec.rounds import DEAD, Proposal, SparseLaw
from jspec.sampling import draw

__all__ = [
    "Law",
    "ahead_of",
    "coins_of",
    "conclude",
    "law_rows",
    "mass_at",
    "odds_of",
    "offered",
    "residual",
]

type Law = Array | tuple[Array, Array] | None
"""The law of one node, or of several: dense; candidates and their probabilities; or
`None`, a point mass on the node's token."""


def offered(
    proposal: Proposal, width: int
) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
    """Tokens and parents, where a token that is not in the vocabulary is not offered.

    A placeholder such as -1 would otherwise be looked up at the vocabulary's end.
    """
    tokens = proposal.tokens
    real = (tokens >= 0) & (tokens < width)
    return jnp.where(real, tokens, 0), jnp.where(real, proposal.parent, DEAD)


def law_rows(proposal: Proposal) -> Law:
    """The proposal's `q`, with axes of its own for rows and nodes."""
    q = proposal.q
    if isinstance(q, SparseLaw):
        return jnp.broadcast_to(q.ids, q.probs.shape), q.probs
    return q


def ahead_of(p: Float[Array, "N V"], tokens: Int[Array, " N"]) -> Float[Array, " M"]:
    """What the target gives to each draft of a chain, `M = N - 1` of them."""
    at = jnp.arange(tokens.shape[0] - 1)
    return p.at[at, tokens[1:]].get(mode="promise_in_bounds")


def mass_at(q: Law, tokens: Int[Array, "*S"]) -> Float[Array, "*S"]:
    """What laws give to a token each; 1 where drafting was certain."""
    if q is None:
        return jnp.ones(tokens.shape)
    if isinstance(q, tuple):
        ids, probs = q
        return jnp.where(ids == tokens[..., None], probs, 0).sum(-1)
    return jnp.take_along_axis(q, tokens[..., None], axis=-1)[..., 0]


def odds_of(r: Float[Array, "*S"], q: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """The chance that a token is kept: `min(1, r / q)`, and 0 where `r` is.

    A token that its own law rules out was drawn from another; the target decides.
    """
    ratio = jnp.minimum(r / jnp.where(q > 0, q, 1), 1)
    return jnp.where(q > 0, ratio, (r > 0).astype(r.dtype))


def residual(
    r: Float[Array, " V"], q: Law, token: Int[Array, ""], law: Float[Array, " V"]
) -> Float[Array, " V"]:
    """`norm(max(0, r - q))` of one node; `law` where nothing is left.

    Nothing is left where `r <= q` everywhere, which rounding alone can bring about.
    """
    if q is None:
        left = r.at[token].set(0)
    elif isinstance(q, tuple):
        ids, probs = q
        left = jnp.maximum(r.at[ids].add(-probs), 0)
    else:
        left = jnp.maximum(r - q, 0)
    mass = left.sum()
    return jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1), law)


def coins_of(
    keys: Key[Array, " B"], nodes: int
) -> tuple[Float[Array, "B N"], Key[Array, " B"], Key[Array, " B"]]:
    """A coin for each node, and keys for the draw of a recovery and of a bonus."""
    streams = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    u = jax.vmap(lambda key: jax.random.uniform(key, (nodes,)))(streams[:, 0])
    return u, streams[:, 1], streams[:, 2]


def conclude(
    recover: Key[Array, " B"],
    bonus: Key[Array, " B"],
    refused: Bool[Array, " B"],
    r: Float[Array, "B V"],
) -> Int[Array, " B"]:
    """Draws the last token of each row; `r` need not sum to 1.

    A row that refused nothing draws what plain decoding draws with the same key.
    """
    flag = refused[:, None]
    words = jnp.where(flag, jax.random.key_data(recover), jax.random.key_data(bonus))
    keys = jax.random.wrap_key_data(words, impl=jax.random.key_impl(bonus))
    return draw(keys, r)
