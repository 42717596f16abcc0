"""EAGLE with several modules: the target's next features, a module for each step.

An EAGLE head is trained on the target's features and fed with its own; here step `s`
has a module of its own, which reads what module `s - 1` made of the token before. So
module `s` knows its input from training, and the chain is as deep as there are modules
(the multi-module form of multi-token prediction, DeepSeek-V3, arXiv:2412.19437, §2.2).

Module `s` reads, in the slot of a token, the state of module `s - 1` in the slot
before, and its position is `s + 1` less than the slot. A slot depends on nothing behind
it, so pages are shared and kept as in `pairs`; a module's next feature lies beside its
keys.
Drafting writes nothing: step `s` reads the anchor and the `s` drafts behind it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.eagle_head import EagleConfig, eagle_model
from jspec.drafters.layers import check_draft_sampling, check_weights, known_fields
from jspec.drafters.pairs import (
    PairModel,
    PairPages,
    empty_pairs,
    mixed,
    run,
    write_pairs,
)
from jspec.drafters.ragged import likeliest
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal
from jspec.sampling import draw, greedy, law, step_keys

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
        length = view.cache.length
        parent = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        parent = jnp.where((length > 0)[:, None], parent[None], DEAD)
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        tokens, laws, sure = [anchor], [], [jnp.ones(anchor.shape)]
        states = None
        for step in range(self.gamma):
            model = self._module(weights, step, view.target)
            states = _read(model, memory.pages[step], tokens, states, view)
            logits = model.logits(states[:, -1:])
            if self.draft_sampling == "greedy":
                tokens.append(greedy(logits)[:, 0])
            else:
                laws.append(law(logits, view.sampling)[:, 0])
                tokens.append(draw(step_keys(keys, step), laws[-1]))
            sure.append(likeliest(logits)[:, 0])
        q = jnp.stack([jnp.zeros_like(laws[0]), *laws], axis=1) if laws else None
        proposal = Proposal(
            tokens=jnp.stack(tokens, axis=1),
            parent=parent,
            q=q,
            confidence=jnp.stack(sure, axis=1),
        )
        return proposal, memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Writes the pairs of committed tokens, module after module."""
        assert evidence.features is not None
        features = self._module(weights, 0, view.target).fuse(evidence.features)
        pages = []
        for step in range(self.config.modules):
            model = self._module(weights, step, view.target)
            own, features = write_pairs(
                model, memory.pages[step], evidence, view.cache, features
            )
            pages.append(own)
        return dataclasses.replace(memory, pages=tuple(pages))

    def _module(self, weights: Any, step: int, target: Any) -> PairModel:
        prefix = f"modules.{step}."
        own = {
            name.removeprefix(prefix): value
            for name, value in weights.items()
            if name.startswith(prefix) or name in ("embed", "head")
        }
        return eagle_model(self.config.head.sizes, own, target, lag=step + 1)


def _read(
    model: PairModel,
    pages: PairPages,
    tokens: list[Array],
    before: Array | None,
    view: View,
) -> Array:
    """A module's states of the anchor and of the drafts so far."""
    length, table, many = view.cache.length, view.cache.table, len(tokens)
    slots = length[:, None] + jnp.arange(many)[None]
    features = pages.newest(table, length)[:, None]
    if before is not None:
        features = jnp.concatenate([features, before], axis=1)
    steps = jnp.arange(many)[None]
    among = (steps[:, :, None] >= steps[:, None]) & (slots >= model.lag)[:, None]

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        own = (k[:, :many], v[:, :many])
        return mixed(model, pages, table, length, layer, q, own, among, slots, slots)

    return run(model, features, jnp.stack(tokens, axis=1), slots - model.lag, attend)
