"""IBM's MLP speculators (`model_type` mlp_speculator)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.drafters.base import DrafterPlan, bare_names
from converters.sources import TensorFiles
from converters.tables import Change, same, transpose
from jspec.drafters.mlp_speculator import MLPSpeculator, MLPSpeculatorConfig

__all__ = ["export", "plan", "recognise"]

PARTS: Mapping[str, tuple[str, Change]] = {
    "project": ("proj.{i}.weight", transpose),
    "embed": ("emb.{i}.weight", same),
    "head": ("head.{i}.weight", transpose),
    "norm": ("ln.{i}.weight", same),
    "norm_bias": ("ln.{i}.bias", same),
}


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """config.json says so."""
    return raw.get("model_type") == "mlp_speculator"


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """How a speculator is read; what is tied may be there once or many times."""
    for key in ("vocab_size", "emb_dim", "n_predict"):
        if not isinstance(raw.get(key), int):
            raise ValueError(f"config.json: {key} is {raw.get(key)!r}, not a number")
    bare = bare_names(tensors, "speculator.")
    config = MLPSpeculatorConfig(
        hidden_size=raw["emb_dim"],
        vocab_size=raw["vocab_size"],
        inner_size=raw.get("inner_dim") or raw["emb_dim"],
        steps=raw["n_predict"],
        scaled_input=bool(raw.get("scale_input", False)),
        tied=bool(raw.get("tie_weights", False)),
    )
    table = _table(config)
    lines = {w: (bare.get(name, name), change) for w, (name, change) in table.items()}
    return DrafterPlan(
        method="mlp_speculator",
        config=config.to_json(),
        lines=lines,
        conventions={"feature": "the target's last state behind its final norm"},
        waived=tuple(_repeated(config, bare, tensors)),
    )


def _repeated(
    config: MLPSpeculatorConfig, bare: Mapping[str, str], tensors: TensorFiles
) -> list[str]:
    """Tensors that are another one again, as tying says they must be."""
    found = []
    for part, (name, _) in PARTS.items() if config.tied else ():
        first = 1 if part == "project" else 0
        own = bare.get(name.replace("{i}", str(first)))
        for i in range(first + 1, config.steps):
            other = bare.get(name.replace("{i}", str(i)))
            if own is None or other is None:
                continue
            if not np.array_equal(tensors[own].read(), tensors[other].read()):
                raise ValueError(
                    f"the tensor {other} differs from {own}, although config.json says "
                    f"tie_weights"
                )
            found.append(other)
    return found


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """The layout it came in."""
    settled = MLPSpeculatorConfig.from_json(config)
    table = _table(settled)
    names = source.get("tensors") or {weight: table[weight][0] for weight in table}
    raw = source.get("config") or {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": settled.vocab_size,
        "emb_dim": settled.hidden_size,
        "inner_dim": settled.inner_size,
        "n_predict": settled.steps,
        "tie_weights": settled.tied,
        "scale_input": settled.scaled_input,
    }
    return dict(raw), {weight: (names[weight], table[weight][1]) for weight in table}


def _table(config: MLPSpeculatorConfig) -> dict[str, tuple[str, Change]]:
    table = {}
    for weight in MLPSpeculator(config=config, gamma=0).weight_shapes():
        _, step, part = weight.split(".")
        name, change = PARTS[part]
        table[weight] = (name.replace("{i}", step), change)
    return table
