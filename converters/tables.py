"""What a line of a family's table means: a name there, a name here, a change."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jspec.models.base import TargetConfig, weight_shapes

__all__ = [
    "IDS",
    "Change",
    "Table",
    "flatten",
    "from_offsets",
    "idle_keys",
    "ignored",
    "integers",
    "lines",
    "same",
    "source_shape",
    "to_offsets",
    "transpose",
    "transpose_each",
    "unpermute_keys",
    "unpermute_queries",
]

type Change = Callable[[np.ndarray, Any], np.ndarray]
type Table = Mapping[str, tuple[str, Change]]

IGNORED = (
    "model.layers.{l}.self_attn.rotary_emb.inv_freq",
    "rope_freqs.weight",
)
"""Frequencies follow from the configuration; files may carry them all the same."""


def same(array: np.ndarray, config: Any) -> np.ndarray:
    """Taken as it is."""
    return array


def transpose(array: np.ndarray, config: Any) -> np.ndarray:
    """`[out, in]` to `[in, out]`, or back."""
    return np.ascontiguousarray(array.T)


def transpose_each(array: np.ndarray, config: Any) -> np.ndarray:
    """`transpose` of several matrices that lie in one array, such as experts."""
    return np.ascontiguousarray(array.swapaxes(-1, -2))


def flatten(array: np.ndarray, config: Any) -> np.ndarray:
    """One axis, whatever they were."""
    return array.reshape(-1)


def integers(array: np.ndarray, config: Any) -> np.ndarray:
    """Ids in 32 bits."""
    return array.astype(np.int32)


def from_offsets(array: np.ndarray, config: Any) -> np.ndarray:
    """EAGLE-3's `d2t`, how far each draft id is from its target id, to target ids."""
    return (np.arange(array.size) + array).astype(np.int32)


def to_offsets(array: np.ndarray, config: Any) -> np.ndarray:
    """The way back of `from_offsets`."""
    return (array - np.arange(array.size)).astype(np.int64)


IDS = (integers, from_offsets, to_offsets)
"""Changes of integers, which no dtype of weights is for."""


def unpermute_queries(array: np.ndarray, config: Any) -> np.ndarray:
    """Rows of GGUF's `llama` back from interleaved to half-split rope, per head."""
    return _unpermute(array, config.num_heads)


def unpermute_keys(array: np.ndarray, config: Any) -> np.ndarray:
    """As `unpermute_queries`, over the key heads."""
    return _unpermute(array, config.num_key_heads)


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    rows, *rest = array.shape
    halves = array.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2)
    rows_back = halves.reshape(array.shape)
    return np.ascontiguousarray(rows_back.T)


def lines(table: Table, config: TargetConfig) -> dict[str, tuple[str, Change]]:
    """The lines that `config` needs, its layers written out, by jspec's name.

    Raises:
      ValueError: the family's table has no line for a weight of the configuration.
    """
    found = {
        weight.replace("{l}", str(l)): (name.replace("{l}", str(l)), change)
        for name, (weight, change) in table.items()
        for l in range(config.num_layers if "{l}" in name else 1)
    }
    wanted = weight_shapes(config)
    for weight in wanted:
        if weight not in found:
            raise ValueError(
                f"the family {config.family} has no tensor for the weight {weight}"
            )
    return {weight: found[weight] for weight in wanted}


def source_shape(shape: tuple[int, ...], change: Change) -> tuple[int, ...] | None:
    """The shape there of what has `shape` here; `None`: only reading it can tell."""
    if change is same or change in IDS:
        return shape
    if change is transpose_each:
        return (*shape[:-2], shape[-1], shape[-2])
    return None if change is flatten else shape[::-1]


def idle_keys(config: TargetConfig) -> list[str]:
    """What files may hold of layers that read the keys of others: it is never used."""
    return [
        f"model.layers.{l}.self_attn.{name}.weight"
        for l in range(config.num_layers)
        if not config.stores(l)
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
    ]


def ignored(tensors: Iterable[str]) -> list[str]:
    """Those of the tensors that say nothing new."""
    rules = [re.compile(re.escape(name).replace(r"\{l\}", r"\d+")) for name in IGNORED]
    return [name for name in tensors if any(rule.fullmatch(name) for rule in rules)]
