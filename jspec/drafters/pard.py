"""PARD (An et al. 2025, arXiv:2504.18583): a language model drafts a block at once."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec import models
from jspec.cache import CacheLayout, KVCache, Pages, empty_pages
from jspec.drafters.base import About, Memory, View
from jspec.drafters.block_config import check_drafting
from jspec.drafters.layers import check_weights, known_fields
from jspec.drafters.ragged import Budgets, Ragged, asked, cut_unlikely, likeliest
from jspec.models.base import ModelConfig, Seen, Target
from jspec.rounds import Evidence, Proposal
from jspec.sampling import draw_each, greedy, law

__all__ = ["PARD", "PARDConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PARDConfig:
    """A language model that was taught to fill masks in behind a text.

    Attributes:
      model: the language model.
      mask_token_id: what stands for a token not known yet (`pard_token`).
    """

    model: ModelConfig
    mask_token_id: int

    def __post_init__(self) -> None:
        """Refuses a mask that has no embedding."""
        if not 0 <= self.mask_token_id < self.model.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} is no row of an embedding of "
                f"{self.model.vocab_size}"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        model = ModelConfig.from_json(known_fields(ModelConfig, values["model"]))
        return cls(model=model, mask_token_id=values["mask_token_id"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PARD:
    """Drafts `[anchor, mask, mask, ...]` in one causal pass of a small language model.

    The row of the anchor speaks of the first draft, each mask's of the next. Masks
    know how many they are and not what stands before them, so a draft's law depends
    on the text alone.

    Differs from the paper: what was accepted is read when it becomes permanent, in a
    pass of its own without a head, and not in front of the next round's masks. So
    pages are complete whoever reads them next, and a round takes two narrow passes.

    Attributes:
      config: of the checkpoint.
      gamma: drafted tokens.
      draft_sampling: "probabilistic" draws and reports the law; "greedy" drafts the
        likeliest token, with certainty.
      confidence_threshold: drafts that are less likely than this to be kept are not
        offered; the confidence is what the law gives its likeliest token.
      ragged: how rows share a budget of verified drafts: see `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="An et al. 2025, arXiv:2504.18583",
        idea="a small language model fills in a block of masks in one pass",
        weights="a language model trained for PARD, with the target's tokenizer",
        passes="one",
        topology="block",
        q=("dense", "certain"),
    )
    config: PARDConfig
    gamma: int = 8
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    confidence_threshold: float = 0.0
    ragged: Literal["static", "cap-accept", "compact"] = "static"
    ragged_budget: Budgets | None = None
    feature_layers = ()
    branching = False

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        if self.gamma < 0:
            raise ValueError(f"gamma must be at least 0, not {self.gamma}")
        check_drafting(self)

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration."""
        return cls(config=PARDConfig.from_json(config), **options)

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The language model's."""
        return models.weight_shapes(self.config.model)

    def check(self, weights: Any, target: Target) -> None:
        """Refuses a model without some of the target's tokens."""
        check_weights("pard", weights, self.weight_shapes())
        ours, theirs = self.config.model.vocab_size, target.config.tokens
        if ours < theirs:
            raise ValueError(
                f"the drafter of method 'pard' has {ours} tokens, the target {theirs}: "
                f"drafting needs one vocabulary"
            )

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Empty pages of its own."""
        model = self.config.model
        return Memory(
            pages=empty_pages(
                layout,
                layers=model.num_layers,
                key_heads=model.num_key_heads,
                head_dim=model.head_dim,
                dtype=weights["embed"].dtype,
            )
        )

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts all tokens in one pass; the masks' keys are overwritten later."""
        nodes = jnp.arange(self.gamma + 1, dtype=jnp.int32)[None]
        parent = jnp.broadcast_to(nodes - 1, (anchor.shape[0], self.gamma + 1))
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        mask = self.config.mask_token_id
        block = jnp.where(nodes[:, :-1] == 0, anchor[:, None], mask)
        seen = self._pass(weights, memory.pages, view.cache, block, view.cache.length)
        assert seen.logits is not None
        logits = _over(seen.logits, view.target.config)
        if self.draft_sampling == "greedy":
            tokens, q = greedy(logits), None
        else:
            q = law(logits, view.sampling)
            tokens = draw_each(keys, q)
            q = jnp.pad(q, ((0, 0), (1, 0), (0, 0)))
        sure = jnp.pad(likeliest(logits), ((0, 0), (1, 0)), constant_values=1.0)
        proposal = Proposal(
            tokens=jnp.concatenate([anchor[:, None], tokens], axis=1),
            parent=parent,
            q=q,
            confidence=sure,
        )
        memory = dataclasses.replace(memory, pages=seen.cache.pages)
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Reads what became permanent, over the masks."""
        seen = self._pass(
            weights,
            memory.pages,
            view.cache,
            evidence.tokens,
            evidence.start,
            logits=False,
        )
        return dataclasses.replace(memory, pages=seen.cache.pages)

    def _pass(
        self,
        weights: Any,
        pages: Pages,
        cache: KVCache,
        tokens: Int[Array, "B N"],
        start: Int[Array, " B"],
        *,
        logits: bool = True,
    ) -> Seen:
        parent = jnp.arange(tokens.shape[1], dtype=jnp.int32) - 1
        own = dataclasses.replace(cache, pages=pages, length=start)
        model = models.build(self.config.model, weights)
        return model(tokens, jnp.broadcast_to(parent, tokens.shape), own, logits=logits)


def _over(logits: Float[Array, "B N V"], config: ModelConfig) -> Float[Array, "B N W"]:
    """The model's logits over the target's rows; padding of either is impossible."""
    logits = logits[..., : config.tokens]
    padding = ((0, 0), (0, 0), (0, config.vocab_size - config.tokens))
    return jnp.pad(logits, padding, constant_values=-jnp.inf)
