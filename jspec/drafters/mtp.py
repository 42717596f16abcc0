"""Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, §2.2): modules of the target.

A module that was trained with the target reads the target's last state beside the
embedding of the token that followed, both normed and projected to one, and its layer
says the token after that. One module is used again and again, fed with its own states;
where there are several, each step has its own (`module_drafts`).

What differs from the paper: modules draft and do not train the target; drafts may be
drawn, and then carry their law. A tree grows as EAGLE-2's does, from one module.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.layers import check_weights
from jspec.drafters.module_drafts import (
    draft_modules,
    module_weights,
    observe_modules,
)
from jspec.drafters.mtp_config import MTPConfig, mtp_model
from jspec.drafters.pair_drafts import check_options, draft
from jspec.drafters.pairs import PairModel, empty_pairs, observe_pairs
from jspec.drafters.ragged import Budgets, Ragged, asked, cut_unlikely
from jspec.models.base import Target
from jspec.rounds import Evidence, Proposal

__all__ = ["MTP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MTP:
    """Drafts with the target's own modules, one pass a token or a level of a tree.

    Attributes:
      config: of the checkpoint.
      gamma: drafted tokens along the longest path.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature. "auto": drawn in a chain, certain in a tree.
      tree_width: nodes of a level that grow on, and candidates of each; 1: a chain.
      tree_nodes: most nodes of a tree, the anchor included; `None`: 32.
      window: modules see so many of the newest tokens; `None`: as in the config.
      sink: and so many of the first ones.
      confidence_threshold: a chain ends before its survival falls below it.
      ragged: how the chains of a round share a budget of verified drafts: `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="DeepSeek-AI 2024, arXiv:2412.19437, section 2.2",
        idea="modules trained with the target draft from its last state",
        weights="MTP modules made with the target",
        bundled=True,
        passes="gamma",
        topology="tree",
        q=("dense", "certain"),
    )
    config: MTPConfig
    gamma: int = 3
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
        if self.tree_width > 1 and self.config.modules > 1:
            raise ValueError(
                f"tree_width={self.tree_width} needs a single MTP module; with "
                f"{self.config.modules} modules, one a step, a chain is drafted"
            )

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration; several modules are all used."""
        settled = MTPConfig.from_json(config)
        fields: dict[str, Any] = dict(options)
        if settled.modules > 1:
            fields.setdefault("gamma", settled.modules)
        return cls(config=settled, **fields)

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
        check_weights("mtp", weights, self.weight_shapes())
        self.config.check(target)

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Pages of every module, without pairs."""
        sizes, dtype = self.config.sizes, weights["modules.0.fc"].dtype
        pages = [
            empty_pairs(sizes, layout, sizes.hidden_size, dtype).pages
            for _ in range(self.config.modules)
        ]
        return Memory(pages=tuple(pages) if len(pages) > 1 else pages[0])

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts from the newest pair; the memory stays as it is."""
        models = self.models(weights, view.target)
        if len(models) == 1:
            return draft(self, models[0], memory, anchor, keys, view), memory
        proposal = draft_modules(
            models,
            memory.pages,
            anchor,
            keys,
            view,
            gamma=self.gamma,
            certain=self.draft_sampling == "greedy",
        )
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Writes the pairs of committed tokens, module after module."""
        models = self.models(weights, view.target)
        if len(models) == 1:
            return observe_pairs(models[0], memory, evidence, view.cache)
        pages = observe_modules(models, memory.pages, evidence, view.cache)
        return dataclasses.replace(memory, pages=pages)

    def models(self, weights: Any, target: Any) -> list[PairModel]:
        """The functions of each module's weights and of what the target lends."""
        sizes = self.config.sizes.narrowed(self.window)
        return [
            mtp_model(
                self.config,
                sizes,
                module_weights(weights, step),
                target,
                sink=self.sink,
                lag=step + 1,
            )
            for step in range(self.config.modules)
        ]
