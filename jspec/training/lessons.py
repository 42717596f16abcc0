"""What a target shows of a batch of texts, and what is right at each place of them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.drafters.layers import borrowed_head, target_feature
from jspec.tree import pytree

__all__ = ["Lesson", "Truth", "Words", "head_of", "read", "truth_of", "words_of"]

PAGE = 16


@pytree
class Words:
    """Some of the target's tokens: those over which a drafter's loss is summed.

    Attributes:
      ids: in rising order.
      place: of every token among them; -1: it is none of them.
    """

    ids: Int[Array, " W"]
    place: Int[Array, " V"]


@pytree
class Lesson:
    """A batch of texts as the target read them.

    Attributes:
      tokens: ids, padded behind their end.
      answered: tokens that the target wrote: what a drafter has to say.
      features: the states a drafter taps, at each position.
      state: what the target's head reads, at each position.
    """

    tokens: Int[Array, "B T"]
    answered: Bool[Array, "B T"]
    features: Float[Array, "B T F"] | None
    state: Float[Array, "B T E"]


@pytree
class Truth:
    """What is right of one drafted place behind each anchor.

    Attributes:
      labels: the token there, as a place among the words.
      counted: whether it is one of them, and written by the target.
      inside: whether it was written by the target, one of them or not.
      law: logits of the target over the words.
      feature: what the target's head reads before it.
    """

    labels: Int[Array, "B A"]
    counted: Bool[Array, "B A"]
    inside: Bool[Array, "B A"]
    law: Float[Array, "B A W"]
    feature: Float[Array, "B A E"]


def words_of(ids: np.ndarray, vocab_size: int) -> Words:
    """The words of these ids, which rise."""
    place = np.full(vocab_size, -1, np.int32)
    place[ids] = np.arange(len(ids))
    return Words(ids=jnp.asarray(ids, jnp.int32), place=jnp.asarray(place))


def read(
    target: Any,
    tokens: Int[Array, "B T"],
    answered: Bool[Array, "B T"],
    taps: tuple[int, ...],
) -> Lesson:
    """One pass of the target over whole texts, as it reads prompts when it serves.

    Args:
      target: the model; nothing is learnt of it.
      tokens: of the texts.
      answered: which of them count.
      taps: residual-stream indices that the drafter reads.
    """
    b, t = tokens.shape
    each = -(-t // PAGE)
    layout = CacheLayout(rows=b, room=t, pages=b * each, page_size=PAGE)
    table = np.full((b, layout.row_pages), layout.pages, np.int32)
    table[:, :each] = np.arange(b * each).reshape(b, each)
    cache = KVCache(
        pages=layer_pages(layout, target.config.cache_heads, target.dtype),
        table=jnp.asarray(table),
        length=jnp.zeros((b,), jnp.int32),
    )
    nodes = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32) - 1, (b, t))
    last = target.config.num_layers
    seen = target(tokens, nodes, cache, feature_layers=(*taps, last), logits=False)
    width = target.config.hidden_size
    features = seen.features[..., :-width] if taps else None
    return Lesson(
        tokens=tokens,
        answered=answered,
        features=features,
        state=target_feature(target, seen.features[..., -width:]),
    )


def head_of(target: Any, words: Words) -> Float[Array, "E W"]:
    """The columns of the target's head that say these words."""
    if target.head is None:
        return target.embed[...][words.ids].T
    return target.head[...][:, words.ids]


def truth_of(
    target: Any,
    lesson: Lesson,
    words: Words | None,
    anchors: Int[Array, "B A"],
    step: int,
) -> Truth:
    """What is right `step + 1` places behind the anchors.

    Args:
      target: whose head makes a law of its state.
      lesson: the texts.
      words: over which; `None`: all tokens.
      anchors: positions of the newest token.
      step: how many drafts lie between.
    """
    t = lesson.tokens.shape[1]
    before = jnp.minimum(anchors + step, t - 1)
    here = jnp.minimum(before + 1, t - 1)
    token = jnp.take_along_axis(lesson.tokens, here, axis=1)
    inside = jnp.take_along_axis(lesson.answered, here, axis=1)
    inside &= (anchors + step + 1 < t) & (anchors >= 1)
    feature = jnp.take_along_axis(lesson.state, before[..., None], axis=1)
    if words is None:
        law = borrowed_head({}, target, feature)
        return Truth(
            labels=token, counted=inside, inside=inside, law=law, feature=feature
        )
    law = borrowed_head({"head": head_of(target, words)}, target, feature)
    labels = words.place[token]
    return Truth(
        labels=jnp.maximum(labels, 0),
        counted=inside & (labels >= 0),
        inside=inside,
        law=law,
        feature=feature,
    )
