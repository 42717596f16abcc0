"""EAGLE-3 (Li et al. 2025, arXiv:2503.01840): drafts from low, middle and high states.

Hidden states of three layers of the target are fused into one feature; a decoder layer
reads it beside the embedding of the token that followed, both normed, and its output is
the next feature. Its own head has a vocabulary of its own, the target's likeliest
tokens.

Three trainers' layouts differ in their norms, which `Eagle3Config` has as flags. What
differs from the paper: as in `eagle`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.eagle3_config import Eagle3Config
from jspec.drafters.layers import (
    Attend,
    borrowed_embedding,
    borrowed_head,
    check_sizes,
    check_weights,
    draft_layer,
)
from jspec.drafters.pair_drafts import check_options, draft
from jspec.drafters.pairs import PairModel, empty_pairs, observe_pairs
from jspec.drafters.ragged import Budgets, Ragged, asked
from jspec.models.base import Target
from jspec.models.layers import linear, norm
from jspec.rounds import Evidence, Proposal

__all__ = ["Eagle3"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3:
    """Drafts features of fused taps, one pass a token or a pass a level of a tree.

    Attributes:
      config: of the checkpoint.
      taps: residual-stream indices to read instead of the checkpoint's.
      gamma: drafted tokens along the longest path.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature. "auto": drawn in a chain, certain in a tree.
      tree_width: nodes of a level that grow on, and candidates of each; 1: a chain.
      tree_nodes: most nodes of a tree, the anchor included; `None`: 32.
      window: the drafter sees so many of the newest tokens; `None`: as in its config.
      sink: and so many of the first ones.
      confidence_threshold: a chain ends before its survival falls below it.
      ragged: how the chains of a round share a budget of verified drafts: `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="Li et al. 2025, arXiv:2503.01840",
        idea="a layer drafts from low, middle and high states of the target",
        weights="an EAGLE-3 head made for the target",
        passes="gamma",
        topology="tree",
        q=("dense", "sparse", "certain"),
    )
    config: Eagle3Config
    taps: Sequence[int] | None = None
    gamma: int = 4
    draft_sampling: Literal["auto", "greedy", "probabilistic"] = "auto"
    tree_width: int = 1
    tree_nodes: int | None = None
    window: int | None = None
    sink: int = 0
    confidence_threshold: float = 0.0
    ragged: Literal["static", "cap-accept", "compact"] = "static"
    ragged_budget: Budgets | None = None

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        check_options(self)
        if self.taps is not None:
            config = dataclasses.replace(self.config, taps=tuple(self.taps))
            object.__setattr__(self, "config", config)
            object.__setattr__(self, "taps", None)

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration."""
        return cls(config=Eagle3Config.from_json(config), **options)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The tapped states."""
        if self.config.taps is None:
            raise ValueError("an EAGLE-3 head must be fitted to its target first")
        return self.config.taps

    @property
    def branching(self) -> bool:
        """Whether it grows a tree."""
        return self.tree_width > 1

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    def fit(self, target: Target) -> Self:
        """Taps what the paper taps of a target of so many layers, if nothing else."""
        if self.config.taps is not None:
            return self
        layers = target.config.num_layers
        taps = (2, layers // 2, layers - 3)
        if not min(taps) >= 0 or len(set(taps)) < 3 or max(taps) > layers:
            raise ValueError(
                f"the drafter of method 'eagle3' does not say what it taps, and the "
                f"default of a target of {layers} layers would be {taps}; give "
                f"method_options={{'taps': ...}}, three residual-stream indices"
            )
        config = dataclasses.replace(self.config, taps=taps)
        return dataclasses.replace(self, config=config)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        return self.config.shapes()

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        config = self.config
        check_weights("eagle3", weights, self.weight_shapes())
        check_sizes(
            "eagle3",
            target,
            hidden_size=config.target_hidden_size,
            vocab_size=config.vocab_size,
        )
        ours, theirs = config.sizes.hidden_size, config.target_hidden_size
        own_logits = config.own_head or config.tied_head
        lent = not (config.own_embedding and own_logits)
        if lent and ours != theirs:
            raise ValueError(
                f"the drafter of method 'eagle3' is {ours} wide and lacks an embedding "
                f"or a head; the target's are {theirs} wide"
            )
        taps, layers = self.feature_layers, target.config.num_layers
        if not all(0 <= tap <= layers for tap in taps) or len(set(taps)) < len(taps):
            raise ValueError(
                f"taps {taps} must be different residual-stream indices in 0..{layers}"
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
        model = self.model(weights, view.target)
        return draft(self, model, memory, anchor, keys, view), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Writes the pairs of committed tokens."""
        model = self.model(weights, view.target)
        return observe_pairs(model, memory, evidence, view.cache)

    def model(self, weights: Any, target: Any) -> PairModel:
        """The functions of these weights and of what the target lends."""
        config = self.config
        sizes = config.sizes.narrowed(self.window)

        def normed(x: Array, name: str) -> Array:
            return norm(x, weights[name], sizes.norm_eps)

        def fuse(taps: Array) -> Array:
            taps = taps.astype(weights["fc"].dtype)
            if config.tap_norms:
                parts = jnp.split(taps, config.tap_count, axis=-1)
                parts = [normed(x, f"tap_norms.{i}") for i, x in enumerate(parts)]
                taps = jnp.concatenate(parts, axis=-1)
            if config.fuse_norm:
                taps = normed(taps, "fuse_norm")
            return linear(taps, weights["fc"])

        def forward(
            features: Array, tokens: Array, position: Array, attend: Attend
        ) -> Array:
            embedded = borrowed_embedding(weights, target, tokens)
            embedded = embedded.astype(features.dtype)
            feature = normed(features, "layers.0.feature_norm")
            read = [normed(embedded, "layers.0.attention_norm"), feature]
            x = draft_layer(
                sizes,
                weights,
                0,
                jnp.concatenate(read, axis=-1),
                feature if config.normed_residual else features,
                position,
                attend,
            )
            for l in range(1, sizes.num_layers):
                y = normed(x, f"layers.{l}.attention_norm")
                x = draft_layer(sizes, weights, l, y, x, position, attend)
            return x

        def final(hidden: Array) -> Array:
            return normed(hidden, "norm") if config.final_norm else hidden

        def logits(hidden: Array) -> Array:
            x = final(hidden)
            if config.tied_head:
                return linear(x, weights["embed"], transposed=True, out=jnp.float32)
            return borrowed_head(weights, target, x)

        return PairModel(
            sizes=sizes,
            fuse=fuse,
            forward=forward,
            feed=final if config.normed_feed else lambda hidden: hidden,
            logits=logits,
            ids=weights.get("ids"),
            sink=self.sink,
        )
