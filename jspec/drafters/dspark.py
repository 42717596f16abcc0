"""DSpark (DeepSeek-AI 2026): a DFlash block, then a bias by the token before each."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.block_config import check_block, check_options
from jspec.drafters.block_layers import (
    block_pass,
    empty_context,
    over_target,
    write_context,
)
from jspec.drafters.layers import borrowed_head
from jspec.drafters.markov import DSparkConfig, bias, confidence, dspark_shapes
from jspec.drafters.ragged import Budgets, Ragged, asked, cut_unlikely, likeliest
from jspec.models.base import Target
from jspec.rounds import Evidence, Proposal
from jspec.sampling import draw, greedy, law, step_keys

__all__ = ["DSpark"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DSpark:
    """Drafts a block in one pass and repairs its blindness from left to right.

    The block is DFlash's. Its masks do not see each other's tokens; a low-rank Markov
    head does: walking the block, it adds to each position's logits a bias by the
    token just drafted before it. That takes `gamma` small products and no pass. The
    law a token is drawn from is the corrected one, at the row's own temperature and
    filters, and it is the law reported.

    Differs from the paper: the confidence of a draft advises how many to verify, per
    row, through `confidence_threshold` or a controller; without a head for it, what
    the corrected law gives its likeliest token stands in.

    Attributes:
      config: of the checkpoint.
      gamma: at most `config.block.drafts`; a shorter block is drafted with fewer masks.
      draft_sampling: "probabilistic" draws and reports the law; "greedy" drafts the
        likeliest token, with certainty.
      context_window: how many of the newest committed tokens it reads; `None`: all.
      confidence_threshold: drafts that are less likely than this to be kept are not
        offered.
      confidence_temperatures: one per draft; divides the confidence head's logit.
      ragged: how rows share a budget of verified drafts: see `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="DSpark, DeepSeek-AI 2026",
        idea="one pass over a block of masks, then a bias by the token before each",
        weights="a DSpark checkpoint trained for the target",
        passes="one",
        topology="chain",
        q=("dense", "certain"),
    )
    config: DSparkConfig
    gamma: int = 7
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    context_window: int | None = None
    confidence_threshold: float = 0.0
    confidence_temperatures: tuple[float, ...] = ()
    ragged: Literal["static", "cap-accept", "compact"] = "static"
    ragged_budget: Budgets | None = None
    branching = False

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        check_options(self, self.config.block.drafts)
        given, drafts = self.confidence_temperatures, self.config.block.drafts
        if given and not self.config.confidence_head:
            raise ValueError("confidence_temperatures need a confidence head")
        if given and (len(given) != drafts or min(given) <= 0):
            raise ValueError(
                f"confidence_temperatures must be {drafts} numbers above 0, one per "
                f"draft of the block, not {given}"
            )

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration; K is all it can draft."""
        sizes = DSparkConfig.from_json(config)
        if "confidence_temperatures" in options:
            given = tuple(options["confidence_temperatures"])
            options["confidence_temperatures"] = given
        fields: dict[str, Any] = {"gamma": sizes.block.drafts} | options
        return cls(config=sizes, **fields)

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The layers whose hidden states make up the context."""
        return self.config.block.taps

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        return dspark_shapes(self.config)

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        shapes = self.weight_shapes()
        check_block("dspark", self.config.block, shapes, weights, target)

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Empty pages of its own."""
        return empty_context(self.config.block, weights, layout)

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts in one pass, then walks the block."""
        parent = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        parent = jnp.broadcast_to(parent, (anchor.shape[0], self.gamma + 1))
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        hidden = block_pass(
            self.config.block,
            weights,
            memory,
            anchor,
            view,
            gamma=self.gamma,
            reach=self.context_window,
        )
        base = borrowed_head(weights, view.target, hidden)
        tokens, q, sure = self._walk(weights, anchor, keys, view, hidden, base)
        if q is not None:
            q = jnp.pad(q, ((0, 0), (1, 0), (0, 0)))
        proposal = Proposal(
            tokens=jnp.concatenate([anchor[:, None], tokens], axis=1),
            parent=parent,
            q=q,
            confidence=jnp.pad(sure, ((0, 0), (1, 0)), constant_values=1.0),
        )
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Projects the hidden states of committed tokens into the context."""
        return write_context(self.config.block, weights, memory, evidence, view.cache)

    def _walk(
        self,
        weights: Any,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
        hidden: Float[Array, "B N E"],
        base: Float[Array, "B N V"],
    ) -> tuple[Array, Array | None, Array]:
        """Draws each token from its corrected law; confidences look one token back."""
        heat = jnp.array(self.confidence_temperatures or [1.0] * self.gamma)
        tokens = view.target.config.tokens

        def visit(carry: tuple[Array, Array], node: tuple[Array, ...]):
            before, state = carry
            step, h, base, heat = node
            push, state, feature = bias(self.config, weights, state, before, h)
            logits = over_target(self.config.block, weights, base + push, tokens)
            if self.config.confidence_head:
                sure = confidence(self.config, weights, h, feature, heat)
            else:
                sure = likeliest(logits)
            if self.draft_sampling == "greedy":
                token, q = greedy(logits), None
            else:
                q = law(logits[:, None], view.sampling)[:, 0]
                token = draw(step_keys(keys, step), q)
            return (token, state), (token, q, sure)

        steps = jnp.arange(self.gamma, dtype=jnp.int32)
        start = (
            anchor,
            jnp.zeros((anchor.shape[0], self.config.markov_rank), hidden.dtype),
        )
        nodes = (steps, jnp.moveaxis(hidden, 1, 0), jnp.moveaxis(base, 1, 0))
        _, seen = jax.lax.scan(visit, start, (*nodes, heat[: self.gamma]))
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), seen)
