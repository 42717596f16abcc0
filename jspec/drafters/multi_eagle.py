"""EAGLE with several modules: the target's next features, a module for each step.

An EAGLE head is trained on the target's features and fed with its own; here step `s`
has a module of its own, which reads what module `s - 1` made of the token before. So
module `s` knows its input from training, and the chain is as deep as there are modules
(the multi-module form of multi-token prediction, DeepSeek-V3, arXiv:2412.19437, §2.2).

How modules read each other is `module_drafts`, which multi-token prediction shares.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.eagle_head import EagleConfig, eagle_model
from jspec.drafters.layers import check_draft_sampling, check_weights, known_fields
from jspec.drafters.module_drafts import (
    draft_modules,
    module_weights,
    observe_modules,
)
from jspec.drafters.pairs import PairModel, empty_pairs
from jspec.models.base import Target
from jspec.rounds import Evidence, Proposal

__all__ = ["MultiEagle", "MultiEagleConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiEagleConfig:
    """Several EAGLE heads of one size, which share embedding and head."""

    head: EagleConfig
    modules: int

    def __post_init__(self) -> None:
        """Refuses to draft nothing."""
        if self.modules < 1:
            raise ValueError(f"modules must be at least 1, not {self.modules}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        return cls(**values | {"head": EagleConfig.from_json(values["head"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiEagle:
    """Drafts a chain, each token with a module of its own.

    Attributes:
      config: of the checkpoint.
      gamma: modules in use.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature, and so are those of "auto".
    """

    about: ClassVar[About] = About(
        paper="DeepSeek-AI 2024, arXiv:2412.19437, section 2.2",
        idea="EAGLE with a module of its own for every drafted token",
        weights="EAGLE modules made for the target, one a step",
        passes="gamma",
        topology="chain",
        q=("dense", "certain"),
    )
    config: MultiEagleConfig
    gamma: int = 3
    draft_sampling: Literal["auto", "greedy", "probabilistic"] = "auto"
    branching = False

    def __post_init__(self) -> None:
        """Refuses more steps than there are modules, and other ways of drafting."""
        check_draft_sampling(self.draft_sampling, "auto", "greedy", "probabilistic")
        if not 0 <= self.gamma <= self.config.modules:
            raise ValueError(
                f"num_speculative_tokens must lie in 0..{self.config.modules}, the "
                f"modules there are, not {self.gamma}"
            )

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration; all its modules are used."""
        settled = MultiEagleConfig.from_json(config)
        for option in options:
            if option not in ("gamma", "draft_sampling"):
                raise ValueError(
                    f"{option} does not go with an EAGLE checkpoint of one module per "
                    f"step, which drafts a chain and sees all of the text"
                )
        fields: dict[str, Any] = {"gamma": settled.modules} | options
        return cls(config=settled, **fields)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return self.config.head.feature_layers

    def fit(self, target: Target) -> Self:
        """Reads the last layer of this target."""
        head = self.config.head.fitted(target)
        config = dataclasses.replace(self.config, head=head)
        return dataclasses.replace(self, config=config)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs; embedding and head are there once."""
        one = self.config.head.shapes()
        shared = {name: one[name] for name in ("embed", "head") if name in one}
        return shared | {
            f"modules.{step}.{name}": shape
            for step in range(self.config.modules)
            for name, shape in one.items()
            if name not in shared
        }

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        check_weights("eagle", weights, self.weight_shapes())
        self.config.head.check(target)

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Pages of every module, without pairs."""
        sizes, dtype = self.config.head.sizes, weights["modules.0.fc"].dtype
        one = [
            empty_pairs(sizes, layout, sizes.hidden_size, dtype).pages
            for _ in range(self.config.modules)
        ]
        return Memory(pages=tuple(one))

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Asks one module after the other; the memory stays as it is."""
        proposal = draft_modules(
            self._modules(weights, view.target),
            memory.pages,
            anchor,
            keys,
            view,
            gamma=self.gamma,
            certain=self.draft_sampling == "greedy",
        )
        return proposal, memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Writes the pairs of committed tokens, module after module."""
        modules = self._modules(weights, view.target)
        pages = observe_modules(modules, memory.pages, evidence, view.cache)
        return dataclasses.replace(memory, pages=pages)

    def _modules(self, weights: Any, target: Any) -> list[PairModel]:
        shared = {name: weights[name] for name in ("embed", "head") if name in weights}
        return [
            eagle_model(
                self.config.head.sizes,
                shared | module_weights(weights, step),
                target,
                lag=step + 1,
            )
            for step in range(self.config.modules)
        ]
