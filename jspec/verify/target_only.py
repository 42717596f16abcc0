"""Verification that asks the target alone: the draft's law plays no part."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jspec.rounds import ROOT, Proposal, Verdict
from jspec.verify.laws import coins_of, conclude, offered

__all__ = ["verify_target_only", "walk_target_only"]


def verify_target_only(
    keys: Key[Array, " B"],
    p: Float[Array, "B N V"],
    proposal: Proposal,
    *,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> Verdict:
    """Keeps a child with the target's own probability of it.

    What SGLang 0.5 does on trees: with `s` the sum of the probabilities of a node's
    children up to `x`, in order, `x` is kept if a coin of the node falls below
    `s / threshold_acc`, or if `p(x)` reaches `threshold_single`. What no child was
    kept for is drawn from `p` without them. At thresholds of 1 the emitted tokens
    follow the target's law exactly, whatever drafted them; below 1 they do not.

    A child's chance is told given that its elder siblings were refused, and every
    node has a coin of its own: the same law as one coin for all children.

    Args:
      keys: one key per row, consumed.
      p: the target's law for the successor of each node.
      proposal: the drafted tree; its `q` is not read.
      threshold_single: a child of at least this probability is always kept.
      threshold_acc: what the children's probabilities are divided by.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    u, recover, bonus = coins_of(keys, tokens.shape[1])

    def walk(u: Array, p: Array, tokens: Array, parent: Array) -> Any:
        return walk_target_only(u, p, tokens, parent, threshold_single, threshold_acc)

    kept, r, refused, _ = jax.vmap(walk)(u, p, tokens, parent)
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))


def walk_target_only(
    u: Array,
    p: Array,
    tokens: Array,
    parent: Array,
    threshold_single: float,
    threshold_acc: float,
) -> tuple[Array, Array, Array, Array]:
    """`verify_target_only` of one row; its results are `walk_tree`'s."""

    def visit(carry: Any, node: Any) -> Any:
        here, left, spent, refused = carry
        i, x, above, u = node
        turn = above == here
        before = jnp.minimum(spent / threshold_acc, 1)
        after = jnp.minimum((spent + left[x]) / threshold_acc, 1)
        odds = jnp.where(before < 1, (after - before) / (1 - before), 1)
        odds = jnp.where(left[x] >= threshold_single, 1, jnp.minimum(odds, 1))
        odds = jnp.where(turn & (left[x] > 0), odds, 0)
        keep = u < odds
        without = left.at[x].set(0)
        spent = jnp.where(keep, 0, jnp.where(turn, spent + left[x], spent))
        left = jnp.where(keep, p[i], jnp.where(turn, without, left))
        refused = ~keep & (turn | refused)
        return (jnp.where(keep, i, here), left, spent, refused), (keep, odds)

    nodes = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    drafted = (nodes[1:], tokens[1:], parent[1:], u[1:])
    start = (jnp.int32(ROOT), p[ROOT], jnp.zeros((), p.dtype), jnp.bool_(False))
    (here, left, _, refused), (kept, odds) = jax.lax.scan(visit, start, drafted)
    r = jnp.where(left.sum() > 0, left, p[here])
    return jnp.append(True, kept), r, refused, jnp.append(1, odds)
