"""Drafting from pairs: a token's feature and the token after it (EAGLE, MTP).

Pair `s` is the feature of token `s - 1` beside the embedding of token `s`; its keys and
values lie in slot `s` and its position is `s - 1`, as in the papers. So a slot depends
on nothing behind it, a page on nothing behind the page, and texts that share a prefix
of pages share the drafter's as well. Slot 0 has no feature and is never seen. What the
pages lack of the last pair, its feature, is kept once a page: `PairPages.tail`.

A drafter hands over a `PairModel`, functions of one pass; the loops that use it know
nothing of its arithmetic. Nothing is written while drafting: keys of drafts live and
die in the round, and `observe_pairs` writes those of committed tokens, from true
features.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.cache import BLOCK, CacheLayout, KVCache
from jspec.drafters.base import Memory
from jspec.drafters.layers import Attend, LayerSizes
from jspec.drafters.tail import newest_feature, places, write_features
from jspec.pallas.draft_attention import draft_attention
from jspec.rounds import Evidence
from jspec.tree import pytree

__all__ = [
    "PairModel",
    "PairPages",
    "empty_pairs",
    "mixed",
    "observe_pairs",
    "run",
    "write_pairs",
]


@pytree
class PairPages:
    """What a drafter of pairs remembers, all of it in pages.

    Attributes:
      k: keys of committed pairs, one array a layer.
      v: their values.
      tail: the feature of each page's newest token.
    """

    k: tuple[Float[Array, "P K S D"], ...]
    v: tuple[Float[Array, "P K S D"], ...]
    tail: Float[Array, "P E"]

    @property
    def page_size(self) -> int:
        """Pairs of a page."""
        return self.k[0].shape[2]

    def newest(
        self, table: Int[Array, "B columns"], length: Int[Array, " B"]
    ) -> Float[Array, "B E"]:
        """The feature of each row's last committed token; zero where there is none."""
        return newest_feature(self.tail, table, length, size=self.page_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairModel:
    """The functions of a drafter that reads pairs.

    Attributes:
      sizes: of its layers.
      fuse: the target's taps to features.
      forward: features, tokens, positions and attention to hidden states.
      feed: a hidden state to the feature of the next pair.
      logits: hidden states to logits, of the target's tokens or of `ids`.
      ids: the target's ids of the drafter's tokens; `None`: they are the same.
      sink: so many of the first pairs are seen past a layer's window.
      lag: how far a pair's position is behind its slot, and the first slot with one.
    """

    sizes: LayerSizes
    fuse: Callable[[Array], Array]
    forward: Callable[[Array, Array, Array, Attend], Array]
    feed: Callable[[Array], Array]
    logits: Callable[[Array], Array]
    ids: Int[Array, " V"] | None
    sink: int = 0
    lag: int = 1


def empty_pairs(
    sizes: LayerSizes, layout: CacheLayout, width: int, dtype: Any
) -> Memory:
    """Pages without pairs; features are `width` wide."""
    shape = (layout.pages, sizes.num_key_heads, layout.page_size, sizes.head_dim)

    def pages() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, dtype) for _ in range(sizes.num_layers))

    tail = jnp.zeros((layout.pages, width), dtype)
    return Memory(pages=PairPages(k=pages(), v=pages(), tail=tail))


def observe_pairs(
    model: PairModel, memory: Memory, evidence: Evidence, cache: KVCache
) -> Memory:
    """Writes the pairs of committed tokens, from the target's own features.

    Only keys and values are wanted: of the last layer nothing else is computed.
    """
    assert evidence.features is not None
    features = model.fuse(evidence.features)
    pages, _ = write_pairs(model, memory.pages, evidence, cache, features)
    return dataclasses.replace(memory, pages=pages)


def write_pairs(
    model: PairModel,
    pages: PairPages,
    evidence: Evidence,
    cache: KVCache,
    features: Float[Array, "B T E"],
) -> tuple[PairPages, Float[Array, "B T E"]]:
    """The pages with the pairs of committed tokens, and the states of those pairs.

    Args:
      model: the drafter.
      pages: its own.
      evidence: the tokens.
      cache: whose tables address the pages.
      features: of the tokens; each pair takes that of the token before its own.
    """
    t = evidence.tokens.shape[1]
    features = features.astype(pages.tail.dtype)
    start, steps = evidence.start, jnp.arange(t)[None]
    before = pages.newest(cache.table, start)[:, None]
    slot = start[:, None] + steps
    among = (steps[:, :, None] >= steps[:, None]) & (slot >= model.lag)[:, None]
    new: list[tuple[Array, Array]] = []

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        new.append((k, v))
        own = (k[:, :t], v[:, :t])
        return mixed(model, pages, cache.table, start, layer, q, own, among, slot, slot)

    hidden = run(
        model,
        jnp.concatenate([before, features[:, :-1]], axis=1),
        evidence.tokens,
        slot - model.lag,
        attend,
    )
    none, size = pages.tail.shape[0], pages.page_size
    real = steps < evidence.count[:, None]
    page, place = places(none, cache.table, slot, real, size=size)

    def put(into: tuple[Array, ...], which: int) -> tuple[Array, ...]:
        return tuple(
            a.at[page, :, place].set(pair[which][:, :t].astype(a.dtype), mode="drop")
            for a, pair in zip(into, new, strict=True)
        )

    tail = write_features(pages.tail, cache.table, evidence, features, size=size)
    return PairPages(k=put(pages.k, 0), v=put(pages.v, 1), tail=tail), hidden


def run(
    model: PairModel, features: Array, tokens: Array, position: Array, attend: Attend
) -> Array:
    """One pass; a pair alone goes beside a second that nobody reads.

    A single row would be summed in another order than the same row among several.
    """
    if tokens.size > 1:
        return model.forward(features, tokens, position, attend)

    def twice(a: Array) -> Array:
        return jnp.concatenate([a, a], axis=1)

    def one(layer: int, q: Array, k: Array, v: Array) -> Array:
        return twice(attend(layer, q[:, :1], k[:, :1], v[:, :1]))

    both = model.forward(twice(features), twice(tokens), twice(position), one)
    return both[:, :1]


def mixed(
    model: PairModel,
    pages: PairPages,
    table: Int[Array, "B columns"],
    length: Int[Array, " B"],
    layer: int,
    q: Float[Array, "B M H D"],
    own: tuple[Array, Array],
    seen: Bool[Array, "B M N"],
    place: Int[Array, "B M"],
    slots: Int[Array, "B N"],
) -> Float[Array, "B M H D"]:
    """Attention of nodes at `place` to committed pairs, and to nodes at `slots`."""
    window = model.sizes.window(layer)
    if window is not None:
        near = place[:, :, None] - slots[:, None] < window
        seen &= near | (slots < model.lag + model.sink)[:, None]
    size = pages.page_size
    return draft_attention(
        q,
        *own,
        pages.k[layer],
        pages.v[layer],
        table,
        length,
        seen=seen,
        place=place,
        first=model.lag,
        window=window,
        sink=model.sink,
        scale=model.sizes.head_dim**-0.5,
        block_pages=max(1, min(BLOCK // size, table.shape[1])),
    )
