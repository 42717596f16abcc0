"""The block denoiser of DFlash and DSpark: its context, its one pass, its logits."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.cache import BLOCK, CacheLayout, KVCache, Pages, empty_pages
from jspec.drafters.base import Memory, View
from jspec.drafters.block_config import BlockConfig
from jspec.drafters.layers import Attend, borrowed_embedding
from jspec.models.layers import linear, linears, norm, rotate, turns
from jspec.pallas.block_attention import block_attention
from jspec.rounds import Evidence

__all__ = [
    "block_forward",
    "block_pass",
    "context_pairs",
    "empty_context",
    "over_target",
    "write_context",
]


def empty_context(config: BlockConfig, weights: Any, layout: CacheLayout) -> Memory:
    """Pages of context keys and values; none is written yet."""
    return Memory(
        pages=empty_pages(
            layout,
            layers=config.num_layers,
            key_heads=config.num_key_heads,
            head_dim=config.head_dim,
            dtype=weights["fc"].dtype,
        )
    )


def write_context(
    config: BlockConfig,
    weights: Any,
    memory: Memory,
    evidence: Evidence,
    cache: KVCache,
) -> Memory:
    """Makes keys and values of committed positions out of the target's hidden states.

    Two projections a layer from one vector that all layers share: no attention, no
    MLP, no pass of the drafter. Padding is not written.
    """
    assert evidence.features is not None
    features = evidence.features
    if features.shape[:2] == (1, 1):
        # One row alone would be summed in another order than among several.
        features = jnp.concatenate([features, features], axis=1)
    steps = jnp.arange(features.shape[1])[None]
    position = evidence.start[:, None] + steps
    none, size = memory.pages.text.shape
    column = position // size
    page = jnp.take_along_axis(cache.table, column, axis=1, mode="clip")
    real = (steps < evidence.count[:, None]) & (column < cache.table.shape[1])
    page, slot = jnp.where(real, page, none), position % size

    def put(pages: Array, new: Array) -> Array:
        return pages.at[page, :, slot].set(new.astype(pages.dtype), mode="drop")

    pages: Pages = memory.pages
    k, v = list(pages.k), list(pages.v)
    for l, (key, value) in enumerate(
        context_pairs(config, weights, features, position)
    ):
        k[l], v[l] = put(k[l], key), put(v[l], value)
    pages = dataclasses.replace(pages, k=tuple(k), v=tuple(v))
    return dataclasses.replace(memory, pages=pages)


def context_pairs(
    config: BlockConfig,
    weights: Any,
    features: Float[Array, "B T F"],
    position: Int[Array, "B T"],
) -> Iterator[tuple[Float[Array, "B T K D"], Float[Array, "B T K D"]]]:
    """Keys, rotated, and values that every layer makes of the target's states."""
    context = norm(
        linear(features, weights["fc"]), weights["context_norm"], config.norm_eps
    )
    turn = turns(config.rope, config.head_dim, position)
    for l in range(config.num_layers):
        layer = _Layer(weights, l)
        key, value = _heads(config, layer, "kv", context)
        yield _turned(config, layer, key, value, turn)


