"""P-EAGLE (speculators 2026): an EAGLE-3 head drafts all tokens in one pass.

Where EAGLE-3 feeds its output back, a learned feature stands for the features not known
yet, beside the mask's embedding: `[(feature, anchor), (mask, mask), ...]`. One causal
pass gives every draft's logits. What differs from its trainers: drafts may be drawn;
each law depends on the text alone, and is the law reported.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.drafters.block_config import check_drafting
from jspec.drafters.eagle3 import Eagle3
from jspec.drafters.eagle3_config import Eagle3Config
from jspec.drafters.layers import check_weights, known_fields
from jspec.drafters.pairs import PairPages, mixed, run
from jspec.drafters.ragged import Budgets, Ragged, asked, cut_unlikely, likeliest
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal, SparseLaw
from jspec.sampling import draw_each, greedy, law

__all__ = ["PEagle", "PEagleConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PEagleConfig:
    """An EAGLE-3 head that was trained with masks.

    Attributes:
      head: the head.
      mask_token_id: whose embedding stands beside the learned feature.
    """

    head: Eagle3Config
    mask_token_id: int

    def __post_init__(self) -> None:
        """Refuses a mask, or a head, that was never trained."""
        if not 0 <= self.mask_token_id < self.head.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} is no row of an embedding of "
                f"{self.head.vocab_size}"
            )
        if not self.head.own_embedding:
            raise ValueError(
                "a P-EAGLE head needs an embedding of its own: its mask is trained"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        return cls(**values | {"head": Eagle3Config.from_json(values["head"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PEagle:
    """Drafts from the newest pair and as many masks as are wanted, in one pass.

    Attributes:
      config: of the checkpoint.
      gamma: drafted tokens.
      draft_sampling: "probabilistic" draws and reports the law; "greedy" drafts the
        likeliest token, with certainty.
      window: the drafter sees so many of the newest tokens; `None`: as in its config.
      confidence_threshold: drafts that are less likely than this to be kept are not
        offered; the confidence is what the law gives its likeliest token.
      ragged: how rows share a budget of verified drafts: see `Ragged`.
      ragged_budget: drafts verified per row of a round, on the average; of several,
        each round chooses.
    """

    about: ClassVar[About] = About(
        paper="P-EAGLE, speculators 0.9; Li et al. 2025, arXiv:2503.01840",
        idea="an EAGLE-3 head fills in learned features and drafts in one pass",
        weights="a P-EAGLE head made for the target",
        passes="one",
        topology="block",
        q=("dense", "sparse", "certain"),
    )
    config: PEagleConfig
    gamma: int = 4
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    window: int | None = None
    confidence_threshold: float = 0.0
    ragged: Literal["static", "cap-accept", "compact"] = "static"
    ragged_budget: Budgets | None = None
    branching = False

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        check_drafting(self)
        _ = self.head

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """A drafter for a checkpoint's configuration."""
        return cls(config=PEagleConfig.from_json(config), **options)

    @property
    def verified(self) -> Ragged:
        """Which drafts the target reads."""
        return asked(self.ragged, self.ragged_budget)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The tapped states."""
        return self.head.feature_layers

    @property
    def head(self) -> Eagle3:
        """The EAGLE-3 head that drafts."""
        return Eagle3(config=self.config.head, gamma=self.gamma, window=self.window)

    def fit(self, target: Target) -> Self:
        """Taps what EAGLE-3 taps of a target of so many layers, if nothing else."""
        head = self.head.fit(target).config
        config = dataclasses.replace(self.config, head=head)
        return dataclasses.replace(self, config=config)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The head's, and the learned feature as the taps would give it."""
        head = self.config.head
        wide = head.tap_count * head.target_hidden_size
        return head.shapes() | {"mask_hidden": (wide,)}

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        check_weights("p_eagle", weights, self.weight_shapes())
        rest = {name: a for name, a in weights.items() if name != "mask_hidden"}
        self.head.check(rest, target)

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Pages without pairs."""
        return self.head.init(weights, layout)

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Drafts all tokens in one pass; a text without a feature drafts nothing."""
        b, length = anchor.shape[0], view.cache.length
        nodes = jnp.arange(self.gamma + 1, dtype=jnp.int32)[None] - 1
        parent = jnp.where((length > 0)[:, None] & (nodes >= 0), nodes, DEAD)
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        model = self.head.model(weights, view.target)
        pages: PairPages = memory.pages
        masks = model.fuse(weights["mask_hidden"][None, None])
        masks = jnp.broadcast_to(masks, (b, self.gamma - 1, masks.shape[-1]))
        newest = pages.newest(view.cache.table, length)[:, None]
        tokens = jnp.where(
            nodes[:, 1:] == 0, anchor[:, None], self.config.mask_token_id
        )
        slots = length[:, None] + nodes[:, 1:]
        causal = nodes[:, 1:, None] >= nodes[:, None, 1:]
        causal = jnp.broadcast_to(causal, (b, self.gamma, self.gamma))

        def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
            table, own = view.cache.table, (k[:, : self.gamma], v[:, : self.gamma])
            return mixed(
                model, pages, table, length, layer, q, own, causal, slots, slots
            )

        features = jnp.concatenate([newest, masks.astype(newest.dtype)], axis=1)
        hidden = run(model, features, tokens, slots - model.lag, attend)
        logits = model.logits(hidden)
        if self.draft_sampling == "greedy":
            drafted, q = greedy(logits), None
        else:
            q = law(logits, view.sampling)
            drafted = draw_each(keys, q)
            q = jnp.pad(q, ((0, 0), (1, 0), (0, 0)))
        if model.ids is not None:
            drafted = model.ids[drafted]
            q = None if q is None else SparseLaw(ids=model.ids[None, None], probs=q)
        sure = jnp.pad(likeliest(logits), ((0, 0), (1, 0)), constant_values=1.0)
        proposal = Proposal(
            tokens=jnp.concatenate([anchor[:, None], drafted], axis=1),
            parent=parent,
            q=q,
            confidence=sure,
        )
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Writes the pairs of committed tokens, as EAGLE-3 does."""
        return self.head.observe(weights, memory, evidence, view)
