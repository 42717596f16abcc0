"""Verification that keeps drafts at given rates, whatever they are: for ablations."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jspec.rounds import Proposal, Verdict
from jspec.verify.laws import Law, coins_of, conclude, law_rows, offered, residual

__all__ = ["conditional_rates", "rates_of_length", "verify_synthetic"]


def rates_of_length(length: float, gamma: int) -> tuple[float, ...]:
    """Rates whose mean emitted length is `length`: ones, a fraction, zeros.

    Args:
      length: mean emitted tokens a round, the bonus included: 1..gamma + 1.
      gamma: how many rates.
    """
    whole = math.floor(length - 1)
    stairs = (1.0,) * whole + (length - 1 - whole,) + (0.0,) * gamma
    return stairs[:gamma]


def conditional_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """Of each position, given that those before it were kept; 0 after a 0."""
    before = (1.0, *rates)[: len(rates)]
    return tuple(
        own / one if one > 0 else 0.0 for own, one in zip(rates, before, strict=True)
    )


def verify_synthetic(
    keys: Key[Array, " B"],
    p: Float[Array, "B N V"],
    proposal: Proposal,
    *,
    rates: Sequence[float],
) -> Verdict:
    """Keeps the first `i` drafts of a chain with probability `rates[i - 1]`.

    Not the target's law: drafts are kept by a coin that never looks at them, to
    measure what an acceptance rate would be worth (as in vLLM 0.33). What follows a
    refused draft is drawn as standard verification would; on a row whose law is a
    point mass that is the target's choice, even if it was drafted.

    Args:
      keys: one key per row, consumed.
      p: the target's law for the successor of each node.
      proposal: a chain; nodes that are not offered are not kept.
      rates: from the first drafted token on, never rising; one for each, or more.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    n = tokens.shape[1]
    u, recover, bonus = coins_of(keys, n)
    odds = jnp.array(conditional_rates(rates)[: n - 1], p.dtype)

    def walk(u: Array, p: Array, q: Law, tokens: Array, parent: Array):
        linked = parent[1:] == jnp.arange(n - 1)
        kept = jnp.cumprod(linked & (u[1:] < odds)).astype(bool)
        last = kept.sum(dtype=jnp.int32)
        following = jnp.minimum(last + 1, n - 1)
        refused = (last < n - 1) & (parent[following] == last)
        against = jax.tree.map(lambda a: a[following], q)
        left = residual(p[last], against, tokens[following], p[last])
        r = jnp.where(refused, left, p[last])
        return jnp.append(True, kept), r, refused

    kept, r, refused = jax.vmap(walk)(u, p, law_rows(proposal), tokens, parent)
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))