def block_pass(
    config: BlockConfig,
    weights: Any,
    memory: Memory,
    anchor: Int[Array, " B"],
    view: View,
    *,
    gamma: int,
    reach: int | None,
) -> Float[Array, "B N E"]:
    """The final hidden states of the rows that speak of the `gamma` drafts.

    One pass over the anchor and masks behind it; nothing is written.

    Args:
      config: sizes and conventions.
      weights: by dotted name.
      memory: the context.
      anchor: the newest token.
      view: the target's embedding, and where the rows' pages lie.
      gamma: drafted tokens.
      reach: how many of the newest committed positions are seen; `None`: all.
    """
    ahead = 0 if config.sample_from_anchor else 1
    width = max(gamma + ahead, 2)  # Never one row alone: see `write_context`.
    nodes = jnp.arange(width)[None]
    tokens = jnp.where(nodes == 0, anchor[:, None], config.mask_token_id)

    size = memory.pages.text.shape[1]

    def attend(l: int, q: Array, k: Array, v: Array) -> Array:
        return block_attention(
            q,
            k,
            v,
            memory.pages.k[l],
            memory.pages.v[l],
            view.cache.table,
            view.cache.length,
            causal=config.causal[l] if config.causal else False,
            window=config.windows[l] if config.windows else None,
            reach=reach,
            scale=config.head_dim**-0.5,
            block_pages=max(1, min(BLOCK // size, view.cache.table.shape[1])),
            sinks=weights.get(f"layers.{l}.sinks"),
        )

    masked = jnp.broadcast_to(nodes > 0, tokens.shape)
    position = view.cache.length[:, None] + nodes
    x = block_forward(config, weights, view.target, tokens, masked, position, attend)
    return x[:, ahead : ahead + gamma]


def block_forward(
    config: BlockConfig,
    weights: Any,
    target: Any,
    tokens: Int[Array, "B N"],
    masked: Bool[Array, "B N"],
    position: Int[Array, "B N"],
    attend: Attend,
) -> Float[Array, "B N E"]:
    """The layers of one pass, to final hidden states behind the norm.

    Args:
      config: sizes and conventions.
      weights: by dotted name.
      target: lends its embedding.
      tokens: of each row.
      masked: which rows are masks.
      position: of each row.
      attend: mixes the values of what a row sees.
    """
    x = borrowed_embedding(weights, target, tokens)
    if config.mask_embedding:
        mask = weights["mask_embedding"][None, None]
        x = jnp.where(masked[..., None], mask, x)
    x = x * config.embedding_scale
    turn = turns(config.rope, config.head_dim, position)
    for l in range(config.num_layers):
        layer = _Layer(weights, l)
        y = norm(x, layer["attention_norm"], config.norm_eps)
        q, k, v = _heads(config, layer, "qkv", y)
        q = rotate(norm(q, layer["q_norm"], config.norm_eps), turn)
        k, v = _turned(config, layer, k, v, turn)
        mixed = attend(l, q, k, v).reshape(*x.shape[:2], -1)
        x = x + linear(mixed, layer["o"], layer.get("o_bias"))
        y = norm(x, layer["mlp_norm"], config.norm_eps)
        gate, up = linears(y, (layer["gate"], layer["up"]))
        x = x + linear(jax.nn.silu(gate) * up, layer["down"])
    return norm(x, weights["norm"], config.norm_eps)


def over_target(
    config: BlockConfig, weights: Any, logits: Float[Array, "*B V"], tokens: int
) -> Float[Array, "*B W"]:
    """Scaled and capped logits over the target's rows; what cannot be is -inf.

    Args:
      config: scale, cap and vocabulary.
      weights: for the map of a smaller vocabulary.
      logits: over the drafter's vocabulary.
      tokens: the target's ids from here on are padding.
    """
    logits = logits * config.logit_scale
    if config.logit_cap is not None:
        logits = config.logit_cap * jnp.tanh(logits / config.logit_cap)
    if config.draft_vocab_size is not None:
        wide = jnp.full((*logits.shape[:-1], config.vocab_size), -jnp.inf)
        logits = wide.at[..., weights["ids"]].set(logits)
    if tokens < config.vocab_size:
        real = jnp.arange(config.vocab_size) < tokens
        real = real.reshape((1,) * (logits.ndim - 1) + real.shape)
        logits = jnp.where(real, logits, -jnp.inf)
    return logits


class _Layer:
    """One layer's weights by their short names."""

    def __init__(self, weights: Mapping[str, Array], l: int) -> None:
        self.weights, self.prefix = weights, f"layers.{l}."

    def __getitem__(self, name: str) -> Array:
        return self.weights[self.prefix + name]

    def get(self, name: str) -> Array | None:
        return self.weights.get(self.prefix + name)


def _heads(config: BlockConfig, layer: _Layer, names: str, x: Array) -> list[Array]:
    matrices = tuple(layer[name] for name in names)
    biases = tuple(layer.get(f"{name}_bias") for name in names)
    return [
        y.reshape(*x.shape[:2], -1, config.head_dim)
        for y in linears(x, matrices, biases)
    ]


def _turned(
    config: BlockConfig,
    layer: _Layer,
    k: Array,
    v: Array,
    turn: tuple[Array, Array],
) -> tuple[Array, Array]:
    k = norm(k, layer["k_norm"], config.norm_eps)
    return rotate(k, turn), v * config.value_scale
