"""What a drafter has not observed yet: rounds without drafts leave it for later.

A round at `gamma = 0` is plain decoding and runs no part of the drafter. The token it
emits is noted here, and with it the target's features where the drafter reads any;
tokens themselves lie in the cache. Before the next round that drafts, `catch_up` hands
everything over in one piece, as evidence that nobody drafted, like a prompt. So a row
that paused drafting goes on as if it never had.

Features cannot be had again without a pass of the target, so `SPAN` tokens' worth of
them is kept, and a row that has as many is caught up, once in `SPAN` rounds.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.base import Drafter, Memory, View
from jspec.drafters.tail import places
from jspec.models.base import Target
from jspec.rounds import Evidence
from jspec.tree import pytree

__all__ = ["SPAN", "Backlog", "catch_up", "empty_backlog", "observed", "postpone"]

SPAN = 32
"""Tokens that a drafter catches up with in one piece."""


@pytree
class Backlog:
    """Where each row's drafter stands.

    Attributes:
      seen: committed tokens that it has observed.
      features: the target's taps of those behind them; `None`: it reads none.
    """

    seen: Int[Array, " B"]
    features: Float[Array, "B T F"] | None = None


def empty_backlog(
    drafter: Drafter, target: Target, memory: Memory, rows: int, dtype: Any
) -> Backlog | None:
    """Nothing is postponed; `None` for a drafter that remembers nothing anyway."""
    if not jax.tree.leaves(memory):
        return None
    width = len(drafter.feature_layers) * target.config.hidden_size
    return Backlog(
        seen=jnp.zeros((rows,), jnp.int32),
        features=jnp.zeros((rows, SPAN, width), dtype) if width else None,
    )


def postpone(backlog: Backlog, rows: Int[Array, " B"], evidence: Evidence) -> Backlog:
    """Notes the token that a round without drafts committed in each of its rows."""
    if backlog.features is None:
        return backlog
    assert evidence.features is not None
    place = evidence.start - backlog.seen.at[rows].get(mode="clip")
    place = jnp.where(evidence.count > 0, place, SPAN)
    newest = evidence.features[:, 0].astype(backlog.features.dtype)
    return dataclasses.replace(
        backlog, features=backlog.features.at[rows, place].set(newest, mode="drop")
    )


def observed(
    backlog: Backlog, rows: Int[Array, " B"], length: Int[Array, " B"]
) -> Backlog:
    """The rows up to these lengths were observed in a round with drafts.

    A language model that drafts has not read the last draft of a round that was
    accepted as a whole; it reads it in the next. So who reads tokens alone counts as
    one behind: if a pause follows, that token is shown again.
    """
    if backlog.features is None:
        length = jnp.maximum(length - 1, 0)
    seen = backlog.seen.at[rows].set(length, mode="drop")
    return dataclasses.replace(backlog, seen=seen)


def catch_up(
    drafter: Drafter,
    weights: Any,
    memory: Memory,
    backlog: Backlog,
    anchor: Int[Array, " B"],
    view: View,
) -> tuple[Memory, Backlog]:
    """Lets the drafter observe the next `SPAN` tokens it has not seen.

    Args:
      drafter: whose memory.
      weights: the drafter's.
      memory: of the rows.
      backlog: of the rows.
      anchor: their newest tokens.
      view: of the rows, with all that is committed.
    """
    cache, seen = view.cache, backlog.seen
    count = jnp.clip(cache.length - seen, 0, SPAN)
    none, size = cache.pages.text.shape
    slot = seen[:, None] + jnp.arange(SPAN + 1)[None]
    inside = slot < cache.length[:, None]
    page, place = places(none, cache.table, slot, inside, size=size)
    text = cache.pages.text.at[page, place].get(mode="fill", fill_value=0)
    behind = jnp.take_along_axis(text, count[:, None], axis=1)[:, 0]
    reached = seen + count
    evidence = Evidence(
        tokens=text[:, :SPAN],
        start=seen,
        count=count,
        anchor=jnp.where(reached < cache.length, behind, anchor),
        features=backlog.features,
    )
    held = dataclasses.replace(cache, length=jnp.minimum(reached, cache.length))
    memory = drafter.observe(
        weights, memory, evidence, dataclasses.replace(view, cache=held)
    )
    return memory, dataclasses.replace(backlog, seen=reached)
