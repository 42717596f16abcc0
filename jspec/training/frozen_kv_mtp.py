"""Frozen-KV MTP's recipe: an assistant learns to ask the target's own keys.

Cross-entropy against the target's law at every step of drafting, with each step fed the
state of the one before it. All steps of a draft stand at the anchor's place and see the
text before it, so the keys of a text are made once: by the target's own layers, of the
states that enter them. Only layers whose states are kept can be read that way, so the
assistant reads the middle and the high tap's, not the last of its type as Gemma 4's do.

Gemma 4's loss is not published; its head over clusters of tokens is left out, and a
smaller vocabulary drafts instead.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec.drafters.frozen_kv_mtp import FrozenKVMTP
from jspec.drafters.frozen_layers import (
    AttentionKind,
    FrozenKVConfig,
    layers,
    logits_of,
)
from jspec.models.base import ModelConfig
from jspec.models.layers import linear, norm, rotate, turns
from jspec.training.attention import Seen, causal, mix
from jspec.training.embeddings import condensed, level
from jspec.training.lessons import Lesson, Words
from jspec.training.recipe import Frame, Recipe, Step, likelihood, shifted, taps_of

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """Two layers of a third of the target's width over two of its layers' keys.

    Raises:
      ValueError: the target is not of the Llama family.
    """
    target = frame.target
    if not isinstance(target, ModelConfig):
        raise ValueError(
            f"frozen_kv_mtp can be trained for targets of the Llama family, whose keys "
            f"it makes of the states that are kept; this one is of {target.family!r}"
        )
    reads = [layer for layer in frame.taps if layer < target.num_layers][-2:]
    kinds = {
        target.layer_kind(layer): AttentionKind(
            name=target.layer_kind(layer),
            head_dim=target.head_dim,
            rope=target.rope,
            window=target.window(layer),
        )
        for layer in reads
    }
    width = frame.share(1 / 3, 16)
    return FrozenKVConfig(
        vocab_size=target.vocab_size,
        backbone_size=target.hidden_size,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_heads=target.num_heads,
        norm_eps=target.norm_eps,
        kinds=tuple(kinds.values()),
        layer_kinds=tuple(target.layer_kind(layer) for layer in reads),
        reads=tuple(reads),
        draft_vocab_size=frame.words(5120),
        target_family=target.family,
        target_layers=target.num_layers,
    ).to_json()


def drafts(
    drafter: FrozenKVMTP,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """Every position is an anchor; all steps of a draft stand there."""
    config, tokens = drafter.config, lesson.tokens
    b, t = tokens.shape
    slots = jnp.broadcast_to(jnp.arange(t)[None], (b, t))
    kept = [_keys(target, layer, lesson, slots) for layer in config.reads]

    def attend(layer: int, q: Array) -> Array:
        kind = config.kind(config.layer_kinds[layer])
        seen = causal(slots, jnp.array([0]), t, own=False, window=kind.window)
        k, v = kept[layer]
        # `mix` divides by the root of the width, which an assistant does not.
        asked = (q * math.sqrt(kind.head_dim))[:, :, None].astype(q.dtype)
        return mix(asked, (Seen(k=k, v=v, seen=seen),))[:, :, 0]

    dtype = weights["pre_projection"].dtype
    hidden = jnp.pad(lesson.state, ((0, 0), (1, 0), (0, 0)))[:, :-1].astype(dtype)
    for step in range(steps):
        token = target.embed_tokens(shifted(tokens, step)).astype(dtype)
        pair = jnp.concatenate([token, hidden], axis=-1)
        x = linear(pair, weights["pre_projection"])
        x = layers(config, weights, x, slots + drafter.position_offset, attend)
        yield Step(logits=logits_of(config, weights, x, target.config.tokens)[0])
        hidden = linear(x, weights["post_projection"])


def _keys(
    target: Any, layer: int, lesson: Lesson, slots: Int[Array, "B T"]
) -> tuple[Float[Array, "B T K D"], Float[Array, "B T K D"]]:
    """Keys, rotated, and values of a target's layer, of the tapped state before it."""
    config, own = target.config, target.layers[layer]
    assert lesson.features is not None
    place = taps_of(config.num_layers).index(layer) * config.hidden_size
    state = lesson.features[..., place : place + config.hidden_size]
    y = norm(state, own.attention_norm[...], config.norm_eps)

    def heads(name: str) -> Array:
        bias = getattr(own, f"{name}_bias")
        x = linear(y, getattr(own, name)[...], None if bias is None else bias[...])
        return x.reshape(*slots.shape, -1, config.head_dim)

    k = heads("k")
    if own.k_norm is not None:
        k = norm(k, own.k_norm[...], config.norm_eps)
    k = rotate(k, turns(config.rope, config.head_dim, slots))
    return jax.lax.stop_gradient((k, heads("v")))


def begin(
    name: str, shape: tuple[int, ...], target: Any, words: Words | None
) -> np.ndarray | None:
    """The embedding is the target's, condensed; queries ask as softly as its own."""
    last = name.rsplit(".", 1)[-1]
    if name == "embed":
        assert words is not None
        return condensed(target, shape[1], size=shape[1] ** -0.5)[np.asarray(words.ids)]
    if last == "q_norm":
        return np.full(shape, shape[0] ** -0.5, np.float32)
    return np.ones(shape, np.float32) if last == "scalar" else None


def gain(name: str, shape: tuple[int, ...], target: Any) -> np.ndarray | float:
    """Token and state, whatever sizes they have in the target, are read alike."""
    if name != "pre_projection":
        return 1.0
    state = np.asarray(target.norm[...], np.float32)
    sizes = level(target), 1 / np.sqrt(np.square(state).mean())
    return np.repeat(np.array(sizes, np.float32), shape[0] // 2)[:, None]


RECIPE = Recipe(
    loss="cross-entropy against the target's law over the draft vocabulary, 4 steps, "
    "each 0.8 of the one before",
    plan=plan,
    drafts=drafts,
    term=likelihood,
    begin=begin,
    gain=gain,
    tapped=True,
)
