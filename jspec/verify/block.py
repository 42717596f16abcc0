"""Block verification (Sun et al. 2024, arXiv:2403.10444): a block is judged as one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jspec.rounds import Proposal, Verdict
from jspec.verify.laws import (
    Law,
    ahead_of,
    coins_of,
    conclude,
    law_rows,
    mass_at,
    offered,
    residual,
)

__all__ = ["judge_block", "verify_block"]


def verify_block(
    keys: Key[Array, " B"], p: Float[Array, "B N V"], proposal: Proposal
) -> Verdict:
    """Block verification of a chain (Sun et al. 2024, Algorithm 2).

    As exact as token-by-token verification, and it keeps at least as many tokens in
    expectation: a prefix is worth `w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i))`, so what
    an unlikely token costs may be made good by a later one. With the mass that the
    prefix leaves to others, `m_i = sum_x max(0, w_i p_{i+1}(x) - q_{i+1}(x))`, every
    prefix passes on its own with probability `h_i = m_i / (m_i + 1 - w_i)`, the whole
    block with `h_n = w_n`. The longest prefix that passes is kept, and what follows it
    is drawn from `norm(max(0, w_i p_{i+1} - q_{i+1}))`.

    Worths are multiplied as logarithms, so that a product of ratios neither under-
    nor overflows. A block ends before its first node that is not offered. Where it
    ends may depend on the tokens before, not on those that would have followed.

    Args:
      keys: one key per row, consumed.
      p: the target's law for the successor of each node.
      proposal: a chain; `q` as for `verify`.
    """
    tokens, parent = offered(proposal, p.shape[-1])
    u, recover, bonus = coins_of(keys, tokens.shape[1])
    kept, r, refused, _ = jax.vmap(judge_block)(
        u, p, law_rows(proposal), tokens, parent
    )
    return Verdict(kept=kept, bonus=conclude(recover, bonus, refused, r))


def judge_block(
    u: Array, p: Array, q: Law, tokens: Array, parent: Array
) -> tuple[Array, Array, Array, Array]:
    """`verify_block` of one row, given its coins; its results are `walk_tree`'s.

    Chances are those with which each prefix passes on its own.
    """
    n = tokens.shape[0]
    drafted = tokens[1:]
    of_drafts = jax.tree.map(lambda a: a[1:], q)
    linked = jnp.cumprod(parent[1:] == jnp.arange(n - 1)).astype(bool)
    last = linked.sum(dtype=jnp.int32)
    ahead = ahead_of(p, tokens)
    worth = _worth(ahead, mass_at(of_drafts, drafted))
    left = _left(jnp.exp(worth[:-1]), p, of_drafts, ahead)
    nodes = jnp.arange(n)
    bound = left - jnp.expm1(worth[:-1])
    none = bound <= 0
    inner = jnp.where(none, 1, left / jnp.where(none, 1, bound))
    odds = jnp.where(nodes == last, jnp.exp(worth), jnp.append(inner, 0))
    odds = jnp.where(nodes > last, 0, odds).at[0].set(1)
    kept = jnp.max(jnp.where(u < odds, nodes, 0).at[0].set(0)).astype(jnp.int32)
    refused = kept < last
    following = jnp.minimum(kept + 1, n - 1)
    against = jax.tree.map(lambda a: a[following], q)
    scaled = p[kept] if q is None else jnp.exp(worth[kept]) * p[kept]
    recovery = residual(scaled, against, tokens[following], p[kept])
    return nodes <= kept, jnp.where(refused, recovery, p[kept]), refused, odds


def _worth(p: Array, q: Array) -> Array:
    """Logarithms of the worth of every prefix, the empty one first.

    A token that its own law rules out was drawn from another; the target decides.
    """
    ratio = jnp.where(q > 0, jnp.log(p) - jnp.log(jnp.where(q > 0, q, 1)), 0)
    ratio = jnp.where(p > 0, ratio, -jnp.inf)

    def step(worth: Array, ratio: Array) -> tuple[Array, Array]:
        worth = jnp.minimum(worth + ratio, 0)
        return worth, worth

    _, worth = jax.lax.scan(step, jnp.zeros((), p.dtype), ratio)
    return jnp.append(jnp.zeros((), p.dtype), worth)


def _left(worth: Array, p: Array, q: Law, ahead: Array) -> Array:
    """`m_i`: what each prefix leaves to tokens that `q` offers less of."""
    if q is None:
        return worth * jnp.maximum(1 - ahead, 0)
    if isinstance(q, tuple):
        ids, probs = q
        nodes = jnp.arange(ids.shape[0])[:, None]
        shared = jnp.minimum(worth[:, None] * p.at[nodes, ids].get(), probs)
        return jnp.maximum(worth * p.sum(-1)[:-1] - shared.sum(-1), 0)
    return jnp.maximum(worth[:, None] * p[:-1] - q, 0).sum(-1)
