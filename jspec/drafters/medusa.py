"""Medusa (Cai et al. 2024, arXiv:2401.10774): heads that each look further ahead.

Every head reads the same state, the target's last behind its final norm, and head `i`
says the token `i + 2` places on; the target's own head says the next one. Their
candidates make a chain, or a tree that is the same in every round.

What differs from the paper: drafts of a chain may be drawn, each from its own head's
law, and the output follows the target's law; a tree's nodes are the likeliest tokens,
verified as certain ones and not by the paper's typical acceptance.
"""

import dataclasses
from collections.abc import Mapping, Sequence
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
from jspec.drafters.trees import StaticTree, top_candidates
from jspec.models.base import Target
from jspec.models.layers import linear
from jspec.rounds import DEAD, Evidence, Proposal, SparseLaw
from jspec.sampling import draw_each, greedy, law

__all__ = ["Medusa", "MedusaConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Medusa heads in full.

    Attributes:
      hidden_size: of the target.
      vocab_size: of the target.
      heads: how many.
      blocks: residual blocks of a head.
      block_bias: whether they have biases.
      shared_head: whether one output matrix serves all heads.
      draft_vocab_size: tokens of a smaller vocabulary. `None`: the target's all.
      logit_scale: of logits.
      target_layers: how many layers the target has, the last of which is read.
        `None`: as many as the target turns out to have.
    """

    hidden_size: int
    vocab_size: int
    heads: int
    blocks: int = 1
    block_bias: bool = True
    shared_head: bool = False
    draft_vocab_size: int | None = None
    logit_scale: float = 1.0
    target_layers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives an equal configuration back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote; a wrong key is a `ValueError`."""
        return cls(**known_fields(cls, fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa:
    """Drafts with all heads at once.

    Attributes:
      config: of the checkpoint.
      gamma: heads in use.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature. "auto": drawn in a chain, certain in a tree.
      widths: candidates of each node at each depth; `()`: a chain.
      choices: instead, the paths of a tree as ranks, as Medusa writes them.
      tree_nodes: most nodes of the tree, the anchor included: those of the lowest ranks
        stay. `None`: all that `widths` or `choices` name.
      confidence_threshold: a chain ends before its survival falls below it.
    """

    about: ClassVar[About] = About(
        paper="Cai et al. 2024, arXiv:2401.10774",
        idea="heads on the target's last state each guess one place further ahead",
        weights="Medusa heads made for the target",
        passes="one",
        topology="tree",
        q=("dense", "sparse", "certain"),
    )
    config: MedusaConfig
    gamma: int = 4
    draft_sampling: Literal["auto", "greedy", "probabilistic"] = "auto"
    widths: Sequence[int] = ()
    choices: Sequence[Sequence[int]] = ()
    tree_nodes: int | None = None
    confidence_threshold: float = 0.0

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        if not 0 <= self.gamma <= self.config.heads:
            raise ValueError(
                f"num_speculative_tokens must lie in 0..{self.config.heads}, the heads "
                f"there are, not {self.gamma}"
            )
        check_draft_sampling(self.draft_sampling, "auto", "greedy", "probabilistic")
        object.__setattr__(self, "widths", tuple(self.widths))
        object.__setattr__(self, "choices", tuple(map(tuple, self.choices)))
        if self.widths and self.choices:
            raise ValueError("widths and choices both say what the tree is; give one")
        check_threshold(self.confidence_threshold)
        tree = self._tree
        self._check_nodes(tree)
        if tree is not None and (
            self.draft_sampling == "probabilistic" or self.confidence_threshold
        ):
            raise ValueError(
                "a tree is of the likeliest tokens, which are certain: "
                "draft_sampling='probabilistic' and confidence_threshold are a chain's"
            )
        if tree is not None and tree.gamma > self.config.heads:
            raise ValueError(
                f"a tree of depth {tree.gamma} needs as many heads; there are "
                f"{self.config.heads}"
            )

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Heads of a checkpoint's configuration; all of them, up to four, are used."""
        settled = MedusaConfig.from_json(config)
        fields: dict[str, Any] = {"gamma": min(4, settled.heads)} | options
        return cls(config=settled, **fields)

    @property
    def _tree(self) -> StaticTree | None:
        if self.choices:
            return StaticTree.from_choices(self.choices)
        return StaticTree.full(self.widths) if self.widths else None

    def _check_nodes(self, tree: StaticTree | None) -> None:
        nodes = self.tree_nodes
        if nodes is None:
            return
        if tree is None:
            raise ValueError(
                f"tree_nodes={nodes} needs a tree (widths or choices): a chain has "
                f"num_speculative_tokens drafts"
            )
        if not isinstance(nodes, int) or not 1 <= nodes <= tree.nodes:
            raise ValueError(
                f"tree_nodes must lie in 1..{tree.nodes}, the nodes that the tree has, "
                f"not {nodes!r}"
            )

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return last_layer(
            self.config, "Medusa heads must be fitted to their target first"
        )

    @property
    def branching(self) -> bool:
        """Whether it offers a tree."""
        return self._tree is not None

    def fit(self, target: Target) -> Self:
        """Reads the last layer of this target."""
        return dataclasses.replace(self, config=fitted_to(self.config, target))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        config, e = self.config, self.config.hidden_size
        rows = config.draft_vocab_size or config.vocab_size
        shapes: dict[str, tuple[int, ...]] = {}
        for h in range(config.heads):
            for l in range(config.blocks):
                shapes[f"blocks.{h}.{l}.linear"] = (e, e)
                if config.block_bias:
                    shapes[f"blocks.{h}.{l}.bias"] = (e,)
            if not config.shared_head or h == 0:
                shapes[f"heads.{h}"] = (e, rows)
        if config.draft_vocab_size is not None:
            shapes["ids"] = (config.draft_vocab_size,)
        return shapes

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own or a target they were not made for."""
        config = self.config
        check_weights("medusa", weights, self.weight_shapes())
        check_sizes(
            "medusa",
            target,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """One state a page."""
        dtype = weights["heads.0"].dtype
        return Memory(pages=jnp.zeros((layout.pages, self.config.hidden_size), dtype))

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Asks every head about the newest state."""
        length = view.cache.length
        parent = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        parent = jnp.where((length > 0)[:, None], parent[None], DEAD)
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        size = view.cache.pages.text.shape[1]
        state = newest_feature(memory.pages, view.cache.table, length, size=size)
        logits = self.logits(weights, state, view.target)
        ids, tree = weights.get("ids"), self._tree
        if tree is not None:
            tree = tree.up_to(self.gamma)
            tree = tree if self.tree_nodes is None else tree.likeliest(self.tree_nodes)
            found = top_candidates(logits, tree.width).ids
            proposal = tree.propose(anchor, found if ids is None else ids[found])
            alive = jnp.where((length > 0)[:, None], proposal.parent, DEAD)
            return dataclasses.replace(proposal, parent=alive), memory
        q: Array | SparseLaw | None = None
        if self.draft_sampling == "greedy":
            drafts = greedy(logits)
        else:
            q = law(logits, view.sampling)
            drafts = draw_each(keys, q)
            q = jnp.pad(q, ((0, 0), (1, 0), (0, 0)))
            q = q if ids is None else SparseLaw(ids=ids[None, None], probs=q)
        drafts = drafts if ids is None else ids[drafts]
        sure = jnp.pad(likeliest(logits), ((0, 0), (1, 0)), constant_values=1.0)
        proposal = Proposal(
            tokens=jnp.concatenate([anchor[:, None], drafts], axis=1),
            parent=parent,
            q=q,
            confidence=sure,
        )
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Remembers the newest state."""
        return remember_newest(memory, evidence, view)

    def logits(
        self, weights: Any, state: Float[Array, "B E"], target: Any
    ) -> Float[Array, "B G V"]:
        """Of head `i` in place `i`: the token `i + 1` places behind the anchor."""
        config, rows = self.config, []
        for h in range(self.gamma):
            x = state[:, None]
            for l in range(config.blocks):
                bias = weights.get(f"blocks.{h}.{l}.bias")
                x = x + jax.nn.silu(linear(x, weights[f"blocks.{h}.{l}.linear"], bias))
            head = weights[f"heads.{0 if config.shared_head else h}"]
            rows.append(linear(x, head, out=jnp.float32))
        return without_padding(jnp.concatenate(rows, 1) * config.logit_scale, target)
