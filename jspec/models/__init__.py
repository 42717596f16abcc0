"""Target models: one family a file."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jspec.cache import CacheLayout, KVCache, empty_pages
from jspec.models.base import (
    FAMILIES,
    ModelConfig,
    Rope,
    Seen,
    Target,
    weight_shapes,
)
from jspec.models.llama import Decoder

__all__ = [
    "FAMILIES",
    "Decoder",
    "ModelConfig",
    "Rope",
    "Seen",
    "Target",
    "build",
    "logits",
    "random_weights",
    "weight_shapes",
]


def build(config: ModelConfig, weights: Mapping[str, Array]) -> Decoder:
    """The model that a configuration describes, on the arrays given.

    Raises:
      ValueError: a weight is missing, left over or of the wrong shape; it is named.
    """
    return Decoder(config, weights)


def random_weights(
    config: ModelConfig, seed: int = 0, dtype: jax.typing.DTypeLike = jnp.float32
) -> dict[str, Array]:
    """Weights for tests and benchmarks: normal, norms around one, biases not zero."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        last = name.rsplit(".", 1)[-1]
        value = rng.standard_normal(shape, np.float32)
        if last.endswith("norm"):
            value = 1 + 0.1 * value
        elif len(shape) == 2:
            value *= shape[-1 if last == "embed" else 0] ** -0.5
        else:
            value *= 0.1
        weights[name] = jnp.asarray(value, dtype)
    return weights


def logits(model: Decoder, ids: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """The model's logits at every position of whole texts, from an empty cache."""
    b, t = ids.shape
    config = model.config
    layout = CacheLayout(rows=b, room=t, pages=b * -(-t // 16), page_size=16)
    per_row = -(-t // 16)
    table = np.full((b, layout.row_pages), layout.pages, np.int32)
    table[:, :per_row] = np.arange(b * per_row).reshape(b, per_row)
    cache = KVCache(
        pages=empty_pages(
            layout,
            layers=config.num_layers,
            key_heads=config.num_key_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
        ),
        table=jnp.asarray(table),
        length=jnp.zeros((b,), jnp.int32),
    )
    parent = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32) - 1, (b, t))
    seen = jax.jit(lambda model, *a: model(*a).logits)(
        model, jnp.asarray(ids, jnp.int32), parent, cache
    )
    assert seen is not None
    return seen
