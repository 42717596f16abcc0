"""Rules by the operations of `jspec.pallas`: from logits, with one number a draw."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jspec.pallas.block_verify import block_verify
from jspec.pallas.choice import choose
from jspec.pallas.greedy_verify import greedy_verify
from jspec.pallas.rejection_verify import rejection_verify
from jspec.rounds import Proposal, SparseLaw, Verdict
from jspec.sampling import Sampling, law
from jspec.verify.laws import coins_of, offered

__all__ = ["judge_chain", "judge_greedy", "wanted"]

OPERATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"rejection_verify": rejection_verify, "block_verify": block_verify}
)
"""Operations that judge a chain."""


def wanted(operation: str, kernels: str | None) -> str | None:
    """The implementation of an operation; `None`: the rules of this package.

    These say the same, from laws instead of logits, and recover from another stream.
    """
    if kernels is None and choose(operation, None) == "reference":
        return None
    return choose(operation, kernels)


def judge_greedy(
    logits: Float[Array, "B N V"], proposal: Proposal, *, implementation: str
) -> Verdict:
    """`jspec.verify.verify_greedy` by the operation."""
    kept, bonus, _ = greedy_verify(
        logits, proposal.tokens, proposal.parent, implementation=implementation
    )
    return Verdict(kept=kept, bonus=bonus)


def judge_chain(
    operation: str,
    keys: Key[Array, " B"],
    logits: Float[Array, "B N V"],
    proposal: Proposal,
    sampling: Sampling,
    *,
    implementation: str,
) -> Verdict:
    """A chain by one of `OPERATIONS`; rows of temperature 0 among others.

    The coins are those of the rules of this package; the last token is drawn by
    inverse CDF from the key of the bonus, whether a draft was refused or not: a round
    draws one such token. Filters take tokens out of the logits. A sparse law is made
    dense, as the operations take it.

    Args:
      operation: which.
      keys: one a row, consumed.
      logits: of the successor of each node.
      proposal: the drafted chain.
      sampling: of each row.
      implementation: of the operation.
    """
    width = logits.shape[-1]
    tokens, parent = offered(proposal, width)
    coins, _, last = coins_of(keys, tokens.shape[1])
    accepted, bonus, _ = OPERATIONS[operation](
        _filtered(logits, sampling),
        sampling.temperature,
        tokens,
        parent,
        coins[:, 1:],
        jax.vmap(jax.random.uniform)(last),
        q=_dense(proposal.q, width),
        implementation=implementation,
    )
    nodes = jnp.arange(tokens.shape[1])[None]
    return Verdict(kept=nodes <= accepted[:, None], bonus=bonus)


def _filtered(logits: Array, sampling: Sampling) -> Array:
    """Minus infinity where top-k, top-p or min-p leave nothing; other rows as given."""
    filters = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
    filters &= sampling.sampled

    def cut(logits: Array) -> Array:
        none = law(logits, sampling) <= 0
        return jnp.where(filters[:, None, None] & none, -jnp.inf, logits)

    return jax.lax.cond(jnp.any(filters), cut, lambda logits: logits, logits)


def _dense(q: Array | SparseLaw | None, width: int) -> Array | None:
    if not isinstance(q, SparseLaw):
        return q
    b, n, _ = q.probs.shape
    ids = jnp.broadcast_to(q.ids, q.probs.shape)
    row, node = jnp.arange(b)[:, None, None], jnp.arange(n)[None, :, None]
    none = jnp.zeros((b, n, width), q.probs.dtype)
    return none.at[row, node, ids].add(q.probs, mode="drop")
