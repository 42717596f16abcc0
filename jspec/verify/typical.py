"""Typical acceptance (Medusa): keeps what the target might well have said. Lossy."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jspec.rounds import DEAD, Proposal, Verdict, ancestors_of
from jspec.verify.laws import coins_of, conclude, offered

__all__ = ["verify_typical"]


def verify_typical(
    keys: Key[Array, " B"],
    p: Float[Array, "B N V"],
    proposal: Proposal,
    *,
    epsilon: float = 0.09,
    delta: float = 0.3,
) -> Verdict:
    """Typical acceptance over a token tree (Medusa, Cai et al. 2024, §2.3.1).

    A token is kept if the target gives it more than `min(epsilon, delta exp(-H(p)))`:
    where the target is unsure, `H` is large and little is asked. The longest path of
    kept tokens wins, among equals the likeliest, then the first; the bonus is drawn
    from the target's law after it. Not the target's law, but for rows whose law is a
    point mass. The paper keeps every first token, which its target has chosen already:
    here that token is the anchor.

    Args:
      keys: one key per row, consumed.
      p: the target's law for the successor of each node.
      proposal: the drafted tree; its `q` is not read.
      epsilon: what is always enough, a probability.
      delta: what is enough where the target is sure, a probability.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    n = tokens.shape[1]
    above = jnp.maximum(parent, 0)
    entropy = -(p * jnp.log(jnp.where(p > 0, p, 1))).sum(-1)
    enough = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
    rows = jnp.arange(tokens.shape[0])[:, None]
    own = p.at[rows, above, tokens].get()
    passed = (parent != DEAD) & (own > jnp.take_along_axis(enough, above, axis=1))
    passed = passed.at[:, 0].set(True)
    ancestors = ancestors_of(jnp.where(passed, parent, DEAD))
    rooted = ancestors[:, :, 0]
    depth = jnp.where(rooted, ancestors.sum(-1), 0)
    score = jnp.where(passed & (own > 0), jnp.log(own), 0).at[:, 0].set(0)
    path = (ancestors * score[:, None]).sum(-1)
    longest = depth == depth.max(-1, keepdims=True)
    best = jnp.argmax(jnp.where(longest, path, -jnp.inf), axis=-1)
    kept = jnp.take_along_axis(ancestors, best[:, None, None], axis=1)[:, 0]
    _, recover, bonus = coins_of(keys, n)
    r = jnp.take_along_axis(p, best[:, None, None], axis=1)[:, 0]
    refused = jnp.zeros(best.shape, bool)
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))
