"""Penalties, biases and bans: what a request does to the logits before its law."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.tree import pytree

__all__ = [
    "WORDS",
    "WORD_TOKENS",
    "Rules",
    "apply_rules",
    "ban_stops",
    "ban_words",
    "no_rules",
    "recent_tokens",
]

WORDS = 32
"""Forbidden token sequences that a row can have."""

WORD_TOKENS = 8
"""Tokens of the longest of them."""


@pytree
class Rules:
    """Per row, what changes its logits; a row that is not `active` is left alone.

    Attributes:
      counts: how often each token was emitted.
      seen: whether a token stands in the prompt.
      bias: added to the logits.
      words: forbidden token sequences, flush right, -1 before them; a line of -1 is
        none.
    """

    active: Bool[Array, " B"]
    repetition: Float[Array, " B"]
    presence: Float[Array, " B"]
    frequency: Float[Array, " B"]
    counts: Int[Array, "B V"]
    seen: Bool[Array, "B V"]
    bias: Float[Array, "B V"]
    words: Int[Array, "B W L"]


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
        words=jnp.full((rows, WORDS, WORD_TOKENS), -1, jnp.int32),
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


def recent_tokens(
    tokens: Int[Array, "B N"],
    ancestors: Bool[Array, "B N N"],
    depth: Int[Array, "B N"],
    before: Int[Array, "B R"],
    emitted: Int[Array, " B"],
) -> Int[Array, "B N R"]:
    """The last emitted tokens up to each node, the node's own last; -1: none.

    Args:
      tokens: ids of the nodes.
      ancestors: `[b, n, m]`: node `n` descends from node `m` or is it.
      depth: of the nodes.
      before: the text before the anchor, its last tokens last.
      emitted: tokens the reader has, the anchor among them unless it is 0.
    """
    reach = before.shape[1]
    back = jnp.arange(reach - 1, -1, -1)[None, None]
    level = depth[..., None] - back
    on_path = ancestors[:, :, None] & (depth[:, None, None] == level[..., None])
    path = jnp.einsum("bnrm,bm->bnr", on_path.astype(jnp.int32), tokens)
    place = jnp.clip(reach + level, 0, reach - 1)
    older = jnp.take_along_axis(before[:, None], place, axis=2)
    known = level > -emitted[:, None, None]
    return jnp.where(known, jnp.where(level >= 0, path, older), -1)


def ban_words(
    logits: Float[Array, "B N V"],
    words: Int[Array, "B W L"],
    recent: Int[Array, "B N R"],
) -> Float[Array, "B N V"]:
    """Makes the last token of a forbidden word impossible after the tokens before it.

    Args:
      logits: of the nodes' successors.
      words: the row's forbidden sequences, of at most `R + 1` tokens.
      recent: see `recent_tokens`.
    """
    b, n, v = logits.shape
    start = words[:, None, :, :-1]
    match = ((start < 0) | (start == recent[:, :, None])).all(-1)
    last = words[:, None, :, -1]
    banned = jnp.where(match & (last >= 0), last, v)
    rows, nodes = jnp.arange(b)[:, None, None], jnp.arange(n)[None, :, None]
    return logits.at[rows, nodes, banned].set(-jnp.inf, mode="drop")
