"""Gemma 4's assistants (`gemma4_assistant`): layers without keys or values."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.config import unread_keys
from converters.drafters.base import DrafterPlan
from converters.sources import TensorFiles
from converters.tables import Change, Table, integers, same, transpose
from jspec.drafters.frozen_layers import AttentionKind, FrozenKVConfig
from jspec.models.base import Rope

__all__ = ["export", "plan", "recognise"]

HEAD = "lm_head.weight"
EMBED = "model.embed_tokens.weight"
ORDER = "masked_embedding.token_ordering"
TABLE: Table = {
    "pre_projection": ("pre_projection.weight", transpose),
    "post_projection": ("post_projection.weight", transpose),
    "embed": (EMBED, same),
    "norm": ("model.norm.weight", same),
    "centroids": ("masked_embedding.centroids.weight", transpose),
    "ids": (ORDER, integers),
    "attention_norm": ("input_layernorm.weight", same),
    "post_attention_norm": ("post_attention_layernorm.weight", same),
    "mlp_norm": ("pre_feedforward_layernorm.weight", same),
    "post_mlp_norm": ("post_feedforward_layernorm.weight", same),
    "q": ("self_attn.q_proj.weight", transpose),
    "o": ("self_attn.o_proj.weight", transpose),
    "q_norm": ("self_attn.q_norm.weight", same),
    "gate": ("mlp.gate_proj.weight", transpose),
    "up": ("mlp.up_proj.weight", transpose),
    "down": ("mlp.down_proj.weight", transpose),
    "scalar": ("layer_scalar", same),
}
"""The tensor of every weight; those of a layer stand behind `model.layers.{l}.`."""

TYPES = {"sliding_attention": "sliding", "full_attention": "full"}
ROPES: Mapping[str, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
}
"""Where config.json does not say it, as transformers has it."""

SIZES: Mapping[str, int] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
}
BACKBONES = {"gemma4_assistant": 1536, "gemma4_unified_assistant": 3840}

MUST: Mapping[str, tuple[Any, ...]] = {
    "model_type": (None, "gemma4_text", "gemma4_unified_text"),
    "hidden_activation": (None, "gelu_pytorch_tanh"),
    "attention_bias": (None, False),
    "enable_moe_block": (None, False),
    "use_double_wide_mlp": (None, False),
    "use_bidirectional_attention": (None, "vision"),
    "hidden_size_per_layer_input": (None, 0),
    "vocab_size_per_layer_input": (None, 0),
    "tie_word_embeddings": (None, True),
}
"""Keys of `text_config` that would change the arithmetic, and what they may say."""

READ = frozenset(
    (
        *("rms_norm_eps", "rope_parameters", "layer_types", "per_layer_config"),
        *("num_kv_shared_layers", "num_key_value_heads", "num_global_key_value_heads"),
        *("attention_k_eq_v", "num_experts", "top_k_experts", "moe_intermediate_size"),
        *("final_logit_softcapping", "backbone_hidden_size", "text_config"),
        *("use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k"),
    )
)
"""Keys that are read, or that are about keys, values and experts it does not have."""


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """config.json says so."""
    architectures = raw.get("architectures") or []
    return raw.get("model_type") in BACKBONES or any(
        name in ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
        for name in architectures
    )


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How an assistant is read."""
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        raise ValueError(
            "config.json lacks text_config, which says what the layers are"
        )
    _refuse(raw, text)
    config = _config(raw, text)
    if config.centroids:
        _check_order(tensors, config.vocab_size)
    unread = {*unread_keys(raw), *unread_keys(text)} - READ - set(SIZES) - set(MUST)
    return DrafterPlan(
        method="frozen_kv_mtp",
        config=config.to_json(),
        lines=_lines(config, integers),
        conventions={
            "feature": "the target's last state behind its final norm",
            "concat": "the target's scaled embedding of the token, feature",
            "position": "the anchor's, of all steps",
            "keys": "the target's, of committed tokens, in its last layer of each type",
        },
        notices=(
            *(f"config.json has the key {key!r}, which is not read" for key in unread),
            "embedding: the target's; head: its own; keys and values: the target's",
        ),
        waived=tuple(_repeated(tensors)),
    )


