"""Speculative sampling: exact for greedy and sampled rows, on chains and trees."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.rounds import DEAD, ROOT, Proposal, Verdict
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

__all__ = ["verify", "verify_chain", "verify_greedy", "walk_chain", "walk_tree"]


def verify(
    keys: Key[Array, " B"], p: Float[Array, "B N V"], proposal: Proposal
) -> Verdict:
    """Speculative sampling over a token tree.

    Leviathan et al. 2023, Algorithm 1, on a chain; SpecInfer (Miao et al. 2024),
    Algorithm 2, on a tree. Standing at a node with the law `r` its successor must
    follow, each child `x ~ q` is kept with probability `min(1, r(x) / q(x))`;
    refused, it leaves `r <- norm(max(0, r - q))` to the next sibling. The emitted
    tokens follow the target's law exactly, whatever `q` is. A residual without mass
    (`r <= q` everywhere, which rounding alone can bring about) gives way to the law
    of the node itself.

    Args:
      keys: one key per row, consumed.
      p: the target's law for the successor of each node.
      proposal: the drafted tree.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    u, recover, bonus = coins_of(keys, tokens.shape[1])
    kept, r, refused, _ = jax.vmap(walk_tree)(u, p, law_rows(proposal), tokens, parent)
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))


def walk_tree(
    u: Array, p: Array, q: Law, tokens: Array, parent: Array
) -> tuple[Array, Array, Array, Array]:
    """`verify` of one row, given its coins.

    Returns:
      kept nodes; the law of the last token; whether that is a recovery; and the
      chance with which each node was kept when it was its turn, 0 if it never was.
    """

    def visit(carry: Any, node: Any) -> Any:
        here, r, refused = carry
        i, x, above, u = node
        own = jax.tree.map(lambda a: a[i], q)
        turn = above == here
        odds = jnp.where(turn, odds_of(r[x], mass_at(own, x)), 0)
        keep = u < odds
        left = residual(r, own, x, p[here])
        r = jnp.where(keep, p[i], jnp.where(turn, left, r))
        refused = ~keep & (turn | refused)
        return (jnp.where(keep, i, here), r, refused), (keep, odds)

    nodes = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    drafted = (nodes[1:], tokens[1:], parent[1:], u[1:])
    start = (jnp.int32(ROOT), p[ROOT], jnp.bool_(False))
    (_, r, refused), (kept, odds) = jax.lax.scan(visit, start, drafted)
    return jnp.append(True, kept), r, refused, jnp.append(1, odds)


def verify_chain(
    keys: Key[Array, " B"], p: Float[Array, "B N V"], proposal: Proposal
) -> Verdict:
    """`verify` where every node's parent is the node before it, or `DEAD`.

    All tests at once, then one residual, of the first refused node: the same coins,
    so the same tokens, and no pass over the vocabulary per node.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    u, recover, bonus = coins_of(keys, tokens.shape[1])
    kept, r, refused, _ = jax.vmap(walk_chain)(u, p, law_rows(proposal), tokens, parent)
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))


def walk_chain(
    u: Array, p: Array, q: Law, tokens: Array, parent: Array
) -> tuple[Array, Array, Array, Array]:
    """`walk_tree` of a chain; chances are told for every node, as if its turn came."""
    n = tokens.shape[0]
    drafted = tokens[1:]
    of_drafts = jax.tree.map(lambda a: a[1:], q)
    odds = odds_of(ahead_of(p, tokens), mass_at(of_drafts, drafted))
    linked = parent[1:] == jnp.arange(n - 1)
    odds = jnp.where(linked, odds, 0)
    kept = jnp.cumprod(u[1:] < odds).astype(bool)
    last = kept.sum(dtype=jnp.int32)
    following = jnp.minimum(last + 1, n - 1)
    refused = (last < n - 1) & (parent[following] == last)
    against = jax.tree.map(lambda a: a[following], q)
    left = residual(p[last], against, tokens[following], p[last])
    r = jnp.where(refused, left, p[last])
    return jnp.append(True, kept), r, refused, jnp.append(1, odds)


def verify_greedy(choice: Int[Array, "B N"], proposal: Proposal) -> Verdict:
    """`verify` at temperature 0, where each node's law is a point mass.

    Of the children that carry their parent's choice, the first is kept.

    Args:
      choice: the target's likeliest successor of each node.
      proposal: the drafted tree.
    """

    def walk(choice: Array, tokens: Array, parent: Array) -> tuple[Array, Array]:
        def visit(here: Array, node: Any) -> Any:
            i, x, above = node
            keep = (above == here) & (above != DEAD) & (x == choice[here])
            return jnp.where(keep, i, here), keep

        nodes = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        drafted = (nodes[1:], tokens[1:], parent[1:])
        here, kept = jax.lax.scan(visit, jnp.int32(ROOT), drafted)
        return jnp.append(True, kept), choice[here]

    kept, bonus = jax.vmap(walk)(choice, proposal.tokens, proposal.parent)
    return Verdict(kept=kept, bonus=bonus)
