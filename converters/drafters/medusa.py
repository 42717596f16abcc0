"""Medusa heads, as FasterDecoding's trainer and as vLLM lay them out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.drafters.base import DrafterPlan
from converters.sources import TensorFiles
from converters.tables import Change, integers, same, transpose
from jspec.drafters.medusa import Medusa, MedusaConfig

__all__ = ["export", "plan", "recognise"]

PREFIXES = ("medusa_heads.", "medusa_head.")


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """config.json says so."""
    return (
        raw.get("model_type") == "medusa"
        or "medusa_num_heads" in raw
        or any("Medusa" in name for name in raw.get("architectures") or [])
    )


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How heads are read; sizes that only the base model has come from the tensors."""
    bare = {_bare(name): name for name in tensors}
    layout = "vllm" if "lm_heads.0.weight" in bare else "original"
    of_vllm = layout == "vllm"
    heads = raw.get("num_heads" if of_vllm else "medusa_num_heads")
    blocks = raw.get("num_hidden_layers" if of_vllm else "medusa_num_layers", 1)
    if heads is None:
        raise ValueError("config.json does not say how many Medusa heads there are")
    first = "lm_heads.0.weight" if of_vllm else f"0.{blocks}.weight"
    if first not in bare:
        raise ValueError(f"the tensor {first} is missing")
    rows, hidden_size = tensors[bare[first]].shape
    ids = None
    if "token_map" in bare:
        ids = tensors[bare["token_map"]].read()
    vocab_size = raw.get("vocab_size") if of_vllm else rows
    if not isinstance(vocab_size, int):
        raise ValueError("config.json lacks vocab_size")
    if ids is None and rows != vocab_size:
        raise ValueError(
            f"the tensor token_map is missing, without which the {rows} rows of "
            f"{first} mean no tokens of {vocab_size}"
        )
    if ids is not None and (
        len(ids) != rows
        or len(np.unique(ids)) != rows
        or not 0 <= ids.min() <= ids.max() < vocab_size
    ):
        raise ValueError(
            f"the tensor token_map must name {rows} different tokens below "
            f"{vocab_size}, one for each row of {first}"
        )
    config = MedusaConfig(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        heads=heads,
        blocks=blocks,
        block_bias=bool(raw.get("medusa_fc_bias", False)) if of_vllm else True,
        shared_head=bool(raw.get("original_lm_head", False)) if of_vllm else False,
        draft_vocab_size=rows if ids is not None else None,
        logit_scale=float(raw.get("logit_scale", 1.0)) if of_vllm else 1.0,
    )
    return DrafterPlan(
        method="medusa",
        config=config.to_json(),
        lines={
            weight: (bare.get(name, name), change)
            for weight, (name, change) in _table(config, layout).items()
        },
        conventions={
            "layout": layout,
            "feature": "the target's last state behind its final norm",
            "token_map": "the target's ids",
        },
    )


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The layout it came in, or vLLM's, in which everything can be said."""
    heads = MedusaConfig.from_json(config)
    layout = source.get("conventions", {}).get("layout", "vllm")
    table = _table(heads, layout)
    names = source.get("tensors") or {weight: table[weight][0] for weight in table}
    raw = source.get("config") or {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size,
        "num_heads": heads.heads,
        "num_hidden_layers": heads.blocks,
        "truncated_vocab_size": heads.draft_vocab_size or heads.vocab_size,
        "medusa_fc_bias": heads.block_bias,
        "original_lm_head": heads.shared_head,
        "logit_scale": heads.logit_scale,
    }
    return dict(raw), {weight: (names[weight], table[weight][1]) for weight in table}


def _bare(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _table(config: MedusaConfig, layout: str) -> dict[str, tuple[str, Change]]:
    """Each weight's tensor in a layout."""
    table: dict[str, tuple[str, Change]] = {}
    for weight in Medusa(config=config, gamma=0).weight_shapes():
        kind, *where = weight.split(".")
        if kind == "ids":
            table[weight] = ("token_map", integers)
        elif kind == "heads":
            h = where[0]
            last = f"{h}.{config.blocks}.weight"
            name = f"lm_heads.{h}.weight" if layout == "vllm" else last
            table[weight] = (name, transpose)
        else:
            h, l, part = where
            block = f"blocks.{h}.layers.{l}" if layout == "vllm" else f"{h}.{l}.linear"
            last = "bias" if part == "bias" else "weight"
            change = same if part == "bias" else transpose
            table[weight] = (f"{block}.{last}", change)
    return table
