"""P-EAGLE checkpoints: speculators' EAGLE-3 layout, and what stands for the unknown."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.drafters import eagle3
from converters.drafters.base import DrafterPlan, bare_names
from converters.sources import TensorFiles
from converters.tables import Change, flatten
from jspec.drafters.p_eagle import PEagleConfig

__all__ = ["export", "plan", "recognise"]

MASKS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Spellings of the mask's id."""


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> bool:
    """speculators says so, or the learned feature is there."""
    if "speculators_model_type" in raw:
        return raw["speculators_model_type"] == "peagle"
    return "mask_hidden" in bare_names(tensors)


def plan(raw: Mapping[str, Any], tensors: TensorFiles) -> DrafterPlan:
    """The head's own lines, the mask and its feature."""
    found = [raw[key] for key in MASKS if raw.get(key) is not None]
    if not found or isinstance(found[0], bool) or not isinstance(found[0], int):
        raise ValueError("config.json lacks mask_token_id")
    names = bare_names(tensors)
    mask = names.get("mask_hidden", "mask_hidden")
    head = eagle3.plan(
        _as_eagle3(raw), {name: t for name, t in tensors.items() if name != mask}
    )
    config = {"head": dict(head.config), "mask_token_id": found[0]}
    return DrafterPlan(
        method="p_eagle",
        config=PEagleConfig.from_json(config).to_json(),
        lines={**head.lines, "mask_hidden": (mask, flatten)},
        conventions=head.conventions,
        notices=head.notices,
        waived=head.waived,
    )


def export(
    config: Mapping[str, Any], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Change]]]:
    """speculators' layout, or the config.json it came with."""
    ours = PEagleConfig.from_json(config)
    names = dict(source.get("tensors") or {})
    mask = names.pop("mask_hidden", "mask_hidden")
    inner = {"config": source.get("config"), "tensors": names}
    written, back = eagle3.export(ours.head.to_json(), inner)
    if source.get("config") is None:
        written |= {
            "architectures": ["PEagleSpeculator"],
            "speculators_model_type": "peagle",
            "mask_token_id": ours.mask_token_id,
        }
    return written, {**back, "mask_hidden": (mask, unflatten)}


def unflatten(array: np.ndarray, config: Any) -> np.ndarray:
    """The learned feature with the axes its trainers give it."""
    return array.reshape(1, 1, -1)


def _as_eagle3(raw: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in raw.items() if key not in MASKS}
    if "speculators_model_type" in raw:
        rest["speculators_model_type"] = "eagle3"
    return rest
