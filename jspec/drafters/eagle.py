"""EAGLE (Li et al. 2024, arXiv:2401.15077): drafts the target's next feature.

One decoder layer reads the target's last feature beside the embedding of the token that
followed it, and says the next feature; the target's own head makes a token of that.
EAGLE-2 (arXiv:2406.16858) is the same weights with a tree that grows where the draft is
confident: `tree_width`. HASS (arXiv:2408.15766) trains the same layer otherwise. A
checkpoint with a module for each step is `multi_eagle`.

What differs from the paper: drafts may be drawn, and then carry their law; a tree's
nodes are the likeliest tokens, so they are certain, and the output follows the target's
law all the same.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.eagle_head import EagleConfig, eagle_model
from jspec.drafters.layers import check_weights
from jspec.drafters.multi_eagle import MultiEagle
from jspec.drafters.pair_drafts import check_options, draft
from jspec.drafters.pairs import PairModel, empty_pairs, observe_pairs
from jspec.drafters.ragged import Budgets, Ragged, asked
from jspec.models.base import Target
from jspec.rounds import Evidence, Proposal

__all__ = ["Eagle"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle:
    """Drafts features, one pass a token or a pass a level of a tree.

    Attributes:
      config: of the checkpoint.
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
    tree_nodes: int | None = None
    window: int | None = None
    sink: int = 0
    confidence_threshold: float = 0.0
    ragged: Literal["static", "cap-accept", "compact"] = "static"
    ragged_budget: Budgets | None = None

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        check_options(self)

    @classmethod
    def configure(
        cls, config: Mapping[str, Any], **options: Any
    ) -> "Eagle | MultiEagle":
        """A drafter for a checkpoint's configuration: of one head, or one a step."""
        if "modules" in config:
            return MultiEagle.configure(config, **options)
        return cls(config=EagleConfig.from_json(config), **options)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return self.config.feature_layers

    @property
    def branching(self) -> bool:
        """Whether it grows a tree."""
        return self.tree_width > 1

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    def fit(self, target: Target) -> Self:
        """Reads the last layer of this target."""
        return dataclasses.replace(self, config=self.config.fitted(target))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        return self.config.shapes()

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        check_weights("eagle", weights, self.weight_shapes())
        self.config.check(target)

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
        sizes = self.config.sizes.narrowed(self.window)
        return eagle_model(sizes, weights, target, sink=self.sink)
