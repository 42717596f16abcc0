"""One EAGLE head: what it is made of, and the functions of its weights."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array

from jspec.drafters.layers import (
    Attend,
    LayerSizes,
    borrowed_embedding,
    borrowed_head,
    check_last_layer,
    check_sizes,
    draft_layer,
    fitted_to,
    known_fields,
    last_layer,
    layer_shapes,
    target_feature,
)
from jspec.drafters.pairs import PairModel
from jspec.models.base import Target
from jspec.models.layers import linear, norm

__all__ = ["EagleConfig", "eagle_model"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """An EAGLE head in full.

    Attributes:
      sizes: of its layers; the first has no norm before attention.
      vocab_size: rows of the target's embedding.
      fc_bias: whether the first projection has a bias.
      own_embedding: whether it brings an embedding; else it reads the target's.
      own_head: whether it brings a head; else it uses the target's.
      target_layers: how many layers the target has, the last of which is read.
        `None`: as many as the target turns out to have.
    """

    sizes: LayerSizes
    vocab_size: int
    fc_bias: bool = True
    own_embedding: bool = False
    own_head: bool = False
    target_layers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        values["sizes"] = LayerSizes.from_json(values["sizes"])
        return cls(**values)

    def fitted(self, target: Target) -> Self:
        """Reads the last layer of this target, if it does not say how many it has."""
        return fitted_to(self, target)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return last_layer(self, "an EAGLE head must be fitted to its target first")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by dotted name; matrices are `[in, out]`."""
        e = self.sizes.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc": (2 * e, e)}
        if self.fc_bias:
            shapes["fc_bias"] = (e,)
        for l in range(self.sizes.num_layers):
            shapes |= layer_shapes(self.sizes, l, normed=l > 0)
        if self.own_embedding:
            shapes["embed"] = (self.vocab_size, e)
        if self.own_head:
            shapes["head"] = (e, self.vocab_size)
        return shapes

    def check(self, target: Target) -> None:
        """Refuses a target that it was not made for."""
        check_sizes(
            "eagle",
            target,
            hidden_size=self.sizes.hidden_size,
            vocab_size=self.vocab_size,
        )
        check_last_layer("eagle", self, target)


def eagle_model(
    sizes: LayerSizes,
    weights: Mapping[str, Array],
    target: Any,
    *,
    sink: int = 0,
    lag: int = 1,
) -> PairModel:
    """The functions of one EAGLE head, on its weights and what the target lends."""

    def forward(
        features: Array, tokens: Array, position: Array, attend: Attend
    ) -> Array:
        embedded = borrowed_embedding(weights, target, tokens)
        pair = jnp.concatenate([embedded.astype(features.dtype), features], axis=-1)
        x = linear(pair, weights["fc"], weights.get("fc_bias"))
        for l in range(sizes.num_layers):
            read = x
            if l > 0:
                gain = weights[f"layers.{l}.attention_norm"]
                read = norm(x, gain, sizes.norm_eps)
            x = draft_layer(sizes, weights, l, read, x, position, attend)
        return x

    return PairModel(
        sizes=sizes,
        fuse=lambda taps: target_feature(target, taps),
        forward=forward,
        feed=lambda hidden: hidden,
        logits=lambda hidden: borrowed_head(weights, target, hidden),
        ids=None,
        sink=sink,
        lag=lag,
    )
