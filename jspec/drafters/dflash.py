"""DFlash (arXiv:2602.06036): one pass denoises a whole block behind the anchor."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.block_config import (
    BlockConfig,
    block_shapes,
    check_block,
    check_options,
)
from jspec.drafters.block_layers import (
    block_pass,
    empty_context,
    over_target,
    write_context,
)
from jspec.drafters.layers import borrowed_head
from jspec.drafters.ragged import Budgets, Ragged, asked, cut_unlikely, likeliest
from jspec.models.base import Target
from jspec.rounds import Evidence, Proposal
from jspec.sampling import draw_each, greedy, law

__all__ = ["DFlash"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DFlash:
    """Drafts a block `[anchor, mask, mask, ...]` in one non-causal pass.

    Embedding and head are the target's own arrays. The context is made of the
    target's tapped hidden states, projected to keys and values when they become
    permanent: nothing that was rejected ever had any, and no pass of the drafter
    catches up. The masks are blind to each other's tokens, so the law of each draft
    is independent of the drafts before it; as the law of a chain's node it is as
    good as any.

    Differs from the paper: drafts are drawn from their law, at each row's own
    temperature and filters, and judged by it; the paper drafts the likeliest tokens.

    Attributes:
      config: of the checkpoint.
      gamma: at most `config.drafts`; a shorter block is drafted with fewer masks.
      draft_sampling: "probabilistic" draws and reports the law; "greedy" drafts the
        likeliest token, with certainty.
      context_window: how many of the newest committed tokens it reads; `None`: all.
      confidence_threshold: drafts that are less likely than this to be kept are not
        offered; the confidence is what the law gives its likeliest token.
      ragged: how rows share a budget of verified drafts: see `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="DFlash: Block Diffusion for Flash Speculative Decoding, 2602.06036",
        idea="one pass denoises a block of masks over the target's hidden states",
        weights="a DFlash checkpoint trained for the target",
        passes="one",
        topology="block",
        q=("dense", "certain"),
    )
    config: BlockConfig
    gamma: int = 7
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    context_window: int | None = None
    confidence_threshold: float = 0.0
    ragged: Literal["static", "cap-accept", "compact"] = "static"
    ragged_budget: Budgets | None = None
    branching = False

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        check_options(self, self.config.drafts)

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration; K is all it can draft."""
        block = BlockConfig.from_json(config)
        fields: dict[str, Any] = {"gamma": block.drafts} | options
        return cls(config=block, **fields)

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The layers whose hidden states make up the context."""
        return self.config.taps

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        return block_shapes(self.config)

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        shapes = self.weight_shapes()
        check_block("dflash", self.config, shapes, weights, target)

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Empty pages of its own."""
        return empty_context(self.config, weights, layout)

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts all tokens in one pass."""
        parent = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        parent = jnp.broadcast_to(parent, (anchor.shape[0], self.gamma + 1))
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        hidden = block_pass(
            self.config,
            weights,
            memory,
            anchor,
            view,
            gamma=self.gamma,
            reach=self.context_window,
        )
        logits = borrowed_head(weights, view.target, hidden)
        logits = over_target(self.config, weights, logits, view.target.config.tokens)
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
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Projects the hidden states of committed tokens into the context."""
        return write_context(self.config, weights, memory, evidence, view.cache)
