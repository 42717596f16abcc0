"""EAGLE (Li et al. 2024, arXiv:2401.15077): drafts the target's next feature.

One decoder layer reads the target's last feature beside the embedding of the token that
followed it, and says the next feature; the target's own head makes a token of that.
EAGLE-2 (arXiv:2406.16858) is the same weights with a tree that grows where the draft is
confident: `tree_width`. HASS (arXiv:2408.15766) trains the same layer otherwise.

What differs from the paper: drafts may be drawn, and then carry their law; a tree's
nodes are the likeliest tokens, so they are certain, and the output follows the target's
law all the same.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.layers import (
    Attend,
    LayerSizes,
    borrowed_embedding,
    borrowed_head,
    check_sizes,
    check_weights,
    draft_layer,
    known_fields,
    layer_shapes,
    target_feature,
)
from jspec.drafters.pair_drafts import check_options, draft
from jspec.drafters.pairs import PairModel, empty_pairs, observe_pairs
from jspec.models.base import Target
from jspec.models.layers import linear, norm
from jspec.rounds import Evidence, Proposal

__all__ = ["Eagle", "EagleConfig", "eagle_model"]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle:
    """Drafts features, one pass a token or a pass a level of a tree.

    Attributes:
      config: of the checkpoint.
      gamma: drafted tokens along the longest path.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature. "auto": drawn in a chain, certain in a tree.
      tree_width: nodes of a level that grow on, and candidates of each; 1: a chain.
      tree_nodes: most nodes of a tree, the anchor included.
      window: the drafter sees so many of the newest tokens; `None`: as in its config.
      sink: and so many of the first ones.
      confidence_threshold: a chain ends before its survival falls below it.
    """

    about: ClassVar[About] = About(
        paper="Li et al. 2024, arXiv:2401.15077; EAGLE-2, arXiv:2406.16858",
        idea="one layer drafts the target's next feature; the target's head reads it",
        weights="an EAGLE head made for the target",
        passes="gamma",
        topology="tree",
        q=("dense", "certain"),
    )
    config: EagleConfig
    gamma: int = 4
    draft_sampling: Literal["auto", "greedy", "probabilistic"] = "auto"
    tree_width: int = 1
    tree_nodes: int = 32
    window: int | None = None
    sink: int = 0
    confidence_threshold: float = 0.0

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        check_options(self)

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration."""
        return cls(config=EagleConfig.from_json(config), **options)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        if self.config.target_layers is None:
            raise ValueError("an EAGLE head must be fitted to its target first")
        return (self.config.target_layers,)

    @property
    def branching(self) -> bool:
        """Whether it grows a tree."""
        return self.tree_width > 1

    def fit(self, target: Target) -> Self:
        """Reads the last layer of this target."""
        layers = self.config.target_layers or target.config.num_layers
        config = dataclasses.replace(self.config, target_layers=layers)
        return dataclasses.replace(self, config=config)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        config, e = self.config, self.config.sizes.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc": (2 * e, e)}
        if config.fc_bias:
            shapes["fc_bias"] = (e,)
        for l in range(config.sizes.num_layers):
            shapes |= layer_shapes(config.sizes, l, normed=l > 0)
        if config.own_embedding:
            shapes["embed"] = (config.vocab_size, e)
        if config.own_head:
            shapes["head"] = (e, config.vocab_size)
        return shapes

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        check_weights("eagle", weights, self.weight_shapes())
        check_sizes(
            "eagle",
            target,
            hidden_size=self.config.sizes.hidden_size,
            vocab_size=self.config.vocab_size,
        )
        if self.feature_layers != (target.config.num_layers,):
            raise ValueError(
                f"the drafter of method 'eagle' reads layer {self.feature_layers[0]}, "
                f"the last of its target; this one has {target.config.num_layers}"
            )

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Pages without pairs."""
        sizes = self.config.sizes
        return empty_pairs(sizes, layout, sizes.hidden_size, weights["fc"].dtype)

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts from the newest pair; the memory stays as it is."""
        model = self._model(weights, view)
        return draft(self, model, memory, anchor, keys, view), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Writes the pairs of committed tokens."""
        return observe_pairs(self._model(weights, view), memory, evidence, view.cache)

    def _model(self, weights: Any, view: View) -> PairModel:
        sizes = self.config.sizes.narrowed(self.window)
        return eagle_model(sizes, weights, view.target, sink=self.sink)


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
