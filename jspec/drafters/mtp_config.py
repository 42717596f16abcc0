"""MTP modules: what they are made of, and the functions of one module's weights."""

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

__all__ = ["MTPConfig", "mtp_model"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MTPConfig:
    """The modules of a checkpoint in full; families differ in the flags.

    Attributes:
      sizes: of a module's one layer.
      vocab_size: rows of the target's embedding.
      modules: one for each step; the last one for all steps behind it.
      hidden_first: whether the projection reads the hidden state before the
        embedding.
      zeroed_first: whether the embedding beside a text's first hidden state is zero.
      unit_norms: whether norms multiply with `1 + w`.
      normed_features: whether the target's state is read behind its final norm.
      normed_feed: whether a module's state is handed on behind its own final norm.
      final_norm: whether a module has one, before the head.
      own_embedding: whether each module brings one; else it reads the target's.
      own_head: whether each module brings one; else it uses the target's.
      target_layers: how many layers the target has, the last of which is read.
        `None`: as many as the target turns out to have.
    """

    sizes: LayerSizes
    vocab_size: int
    modules: int = 1
    hidden_first: bool = False
    zeroed_first: bool = False
    unit_norms: bool = False
    normed_features: bool = True
    normed_feed: bool = True
    final_norm: bool = True
    own_embedding: bool = False
    own_head: bool = False
    target_layers: int | None = None

    def __post_init__(self) -> None:
        """Refuses modules that cannot be."""
        if not isinstance(self.modules, int) or self.modules < 1:
            raise ValueError(f"modules must be at least 1, not {self.modules!r}")
        if self.sizes.num_layers != 1:
            raise ValueError(
                f"a module has one layer, not {self.sizes.num_layers}: num_layers of "
                f"its sizes"
            )
        if self.normed_feed and not self.final_norm:
            raise ValueError("normed_feed needs final_norm, which it hands on behind")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        return cls(**values | {"sizes": LayerSizes.from_json(values["sizes"])})

    def fitted(self, target: Target) -> Self:
        """Reads the last layer of this target, if it does not say how many it has."""
        return fitted_to(self, target)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return last_layer(self, "MTP modules must be fitted to their target first")

    def module_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of one module by dotted name; matrices are `[in, out]`."""
        e = self.sizes.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "token_norm": (e,),
            "feature_norm": (e,),
            "fc": (2 * e, e),
            **layer_shapes(self.sizes, 0),
        }
        if self.final_norm:
            shapes["norm"] = (e,)
        if self.own_embedding:
            shapes["embed"] = (self.vocab_size, e)
        if self.own_head:
            shapes["head"] = (e, self.vocab_size)
        return shapes

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of all modules."""
        return {
            f"modules.{step}.{name}": shape
            for step in range(self.modules)
            for name, shape in self.module_shapes().items()
        }

    def check(self, target: Target) -> None:
        """Refuses a target that they were not made for."""
        check_sizes(
            "mtp",
            target,
            hidden_size=self.sizes.hidden_size,
            vocab_size=self.vocab_size,
        )
        check_last_layer("mtp", self, target)


def mtp_model(
    config: MTPConfig,
    sizes: LayerSizes,
    weights: Mapping[str, Array],
    target: Any,
    *,
    sink: int = 0,
    lag: int = 1,
) -> PairModel:
    """The functions of one module, on its weights and what the target lends.

    Args:
      config: of the modules.
      sizes: of its layer, with the window that is in force.
      weights: the module's own, by name.
      target: lends an embedding, a head and its final norm.
      sink: so many of the first pairs are seen past a window.
      lag: the place of the module, counted from 1.
    """
    if config.unit_norms:
        weights = {
            name: _one_more(value) if name.endswith("norm") else value
            for name, value in weights.items()
        }

    def normed(x: Array, name: str) -> Array:
        return norm(x, weights[name], sizes.norm_eps)

    def fuse(taps: Array) -> Array:
        return target_feature(target, taps) if config.normed_features else taps

    def forward(
        features: Array, tokens: Array, position: Array, attend: Attend
    ) -> Array:
        embedded = borrowed_embedding(weights, target, tokens).astype(features.dtype)
        if config.zeroed_first:
            embedded = jnp.where((position == 0)[..., None], 0, embedded)
        pair = [normed(embedded, "token_norm"), normed(features, "feature_norm")]
        if config.hidden_first:
            pair.reverse()
        x = linear(jnp.concatenate(pair, axis=-1), weights["fc"])
        read = normed(x, "layers.0.attention_norm")
        return draft_layer(sizes, weights, 0, read, x, position, attend)

    def final(hidden: Array) -> Array:
        return normed(hidden, "norm") if config.final_norm else hidden

    return PairModel(
        sizes=sizes,
        fuse=fuse,
        forward=forward,
        feed=final if config.normed_feed else lambda hidden: hidden,
        logits=lambda hidden: borrowed_head(weights, target, final(hidden)),
        ids=None,
        sink=sink,
        lag=lag,
    )


def _one_more(weight: Array) -> Array:
    return (1 + weight.astype(jnp.float32)).astype(weight.dtype)
