"""Target models, and the table of families that says which is built how."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.models.base import (
    LLAMAS,
    ModelConfig,
    Rope,
    Seen,
    Target,
    TargetConfig,
    weight_shapes,
)
from jspec.models.gemma import Gemma
from jspec.models.gemma_config import GEMMAS, GemmaConfig
from jspec.models.llama import Decoder

__all__ = [
    "FAMILIES",
    "Decoder",
    "Gemma",
    "GemmaConfig",
    "ModelConfig",
    "Rope",
    "Seen",
    "Target",
    "TargetConfig",
    "build",
    "config_from_json",
    "logits",
    "random_weights",
    "weight_shapes",
]


FAMILIES: Mapping[str, tuple[type[Any], type[Any]]] = MappingProxyType(
    dict.fromkeys(LLAMAS, (ModelConfig, Decoder))
    | dict.fromkeys(GEMMAS, (GemmaConfig, Gemma))
)
"""The configuration and the model of each family."""


def build(config: TargetConfig, weights: Mapping[str, Array]) -> Any:
    """The model that a configuration describes, on the arrays given.

    Raises:
      ValueError: a weight is missing, left over or of the wrong shape; it is named.
    """
    return FAMILIES[config.family][1](config, weights)


def config_from_json(fields: Mapping[str, Any]) -> TargetConfig:
    """The configuration of any family, from what its `to_json` wrote.

    Raises:
      ValueError: the family or a key is not known, or a value cannot be.
    """
    family = fields["family"]
    if family not in FAMILIES:
        raise ValueError(
            f"model family {family!r} is not known; known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[family][0].from_json(fields)


def random_weights(
    config: TargetConfig, seed: int = 0, dtype: jax.typing.DTypeLike = jnp.float32
) -> dict[str, Array]:
    """Weights for tests and benchmarks: normal, norms around one, biases not zero."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        last = name.rsplit(".", 1)[-1]
        value = rng.standard_normal(shape, np.float32)
        if last.endswith(("norm", "scale", "scalar")):
            value = 1 + 0.1 * value
        elif len(shape) > 1:
            value *= shape[-1 if last.endswith("embed") else -2] ** -0.5
        else:
            value *= 0.1
        weights[name] = jnp.asarray(value, dtype)
    return weights


def logits(model: Target, ids: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """The model's logits at every position of whole texts, from an empty cache."""
    b, t = ids.shape
    layout = CacheLayout(rows=b, room=t, pages=b * -(-t // 16), page_size=16)
    per_row = -(-t // 16)
    table = np.full((b, layout.row_pages), layout.pages, np.int32)
    table[:, :per_row] = np.arange(b * per_row).reshape(b, per_row)
    cache = KVCache(
        pages=layer_pages(layout, model.config.cache_heads, model.dtype),
        table=jnp.asarray(table),
        length=jnp.zeros((b,), jnp.int32),
    )
    parent = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32) - 1, (b, t))
    seen = jax.jit(lambda model, *a: model(*a).logits)(
        model, jnp.asarray(ids, jnp.int32), parent, cache
    )
    assert seen is not None
    return seen
