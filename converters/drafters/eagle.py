"""EAGLE-1 and EAGLE-2 heads (one layout), and HASS, which is laid out alike."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from converters.drafters.base import DrafterPlan, bare_names
from converters.drafters.llama_layers import (
    changes_back,
    layer_config,
    layer_names,
    layer_sizes,
    unknown_keys,
    waived_frequencies,
    whose,
)
from converters.sources import TensorFiles
from converters.tables import Change
from jspec.drafters.eagle_head import EagleConfig

__all__ = ["export", "plan", "recognise"]

KNOWN = frozenset({"bias", "model", "truncated_vocab_size"})
NAMES = {
    "fc": "fc.weight",
    "fc_bias": "fc.bias",
    "embed": "embed_tokens.weight",
    "head": "lm_head.weight",
}


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """A projection of pairs, and a first layer without a norm before attention."""
    if raw.get("model_type") == "eagle":
        return True
    architectures = raw.get("architectures") or []
    if any("Eagle" in name and "Eagle3" not in name for name in architectures):
        return "speculators_model_type" not in raw
    bare = bare_names(tensors)
    return (
        "fc.weight" in bare
        and "layers.0.self_attn.q_proj.weight" in bare
        and "layers.0.input_layernorm.weight" not in bare
    )


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How a head is read; what the file has beyond the layer is its own."""
    nested = raw.get("model")
    fields = {**raw, **nested} if isinstance(nested, Mapping) else dict(raw)
    if isinstance(nested, Mapping):
        fields["model_type"] = nested.get("model_type", "llama")
    bare = bare_names(tensors)
    sizes, vocab_size = layer_sizes(fields)
    cut = raw.get("truncated_vocab_size")
    if cut not in (None, vocab_size):
        raise ValueError(
            f"config.json: truncated_vocab_size = {cut} is not supported for EAGLE; "
            f"leave the head to the target"
        )
    sizes = dataclasses.replace(
        sizes, attention_bias="layers.0.self_attn.q_proj.bias" in bare
    )
    config = EagleConfig(
        sizes=sizes,
        vocab_size=vocab_size,
        fc_bias=bool(raw["bias"]) if "bias" in raw else "fc.bias" in bare,
        own_embedding="embed_tokens.weight" in bare,
        own_head="lm_head.weight" in bare,
    )
    return DrafterPlan(
        method="eagle",
        config=config.to_json(),
        lines={
            weight: (bare.get(name, name), change)
            for weight, (name, change) in _forward(config).items()
        },
        conventions={
            "feature": "the target's last state behind its final norm",
            "concat": "embedding of the next token, feature",
            "position": "the feature's",
        },
        notices=(
            *unknown_keys(fields, KNOWN),
            f"embedding: {whose(config.own_embedding)}; head: {whose(config.own_head)}",
        ),
        waived=tuple(waived_frequencies(tensors)),
    )


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The layout it came in, or the one that SafeAILab's trainer writes."""
    if "modules" in config:
        raise ValueError(
            "drafters of method 'eagle' with one module per step have no other form to "
            "be written in"
        )
    head = EagleConfig.from_json(config)
    table = _forward(head)
    names = source.get("tensors") or {
        weight: name for weight, (name, _) in table.items()
    }
    raw = source.get("config")
    if raw is None:
        raw = layer_config(head.sizes, head.vocab_size, "float32")
        raw["bias"] = head.fc_bias
    return dict(raw), {weight: (names[weight], table[weight][1]) for weight in table}


def _forward(config: EagleConfig) -> dict[str, tuple[str, Change]]:
    shapes = config.shapes()
    return changes_back(NAMES | layer_names(shapes, "layers.{l}."), shapes)
