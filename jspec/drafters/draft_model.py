"""Speculative decoding with a small language model (Leviathan et al. 2023)."""

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout, KVCache, Pages, layer_pages
from jspec.drafters.base import About, Memory, View
from jspec.drafters.block_config import check_drafting
from jspec.drafters.ragged import Budgets, Ragged, asked, cut_unlikely, likeliest
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal
from jspec.sampling import draw, greedy, law, step_keys

__all__ = ["DraftModel"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel:
    """Drafts with a language model of the target's vocabulary, token after token.

    Its memory is its own keys and values, in pages that the target's tables address:
    a prefix the target has cached is cached here too. Drafting leaves keys of the
    drafts behind; those of accepted tokens are right (they depend on tokens alone)
    and the others are overwritten. The last draft is never read by its own model, so
    the first pass of every round reads two tokens, the one before the anchor again:
    that is also all that a fully accepted round needs.

    Attributes:
      draft_sampling: "greedy" drafts the likeliest token, with certainty;
        "probabilistic" draws from the draft's law, through the row's own temperature
        and filters, and reports that law.
      vocabulary: "same" demands the target's tokens; "shared" drafts with those that
        both tokenizers have (see `translated`).
      confidence_threshold: drafts that are less likely than this to be kept are not
        offered; the confidence is what the law gives its likeliest token.
      ragged: how rows share a budget of verified drafts: see `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023",
        idea="a small language model drafts, one pass a token",
        weights="a language model with the target's tokenizer",
        passes="gamma",
        topology="chain",
        q=("dense", "certain"),
    )
    gamma: int = 4
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    vocabulary: Literal["same", "shared"] = "same"
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
        if self.vocabulary not in ("same", "shared"):
            raise ValueError(
                f"vocabulary must be 'same' or 'shared', not {self.vocabulary!r}"
            )

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    def check(self, weights: Any, target: Target) -> None:
        """Refuses a model with other tokens; padding rows of either do not count."""
        if weights is None:
            raise ValueError(
                "method 'draft_model' needs drafter=, a language model that shares "
                "the target's tokenizer"
            )
        ours, theirs = weights.config.tokens, target.config.tokens
        if ours != theirs:
            raise ValueError(
                f"the draft model has {ours} tokens, the target {theirs}: drafting "
                f"needs one vocabulary"
            )

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Empty pages of its own."""
        heads = weights.config.cache_heads
        return Memory(pages=layer_pages(layout, heads, weights.dtype))

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts `gamma` tokens, one pass each."""
        length = view.cache.length
        width = view.target.config.vocab_size
        batch = anchor.shape[0]
        if self.gamma == 0:
            parent = jnp.full((batch, 1), DEAD, jnp.int32)
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        before = self._before(view.cache)
        pair = jnp.stack([before, anchor], axis=1)
        logits, pages = self._pass(weights, memory.pages, view.cache, pair, length - 1)

        def choose(logits: Array, step: Array) -> tuple[Array, Array | None, Array]:
            logits = _fit(logits, width)
            sure = likeliest(logits)
            if self.draft_sampling == "greedy":
                return greedy(logits), None, sure
            q = law(logits[:, None], view.sampling)[:, 0]
            return draw(step_keys(keys, step), q), q, sure

        first, q_first, sure_first = choose(logits, jnp.int32(0))

        def visit(carry: tuple[Array, Pages], step: Array):
            token, pages = carry
            logits, pages = self._pass(
                weights, pages, view.cache, token[:, None], length + step
            )
            token, q, sure = choose(logits, step)
            return (token, pages), (token, q, sure)

        steps = jnp.arange(1, self.gamma, dtype=jnp.int32)
        (_, pages), (tokens, q, sure) = jax.lax.scan(visit, (first, pages), steps)
        drafted = jnp.concatenate([anchor[None], first[None], tokens]).T
        nodes = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        dense = None
        if q_first is not None and q is not None:
            dense = jnp.stack([jnp.zeros_like(q_first), q_first])
            dense = jnp.moveaxis(jnp.concatenate([dense, q]), 0, 1)
        sure = jnp.concatenate([jnp.ones((1, batch)), sure_first[None], sure])
        proposal = Proposal(
            tokens=drafted,
            parent=jnp.broadcast_to(nodes, (batch, self.gamma + 1)),
            q=dense,
            confidence=sure.T,
        )
        proposal = cut_unlikely(proposal, self.confidence_threshold)
        return proposal, dataclasses.replace(memory, pages=pages)

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Reads a piece of the prompt; its own drafts it has read already."""
        if evidence.accepted is not None:
            return memory
        _, pages = self._pass(
            weights,
            memory.pages,
            view.cache,
            evidence.tokens,
            evidence.start,
            logits=False,
        )
        return dataclasses.replace(memory, pages=pages)

    def _before(self, cache: KVCache) -> Array:
        size = cache.pages.text.shape[1]
        slot = jnp.maximum(cache.length - 1, 0)
        page = jnp.take_along_axis(cache.table, (slot // size)[:, None], axis=1)[:, 0]
        return cache.pages.text.at[page, slot % size].get(mode="clip")

    def _pass(
        self,
        weights: Any,
        pages: Pages,
        cache: KVCache,
        tokens: Array,
        start: Array,
        *,
        logits: bool = True,
    ) -> tuple[Any, Pages]:
        parent = jnp.arange(tokens.shape[1], dtype=jnp.int32) - 1
        own = dataclasses.replace(cache, pages=pages, length=start)
        seen = weights(
            tokens, jnp.broadcast_to(parent, tokens.shape), own, logits=logits
        )
        return seen.logits[:, -1] if logits else None, seen.cache.pages


def _fit(logits: Array, width: int) -> Array:
    """The draft's logits over the target's rows: padding is cut, or made impossible."""
    short = width - logits.shape[-1]
    if short > 0:
        return jnp.pad(logits, ((0, 0), (0, short)), constant_values=-jnp.inf)
    return logits[:, :width]
