"""What a line of a family's table means: a name there, a name here, a change."""

from collections.abc import Callable, Mapping

import numpy as np

from jspec.models.base import ModelConfig, weight_shapes

__all__ = [
    "IGNORED",
    "Change",
    "Table",
    "lines",
    "same",
    "source_shape",
    "transpose",
    "unpermute_keys",
    "unpermute_queries",
]

type Change = Callable[[np.ndarray, ModelConfig], np.ndarray]
type Table = Mapping[str, tuple[str, Change]]

IGNORED = (
    "model.layers.{l}.self_attn.rotary_emb.inv_freq",
    "rope_freqs.weight",
)
"""Frequencies follow from the configuration; files may carry them all the same."""


def same(array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Taken as it is."""
    return array


def transpose(array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """`[out, in]` to `[in, out]`, or back."""
    return np.ascontiguousarray(array.T)


def unpermute_queries(array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Rows of GGUF's `llama` back from interleaved to half-split rope, per head."""
    return _unpermute(array, config.num_heads)


def unpermute_keys(array: np.ndarray, config: ModelConfig) -> np.ndarray:
    """As `unpermute_queries`, over the key heads."""
    return _unpermute(array, config.num_key_heads)


def _unpermute(array: np.ndarray, heads: int) -> np.ndarray:
    rows, *rest = array.shape
    halves = array.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2)
    rows_back = halves.reshape(array.shape)
    return np.ascontiguousarray(rows_back.T)


def lines(table: Table, config: ModelConfig) -> dict[str, tuple[str, Change]]:
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


def source_shape(shape: tuple[int, ...], change: Change) -> tuple[int, ...]:
    """What shape a tensor has there when it has `shape` here."""
    return shape if change is same else shape[::-1]
