"""Drafters' checkpoints: one file a method, listed once."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from converters.drafters import (
    dflash,
    dspark,
    eagle,
    eagle3,
    frozen_kv_mtp,
    medusa,
    mlp_speculator,
    mtp,
    p_eagle,
    pard,
)
from converters.drafters.base import Converter, DrafterPlan
from converters.plans import Plan, match
from converters.sources import TensorFiles
from converters.tables import ignored
from jspec.drafters import METHODS

__all__ = ["CONVERTERS", "DrafterPlan", "plan", "recognise"]

CONVERTERS: Mapping[str, Converter] = MappingProxyType[str, Converter](
    {
        "frozen_kv_mtp": frozen_kv_mtp,
        "medusa": medusa,
        "mlp_speculator": mlp_speculator,
        "pard": pard,
        "p_eagle": p_eagle,
        "mtp": mtp,
        "dspark": dspark,
        "dflash": dflash,
        "eagle3": eagle3,
        "eagle": eagle,
    }
)
"""By method, those with the surest marks first."""


def recognise(raw: Mapping[str, Any], tensors: TensorFiles) -> str | None:
    """The method that a config.json and its tensors are a drafter of, if any."""
    for method, converter in CONVERTERS.items():
        if converter.recognise(raw, tensors):
            return method
    return None


def plan(
    source: Path,
    method: str,
    raw: Mapping[str, Any],
    tensors: TensorFiles,
    dtype: str | None,
) -> Plan:
    """The conversion of a drafter of `method`, checked.

    Raises:
      ValueError: a key or a tensor is not what the method needs; it is named.
    """
    try:
        made = CONVERTERS[method].plan(raw, tensors)
        drafter: Any = METHODS[made.method]
        shapes = drafter.configure(made.config).weight_shapes()
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    waived = [*made.waived, *ignored(tensors)]
    found = match(source, tensors, made.lines, shapes, dtype, waived=waived)
    return Plan(
        kind="drafter",
        family=made.method,
        config=dict(made.config),
        lines=found,
        source={
            "container": "huggingface",
            "name": source.resolve().name,
            "config": dict(raw),
            "tensors": {line.weight: line.name for line in found},
            "waived": [name for name in tensors if name in waived],
            "conventions": {"matrices": "[out, in]", **made.conventions},
        },
        tokenizer_files={},
        notices=made.notices,
    )
