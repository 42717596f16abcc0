"""Which drafted tokens the target keeps: exact for greedy and for sampled rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.rounds import DEAD, ROOT, Proposal, Verdict

__all__ = ["verify", "verify_chain", "verify_greedy"]


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
    q = proposal.q
    if q is None:
        q = jax.nn.one_hot(proposal.tokens, p.shape[-1], dtype=p.dtype)
    kept, bonus = jax.vmap(_walk)(keys, p, q, proposal.tokens, proposal.parent)
    return Verdict(kept=kept, bonus=bonus)


def _streams(key: Array) -> tuple[Array, Array, Array]:
    accept, recover, bonus = jax.random.split(key, 3)
    return accept, recover, bonus


def _residual(r: Array, q: Array, law: Array) -> Array:
    left = jnp.maximum(r - q, 0)
    mass = left.sum(-1, keepdims=True)
    return jnp.where(mass > 0, left / jnp.where(mass > 0, mass, 1), law)


def _walk(key, p, q, tokens, parent):
    coins, recover, bonus = _streams(key)
    nodes = jnp.arange(len(tokens))
    u = jax.random.uniform(coins, tokens.shape)

    def visit(carry, node):
        here, r, fresh = carry
        i, x, parent, u, p_here, q = node
        offered = parent == here
        keep = offered & (u * q[x] < r[x])
        refused = offered & ~keep
        r = jnp.where(keep, p_here, jnp.where(refused, _residual(r, q, p[here]), r))
        fresh = jnp.where(keep, True, fresh & ~refused)
        return (jnp.where(keep, i, here), r, fresh), keep

    drafted = jax.tree.map(lambda a: a[1:], (nodes, tokens, parent, u, p, q))
    start = (jnp.int32(ROOT), p[ROOT], jnp.bool_(True))
    (_, r, fresh), kept = jax.lax.scan(visit, start, drafted)
    data = jnp.where(fresh, jax.random.key_data(bonus), jax.random.key_data(recover))
    final = jax.random.wrap_key_data(data, impl=jax.random.key_impl(bonus))
    drawn = jax.random.categorical(final, jnp.log(r)).astype(jnp.int32)
    return jnp.append(True, kept), drawn


def verify_chain(
    keys: Key[Array, " B"], p: Float[Array, "B N V"], proposal: Proposal
) -> Verdict:
    """`verify` where every node's parent is the node before it, or `DEAD`.

    All tests at once, then one residual, of the first refused node: the same coins,
    so the same tokens, and no pass over the vocabulary per node. A certain draft
    needs no dense `q`: its residual is the law without the drafted token.
    """
    tokens, q = proposal.tokens, proposal.q
    b, n = tokens.shape
    coins, recover, bonus = jax.vmap(_streams)(keys)
    u = jax.vmap(lambda key: jax.random.uniform(key, (n,)))(coins)[:, 1:]
    drafted = tokens[:, 1:]

    def of(law: Array) -> Array:
        return jnp.take_along_axis(law, drafted[..., None], axis=-1)[..., 0]

    def at(a: Array, i: Array) -> Array:
        return jnp.take_along_axis(a, i[:, None, None], axis=1)[:, 0]

    def pick(key: Array, row: Array) -> Array:
        return jax.random.categorical(key, jnp.log(row))

    chance = jnp.ones_like(u) if q is None else of(q[:, 1:])
    offered = proposal.parent[:, 1:] == jnp.arange(n - 1)[None]
    passed = offered & (u * chance < of(p[:, :-1]))
    kept = jnp.cumprod(passed, axis=1).astype(bool)
    last = kept.sum(1, dtype=jnp.int32)
    law = at(p, last)
    refused_node = jnp.minimum(last + 1, n - 1)
    refused = (last < n - 1) & jnp.take_along_axis(
        proposal.parent == (last[:, None]), refused_node[:, None], axis=1
    )[:, 0]
    token = jnp.take_along_axis(tokens, refused_node[:, None], axis=1)
    if q is None:
        columns = jnp.arange(p.shape[-1])[None]
        against = (columns == token).astype(p.dtype)
    else:
        against = at(q, refused_node)
    r = jnp.where(refused[:, None], _residual(law, against, law), law)
    data = jnp.where(
        refused[:, None], jax.random.key_data(recover), jax.random.key_data(bonus)
    )
    final = jax.random.wrap_key_data(data, impl=jax.random.key_impl(bonus))
    drawn = jax.vmap(pick)(final, r).astype(jnp.int32)
    ones = jnp.ones((b, 1), bool)
    return Verdict(kept=jnp.concatenate([ones, kept], axis=1), bonus=drawn)


def verify_greedy(choice: Int[Array, "B N"], proposal: Proposal) -> Verdict:
    """`verify` at temperature 0, where each node's law is a point mass.

    Of the children that carry their parent's choice, the first is kept.

    Args:
      choice: the target's likeliest successor of each node.
      proposal: the drafted tree.
    """

    def walk(choice, tokens, parent):
        def visit(here, node):
            i, x, parent = node
            keep = (parent == here) & (parent != DEAD) & (x == choice[here])
            return jnp.where(keep, i, here), keep

        nodes = jnp.arange(len(tokens), dtype=jnp.int32)
        drafted = (nodes[1:], tokens[1:], parent[1:])
        here, kept = jax.lax.scan(visit, jnp.int32(ROOT), drafted)
        return jnp.append(True, kept), choice[here]

    kept, bonus = jax.vmap(walk)(choice, proposal.tokens, proposal.parent)
    return Verdict(kept=kept, bonus=bonus)
