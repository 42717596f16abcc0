"""The tensors of block drafters, and the way back to the names they came with."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from converters.drafters.base import DrafterPlan
from converters.sources import Tensor, TensorFiles
from converters.tables import (
    Change,
    Table,
    from_offsets,
    same,
    source_shape,
    to_offsets,
    transpose,
)

__all__ = ["TABLE", "bare", "mapped", "written_or"]

TABLE: Table = {
    "fc": ("fc.weight", transpose),
    "context_norm": ("hidden_norm.weight", same),
    "norm": ("norm.weight", same),
    "embed": ("embed_tokens.weight", same),
    "head": ("lm_head.weight", transpose),
    "ids": ("d2t", from_offsets),
    "mask_embedding": ("mask_embedding", same),
    "layers.{l}.attention_norm": ("layers.{l}.input_layernorm.weight", same),
    "layers.{l}.mlp_norm": ("layers.{l}.post_attention_layernorm.weight", same),
    "layers.{l}.q": ("layers.{l}.self_attn.q_proj.weight", transpose),
    "layers.{l}.k": ("layers.{l}.self_attn.k_proj.weight", transpose),
    "layers.{l}.v": ("layers.{l}.self_attn.v_proj.weight", transpose),
    "layers.{l}.o": ("layers.{l}.self_attn.o_proj.weight", transpose),
    "layers.{l}.q_bias": ("layers.{l}.self_attn.q_proj.bias", same),
    "layers.{l}.k_bias": ("layers.{l}.self_attn.k_proj.bias", same),
    "layers.{l}.v_bias": ("layers.{l}.self_attn.v_proj.bias", same),
    "layers.{l}.o_bias": ("layers.{l}.self_attn.o_proj.bias", same),
    "layers.{l}.q_norm": ("layers.{l}.self_attn.q_norm.weight", same),
    "layers.{l}.k_norm": ("layers.{l}.self_attn.k_norm.weight", same),
    "layers.{l}.sinks": ("layers.{l}.self_attn.attention_sink_bias", same),
    "layers.{l}.gate": ("layers.{l}.mlp.gate_proj.weight", transpose),
    "layers.{l}.up": ("layers.{l}.mlp.up_proj.weight", transpose),
    "layers.{l}.down": ("layers.{l}.mlp.down_proj.weight", transpose),
}
"""The tensor of every weight of the block."""


def bare(tensors: Iterable[str]) -> dict[str, str]:
    """The tensors' own names by their names without a leading module."""
    found = {}
    for name in tensors:
        short = name.removeprefix("model.").removeprefix("logit_head.")
        found[short] = name
    return found


def mapped(
    table: Table, shapes: Iterable[str], names: Mapping[str, str]
) -> dict[str, tuple[str, Change]]:
    """The lines of the weights, under the names that the checkpoint uses."""
    found = {}
    for weight in shapes:
        pieces = weight.split(".")
        layer = pieces[1] if pieces[0] == "layers" else ""
        key = weight.replace(f"layers.{layer}.", "layers.{l}.") if layer else weight
        name, change = table[key]
        name = name.replace("{l}", layer)
        found[weight] = (names.get(name, name), change)
    return found


def written_or(
    written: dict[str, Any],
    config: Mapping[str, Any],
    source: Mapping[str, Any],
    table: Table,
    shapes: Mapping[str, tuple[int, ...]],
    plan: Callable[[Mapping[str, Any], TensorFiles], DrafterPlan],
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The config.json to write, and each weight's tensor and change back.

    Args:
      written: in the method's own layout.
      config: what it must say.
      source: the config.json and the tensors' names that the checkpoint came with,
        which are kept as long as they say the same.
      table: the tensor of every weight.
      shapes: of the weights.
      plan: how config.json is read.

    Raises:
      ValueError: no config.json says this configuration.
    """
    if "mask_embedding" in shapes:
        raise ValueError(
            "this drafter has a mask embedding, which its layout keeps in a file of "
            "its own, mask_embedding.pt; that file is not written in this version"
        )
    lines = mapped(table, shapes, {})
    names = source.get("tensors")
    names = names if isinstance(names, Mapping) else {}
    lines = {weight: (names.get(weight, n), c) for weight, (n, c) in lines.items()}
    tensors = _described(lines, shapes)
    back = {
        weight: (name, to_offsets if change is from_offsets else change)
        for weight, (name, change) in lines.items()
    }
    for raw in (source.get("config"), written):
        try:
            if isinstance(raw, Mapping) and _same(plan(raw, tensors).config, config):
                return dict(raw), back
        except ValueError:
            continue
    raise ValueError("no config.json of this method's layouts says this configuration")


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Equal once both are JSON, where a tuple is a list."""
    return json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


def _described(
    lines: Mapping[str, tuple[str, Change]], shapes: Mapping[str, tuple[int, ...]]
) -> TensorFiles:
    """Tensors of these shapes that cannot be read: enough to plan with."""

    def never() -> np.ndarray:
        raise AssertionError("these tensors are only described")

    return {
        name: Tensor(
            shape=source_shape(shapes[weight], change) or shapes[weight],
            dtype=np.dtype(np.float32),
            stored="F32",
            read=never,
        )
        for weight, (name, change) in lines.items()
    }
