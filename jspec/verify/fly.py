"""FLy: forgives a refused draft if those after it pass. Lossy."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from jspec.rounds import Proposal, Verdict
from jspec.verify.laws import (
    Law,
    ahead_of,
    coins_of,
    conclude,
    law_rows,
    mass_at,
    odds_of,
    offered,
    residual,
)

__all__ = ["top_entropy", "verify_fly"]


def top_entropy(p: Float[Array, "*S V"], top: int) -> Float[Array, "*S"]:
    """`-sum p ln p` over the `top` likeliest tokens, not renormalised."""
    best, _ = jax.lax.top_k(p, min(top, p.shape[-1]))
    return -(best * jnp.log(jnp.where(best > 0, best, 1))).sum(-1)


def verify_fly(
    keys: Key[Array, " B"],
    p: Float[Array, "B N V"],
    proposal: Proposal,
    *,
    window: int,
    unsure: Bool[Array, "B N"],
    belief: Float[Array, "B N V"] | None = None,
) -> Verdict:
    """Deferred verification of a chain (FLy, as vLLM 0.33 runs it).

    Every draft is tested as by standard verification. One that fails where the target
    is unsure is forgiven if the `window` drafts after it all pass: then the text
    differs from what the target would have said, but goes on as the target would.
    Otherwise the text ends there, and what follows is drawn as by the standard rule.
    Not the target's law.

    Args:
      keys: one key per row, consumed.
      p: the target's law for the successor of each node.
      proposal: a chain; `q` as for `verify`.
      window: drafts that must pass after a forgiven one.
      unsure: nodes whose successor may be forgiven.
      belief: what the target gives to each token, where `p` is a point mass that says
        only which is likeliest; a token of no probability is never forgiven. `None`:
        `p`.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    u, recover, bonus = coins_of(keys, tokens.shape[1])
    belief = p if belief is None else belief
    known = jax.vmap(ahead_of)(belief, tokens) > 0
    forgivable = unsure[:, :-1] & known

    def walk(*row: Any) -> tuple[Array, Array, Array]:
        return _walk(*row, window=window)

    kept, r, refused = jax.vmap(walk)(
        u, p, law_rows(proposal), tokens, parent, forgivable
    )
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))


def _walk(
    u: Array,
    p: Array,
    q: Law,
    tokens: Array,
    parent: Array,
    forgivable: Array,
    *,
    window: int,
) -> tuple[Array, Array, Array]:
    n = tokens.shape[0]
    drafted = tokens[1:]
    of_drafts = jax.tree.map(lambda a: a[1:], q)
    ahead = ahead_of(p, tokens)
    mass = mass_at(of_drafts, drafted)
    linked = jnp.cumprod(parent[1:] == jnp.arange(n - 1)).astype(bool)
    passed = linked & (u[1:] < odds_of(ahead, mass))
    ahead_all = jnp.pad(passed, (0, window + 1))
    place = jnp.arange(n - 1)[:, None] + 1 + jnp.arange(window)[None]
    forgiven = linked & forgivable & (mass > 0) & ahead_all[place].all(1)

    def visit(going: Array, node: Any) -> tuple[Array, Array]:
        passed, forgiven = node
        going &= passed | forgiven
        return going, going

    _, kept = jax.lax.scan(visit, jnp.bool_(True), (passed, forgiven))
    last = kept.sum(dtype=jnp.int32)
    following = jnp.minimum(last + 1, n - 1)
    refused = (last < n - 1) & (parent[following] == last)
    against = jax.tree.map(lambda a: a[following], q)
    left = residual(p[last], against, tokens[following], p[last])
    r = jnp.where(refused, left, p[last])
    return jnp.append(True, kept), r, refused
