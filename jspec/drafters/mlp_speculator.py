"""MLP speculator (Wertheimer et al. 2024, arXiv:2404.19124): a small recurrent MLP.

A state begins as the target's last one behind its final norm; every step mixes in the
embedding of the token before and has weights of its own. What differs from the paper:
drafts may be drawn, and then carry their law; one chain is drafted, not several.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.layers import (
    check_draft_sampling,
    check_sizes,
    check_weights,
    fitted_to,
    known_fields,
    last_layer,
    without_padding,
)
from jspec.drafters.ragged import check_threshold, cut_unlikely, likeliest
from jspec.drafters.tail import newest_feature, remember_newest
from jspec.models.base import Target
from jspec.models.layers import embed, linear
from jspec.rounds import DEAD, Evidence, Proposal
from jspec.sampling import draw, greedy, law, step_keys

__all__ = ["MLPSpeculator", "MLPSpeculatorConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPSpeculatorConfig:
    """An MLP speculator in full.

    Attributes:
      hidden_size: of the target.
      vocab_size: of the target.
      inner_size: width of its state.
      steps: how many tokens it was trained to draft.
      scaled_input: whether the first state is normed and divided by the root of 2.
      tied: whether all steps share embedding, head and norm, and all but the first
        their projection.
      target_layers: how many layers the target has, the last of which is read.
        `None`: as many as the target turns out to have.
    """

    hidden_size: int
    vocab_size: int
    inner_size: int
    steps: int
    scaled_input: bool = False
    tied: bool = False
    target_layers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        return cls(**known_fields(cls, fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPSpeculator:
    """Drafts a chain, one small step a token.

    Attributes:
      config: of the checkpoint.
      gamma: drafted tokens a round.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature.
      confidence_threshold: a chain ends before its survival falls below it.
    """

    about: ClassVar[About] = About(
        paper="Wertheimer et al. 2024, arXiv:2404.19124",
        idea="a recurrent MLP drafts from the target's last state and each token",
        weights="an MLP speculator made for the target",
        passes="gamma",
        topology="chain",
        q=("dense", "certain"),
    )
    config: MLPSpeculatorConfig
    gamma: int = 3
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    confidence_threshold: float = 0.0
    branching = False

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        if not 0 <= self.gamma <= self.config.steps:
            raise ValueError(
                f"num_speculative_tokens must lie in 0..{self.config.steps}, the steps "
                f"this speculator has weights for, not {self.gamma}"
            )
        check_draft_sampling(self.draft_sampling, "greedy", "probabilistic")
        check_threshold(self.confidence_threshold)

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A speculator of a checkpoint's configuration; up to three steps are used."""
        settled = MLPSpeculatorConfig.from_json(config)
        fields: dict[str, Any] = {"gamma": min(3, settled.steps)} | options
        return cls(config=settled, **fields)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return last_layer(
            self.config, "an MLP speculator must be fitted to its target first"
        )

    def fit(self, target: Target) -> Self:
        """Reads the last layer of this target."""
        return dataclasses.replace(self, config=fitted_to(self.config, target))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs; what is tied is there once."""
        config, d = self.config, self.config.inner_size
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(config.steps):
            if i < (2 if config.tied else config.steps):
                shapes[f"steps.{i}.project"] = (d if i else config.hidden_size, d)
            if i == 0 or not config.tied:
                shapes[f"steps.{i}.embed"] = (config.vocab_size, d)
                shapes[f"steps.{i}.head"] = (d, config.vocab_size)
                shapes[f"steps.{i}.norm"] = (d,)
                shapes[f"steps.{i}.norm_bias"] = (d,)
        return shapes

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        config = self.config
        check_weights("mlp_speculator", weights, self.weight_shapes())
        check_sizes(
            "mlp_speculator",
            target,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """One state a page."""
        dtype = weights["steps.0.head"].dtype
        return Memory(pages=jnp.zeros((layout.pages, self.config.hidden_size), dtype))

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Steps on from the newest state and the anchor."""
        length = view.cache.length
        parent = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        parent = jnp.where((length > 0)[:, None], parent[None], DEAD)
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        size = view.cache.pages.text.shape[1]
        state = newest_feature(memory.pages, view.cache.table, length, size=size)
        state = self.first(state[:, None])
        tokens, laws, sure = [anchor], [], [jnp.ones(anchor.shape)]
        for step in range(self.gamma):
            state = self.step(weights, step, state, tokens[-1])
            head = weights[f"steps.{0 if self.config.tied else step}.head"]
            logits = without_padding(linear(state, head, out=jnp.float32), view.target)
            if self.draft_sampling == "greedy":
                tokens.append(greedy(logits)[:, 0])
            else:
                laws.append(law(logits, view.sampling)[:, 0])
                tokens.append(draw(step_keys(keys, step), laws[-1]))
            sure.append(likeliest(logits)[:, 0])
        q = None
        if laws:
            q = jnp.stack([jnp.zeros_like(laws[0]), *laws], axis=1)
        proposal = Proposal(
            tokens=jnp.stack(tokens, axis=1),
            parent=parent,
            q=q,
            confidence=jnp.stack(sure, axis=1),
        )
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Remembers the newest state."""
        return remember_newest(memory, evidence, view)

    def first(self, state: Float[Array, "B 1 E"]) -> Float[Array, "B 1 E"]:
        """What the first step reads: the target's state, scaled if need be."""
        return _normed(state) / math.sqrt(2) if self.config.scaled_input else state

    def step(
        self,
        weights: Any,
        step: int,
        state: Float[Array, "B 1 S"],
        token: Int[Array, " B"],
    ) -> Float[Array, "B 1 D"]:
        """The state behind one more token; the two parts keep their variance."""
        config = self.config
        shared = 0 if config.tied else step
        of_state = 0.5 ** (0.5 / config.steps)
        of_token = math.sqrt((1 - of_state**2) * config.inner_size / 2)
        own = min(step, 1) if config.tied else step
        x = linear(state, weights[f"steps.{own}.project"])
        seen = embed(weights[f"steps.{shared}.embed"], token[:, None])
        x = _normed(x + (of_token / of_state) * seen)
        x = x * weights[f"steps.{shared}.norm"][None, None]
        x = x + weights[f"steps.{shared}.norm_bias"][None, None]
        return jax.nn.gelu(x, approximate=False)


def _normed(x: Float[Array, "B 1 D"]) -> Float[Array, "B 1 D"]:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)
