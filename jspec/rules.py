"""Penalties, biases and bans: what a request does to the logits before its law."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.tree import pytree

__all__ = ["Rules", "apply_rules", "ban_stops", "no_rules"]


@pytree
class Rules:
    """Per row, what changes its logits; a row that is not `active` is left alone.

    Attributes:
      counts: how often each token was emitted.
      seen: whether a token stands in the prompt.
      bias: added to the logits.
    """

    active: Bool[Array, " B"]
    repetition: Float[Array, " B"]
    presence: Float[Array, " B"]
    frequency: Float[Array, " B"]
    counts: Int[Array, "B V"]
    seen: Bool[Array, "B V"]
    bias: Float[Array, "B V"]


def no_rules(rows: int, vocab: int) -> Rules:
    """Rules of rows that have none."""
    return Rules(
        active=jnp.zeros(rows, bool),
        repetition=jnp.ones(rows),
        presence=jnp.zeros(rows),
        frequency=jnp.zeros(rows),
        counts=jnp.zeros((rows, vocab), jnp.int32),
        seen=jnp.zeros((rows, vocab), bool),
        bias=jnp.zeros((rows, vocab)),
    )


def apply_rules(
    logits: Float[Array, "B N V"],
    rules: Rules,
    tokens: Int[Array, "B N"],
    ancestors: Bool[Array, "B N N"],
) -> Float[Array, "B N V"]:
    """Logits as plain decoding would have them after each node's own history.

    A node's history is what was emitted and the drafted nodes above it, itself
    included; the anchor is counted as emitted. Repetition penalty (Keskar et al.
    2019, CTRL, §4.1) over prompt and output; presence and frequency penalties over
    the output, as in the OpenAI API; then the bias.
    """

    def column(a: Array) -> Array:
        return a[:, None, None]

    def penalise(logits: Array, count: Array, seen: Array) -> Array:
        factor = column(rules.repetition)
        factor = jnp.where(logits > 0, 1 / factor, factor)
        logits = jnp.where(seen, logits * factor, logits)
        return (
            logits
            - column(rules.frequency) * count
            - column(rules.presence) * (count > 0)
        )

    b, n = tokens.shape
    above = ancestors & (jnp.arange(n) > 0)[None, None]
    same = tokens[:, :, None] == tokens[:, None]
    drafted = jnp.einsum(
        "bnm,bkm->bnk", above.astype(jnp.int32), same.astype(jnp.int32)
    )
    here = jnp.take_along_axis(rules.counts, tokens, axis=1)[:, None] + drafted
    index = jnp.broadcast_to(tokens[:, None], (b, n, n))
    own = penalise(
        jnp.take_along_axis(logits, index, axis=2), here, jnp.ones_like(above)
    )
    counts = rules.counts[:, None]
    out = penalise(logits, counts, rules.seen[:, None] | (counts > 0))
    rows, nodes = jnp.arange(b)[:, None, None], jnp.arange(n)[None, :, None]
    out = out.at[rows, nodes, jnp.where(above, index, logits.shape[-1])].set(
        own, mode="drop"
    )
    out = out + rules.bias[:, None]
    return jnp.where(column(rules.active), out, logits)


def ban_stops(
    logits: Float[Array, "B N V"],
    stops: Int[Array, "B W"],
    early: Bool[Array, "B N"],
) -> Float[Array, "B N V"]:
    """Makes the stop tokens impossible after nodes where it is too early to stop."""
    b, n, v = logits.shape
    banned = jnp.where((stops >= 0)[:, None] & early[..., None], stops[:, None], v)
    rows, nodes = jnp.arange(b)[:, None, None], jnp.arange(n)[None, :, None]
    return logits.at[rows, nodes, banned].set(-jnp.inf, mode="drop")