def _refuse(raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    for key, allowed in MUST.items():
        for where, fields in (("", raw), ("text_config.", text)):
            if key == "model_type" and fields is raw:
                continue
            if fields.get(key) not in allowed:
                raise ValueError(
                    f"config.json: {where}{key} = {fields[key]!r} is not supported for "
                    f"an assistant; it must be {allowed[-1]!r}"
                )
    count, shared = _size(text, "num_hidden_layers"), text.get("num_kv_shared_layers")
    if shared not in (None, 0, count):
        raise ValueError(
            f"config.json: num_kv_shared_layers = {shared} leaves an assistant keys of "
            f"its own in some of its {count} layers, which is not supported"
        )


def _size(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key, SIZES[key])
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {key} is {value!r}, not a number above 0")
    return value


def _config(raw: Mapping[str, Any], text: Mapping[str, Any]) -> FrozenKVConfig:
    types = _layer_types(text)
    wide = raw.get("backbone_hidden_size", BACKBONES.get(raw.get("model_type", ""), 0))
    ordered = bool(raw.get("use_ordered_embeddings", False))
    return FrozenKVConfig(
        vocab_size=_size(text, "vocab_size"),
        backbone_size=wide,
        hidden_size=_size(text, "hidden_size"),
        intermediate_size=_size(text, "intermediate_size"),
        num_heads=_size(text, "num_attention_heads"),
        norm_eps=float(text.get("rms_norm_eps", 1e-6)),
        kinds=tuple(_kind(text, types, name) for name in dict.fromkeys(types)),
        layer_kinds=tuple(TYPES[name] for name in types),
        centroids=raw.get("num_centroids", 2048) if ordered else 0,
        centroid_top_k=raw.get("centroid_intermediate_top_k", 32) if ordered else 0,
    )


def _layer_types(text: Mapping[str, Any]) -> list[str]:
    """Of each layer; the last one is always full."""
    count = _size(text, "num_hidden_layers")
    types = text.get("layer_types")
    if types is None:
        types = [
            "full_attention" if l % 6 == 5 else "sliding_attention"
            for l in range(count)
        ]
    if len(types) != count or not set(types) <= set(TYPES):
        raise ValueError(
            f"config.json: layer_types must name {count} layers, each of "
            f"{' or '.join(TYPES)}, not {types}"
        )
    return [*types[:-1], "full_attention"]


def _kind(text: Mapping[str, Any], types: list[str], name: str) -> AttentionKind:
    full = name == "full_attention"
    overrides = text.get("per_layer_config")
    if overrides is None:
        widths = {_size(text, "global_head_dim" if full else "head_dim")}
    else:
        one = _size(text, "head_dim")
        widths = {
            overrides.get(str(l), {}).get("head_dim", one)
            for l, other in enumerate(types)
            if other == name
        }
    if len(widths) > 1:
        raise ValueError(
            f"config.json: per_layer_config gives {name} layers the head widths "
            f"{sorted(widths)}; layers of one type must be alike"
        )
    return AttentionKind(
        name=TYPES[name],
        head_dim=widths.pop(),
        rope=_rope((text.get("rope_parameters") or ROPES).get(name) or ROPES[name]),
        window=None if full else _size(text, "sliding_window"),
    )


def _rope(fields: Mapping[str, Any]) -> Rope:
    kind = fields.get("rope_type", "default")
    if kind not in ("default", "linear", "proportional"):
        raise ValueError(f"config.json: rope type {kind!r} is not an assistant's")
    return Rope(
        kind=kind,
        theta=float(fields.get("rope_theta", 10_000.0)),
        factor=float(fields.get("factor", 1.0)),
        fraction=float(fields.get("partial_rotary_factor", 1.0)),
    )


def _check_order(tensors: TensorFiles, vocab_size: int) -> None:
    found = tensors.get(ORDER)
    if found is None:
        raise ValueError(
            f"the tensor {ORDER} is missing, which use_ordered_embeddings needs"
        )
    if not np.array_equal(np.sort(found.read().ravel()), np.arange(vocab_size)):
        raise ValueError(
            f"the tensor {ORDER} must name each of the {vocab_size} tokens once"
        )


def _repeated(tensors: TensorFiles) -> list[str]:
    """The head, where a file has it beside the embedding that it is."""
    if HEAD not in tensors or EMBED not in tensors:
        return []
    if not np.array_equal(tensors[HEAD].read(), tensors[EMBED].read()):
        raise ValueError(
            f"the tensor {HEAD} differs from {EMBED}, to which an assistant's is tied"
        )
    return [HEAD]


def _long_integers(array: np.ndarray, config: Any) -> np.ndarray:
    """Ids as torch has them."""
    return array.astype(np.int64)


def _lines(config: FrozenKVConfig, order: Change) -> dict[str, tuple[str, Change]]:
    lines = {}
    for weight in config.shapes():
        *where, part = weight.split(".")
        name, change = TABLE[part]
        prefix = f"model.layers.{where[1]}." if where else ""
        lines[weight] = (prefix + name, order if part == "ids" else change)
    return lines


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """transformers' layout, with the config.json it came with."""
    raw = source.get("config")
    if raw is None:
        raise ValueError(
            "this assistant came with no config.json, and one written anew would not "
            "know how many key heads its target has"
        )
    return dict(raw), _lines(FrozenKVConfig.from_json(config), _long_integers)
