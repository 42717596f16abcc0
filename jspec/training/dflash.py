"""DFlash's recipe (arXiv:2602.06036, §4.2): anchors drawn, their blocks denoised.

Cross-entropy at every mask behind a drawn anchor, the later the lighter (the paper's
weights fall exponentially too). Embedding and head are the target's and stay.

Queries and keys have biases, and begin so that each head looks some tokens back: a mask
sees the anchor and the newest context from the first update on. Without, attention
begins even over the whole text, and 75,000 tokens taught a first draft that is kept
0.08 of the time instead of 0.13 (`smollm2-135m`; 32 held-out texts, one seed). What
reads the taps begins with rows as small as what they read is large (`tap_sizes`), and
every head has a key of its own, so that more of a place is seen: 0.20.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec.drafters.block_config import BlockConfig
from jspec.drafters.block_layers import block_forward, context_pairs, over_target
from jspec.drafters.dflash import DFlash
from jspec.drafters.layers import borrowed_head
from jspec.models.base import Rope
from jspec.models.layers import rotate, turns
from jspec.training.attention import Seen, causal, mix, near
from jspec.training.embeddings import level, softened
from jspec.training.lessons import Lesson, Words, head_of
from jspec.training.recipe import Frame, Recipe, Step, across, cross_entropy

__all__ = ["RECIPE", "begin", "block", "denoised", "over_words"]


def block(frame: Frame, *, part: float, from_anchor: bool) -> BlockConfig:
    """Two layers as wide as the target, with biases, a key a head; seven drafts."""
    heads, _, width = frame.heads
    return BlockConfig(
        vocab_size=frame.target.vocab_size,
        hidden_size=frame.target.hidden_size,
        intermediate_size=frame.share(part),
        num_layers=2,
        num_heads=heads,
        num_key_heads=heads,
        head_dim=width,
        norm_eps=frame.target.norm_eps,
        rope=frame.rope,
        block_size=7 if from_anchor else 8,
        mask_token_id=frame.mask_token_id,
        taps=frame.taps,
        target_hidden_size=frame.target.hidden_size,
        sample_from_anchor=from_anchor,
        mask_embedding=True,
        attention_bias=True,
    )


def plan(frame: Frame) -> dict[str, Any]:
    """A block behind the anchor."""
    return block(frame, part=4 / 3, from_anchor=False).to_json()


def denoised(
    config: BlockConfig,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    steps: int,
) -> Float[Array, "B A G E"]:
    """Final hidden states of the rows that speak of the drafts behind each anchor."""
    b, a = anchors.shape
    t = lesson.tokens.shape[1]
    ahead = 0 if config.sample_from_anchor else 1
    rows = steps + ahead
    depth = jnp.arange(rows)
    assert lesson.features is not None
    slots = jnp.broadcast_to(jnp.arange(t)[None], (b, t))
    context = tuple(context_pairs(config, weights, lesson.features, slots))

    def attend(l: int, q: Array, k: Array, v: Array) -> Array:
        window = config.windows[l] if config.windows else None
        blind = config.causal[l] if config.causal else False
        q, k, v = (x.reshape(b, a, rows, *x.shape[2:]) for x in (q, k, v))
        seen = causal(anchors, depth, t, own=False, window=window)
        kinds = (
            Seen(k=context[l][0], v=context[l][1], seen=seen),
            Seen(k=k, v=v, seen=near(depth, depth, window=window, blind=blind)),
        )
        return mix(q, kinds).reshape(b, a * rows, *q.shape[3:])

    masked = jnp.broadcast_to(depth > 0, (b, a, rows)).reshape(b, a * rows)
    first = jnp.repeat(across(lesson.tokens, anchors), rows, axis=1)
    position = (anchors[:, :, None] + depth[None, None]).reshape(b, a * rows)
    x = block_forward(
        config,
        weights,
        target,
        jnp.where(masked, config.mask_token_id, first),
        masked,
        position,
        attend,
    )
    return x.reshape(b, a, rows, -1)[:, :, ahead:]


def over_words(
    config: BlockConfig,
    weights: Any,
    target: Any,
    hidden: Float[Array, "B A E"],
    words: Words | None,
    push: Float[Array, "B A W"] | None = None,
) -> Float[Array, "B A W"]:
    """Logits over the words, or over all tokens; `push` is added before scaling."""
    tokens = target.config.tokens
    if words is not None:
        weights = {"head": head_of(target, words)} | weights
        config, tokens = dataclasses.replace(config, draft_vocab_size=None), 0
        tokens = config.vocab_size
    logits = borrowed_head(weights, target, hidden)
    if push is not None:
        logits = logits + push
    return over_target(config, weights, logits, tokens)


def drafts(
    drafter: DFlash,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """One pass over the blocks of all anchors."""
    config = drafter.config
    hidden = denoised(config, weights, target, lesson, anchors, steps)
    for step in range(steps):
        logits = over_words(config, weights, target, hidden[:, :, step], words)
        yield Step(logits=logits)


def begin(
    name: str, shape: tuple[int, ...], target: Any, words: Words | None
) -> np.ndarray | None:
    """The final norm begins soft, for the head is the target's; heads look back."""
    if name == "norm":
        return softened(target, shape[0])
    if name.endswith((".q_bias", ".k_bias")):
        return _back(target, shape[0], queries=name.endswith(".q_bias"))
    return None


def _back(target: Any, size: int, *, queries: bool) -> np.ndarray:
    """Biases with which a query head finds the key that stands some tokens back.

    Of three heads, one looks one token back and one two, where the first mask has the
    anchor and the newest context; the third looks three back, four, and so on.

    All keys have the same vector, in the ten fastest of the rotation's planes, where a
    distance of one is far; a query has it turned back by its distance. It is twice as
    large as what tokens add, and is normalised with that.
    """
    width = target.config.cache_heads[0][1]
    heads = size // width
    vector = np.zeros(width, np.float32)
    vector[: min(10, width // 2)] = 1
    vector *= 2 * np.sqrt(width) / np.linalg.norm(vector)
    same = np.tile(vector, (1, heads, 1, 1))
    if not queries:
        return same.reshape(-1)
    rope = getattr(target.config, "rope", Rope())
    distances = [(1, 2, 3 + h // 3)[h % 3] for h in range(heads)]
    back = turns(rope, width, -jnp.array([distances], jnp.int32))
    return np.asarray(rotate(jnp.asarray(same), back)).reshape(-1)


def gain(name: str, shape: tuple[int, ...], target: Any) -> float:
    """A mask begins as large as a token."""
    return 1 / level(target) if name == "mask_embedding" else 1.0


RECIPE = Recipe(
    loss="cross-entropy at 7 masks behind an anchor, each 0.85 of the one before",
    plan=plan,
    drafts=drafts,
    term=cross_entropy,
    steps=7,
    decay=0.85,
    dense=False,
    begin=begin,
    gain=gain,
    fused="fc",
)
