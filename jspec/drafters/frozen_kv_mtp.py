"""Frozen-KV MTP: Gemma 4's assistants (transformers 5, `gemma4_assistant`).

A few layers that have queries and no keys: each attends the target's own keys and
values of committed tokens, in the last layer of its type that stores any. The input is
the target's embedding of the token before, beside a hidden state: the target's last
one first, then the assistant's own. So a draft of any depth writes nothing, all its
steps stand at one position, and what became permanent needs no pass: the newest state
of the target is all there is to remember.

What differs from transformers: of its loop's keys only the committed ones are seen (it
also shows the key that a refused draft left at the anchor's place); a sliding layer
sees as far back as the target's (its mask reaches further); tokens of clusters that
were not chosen have no probability (there: the least logit of the batch less one).
Drafts may be drawn, and then carry their law. An assistant trained here names the
layers it asks and has a smaller vocabulary instead of clusters (`FrozenKVConfig`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jspec.cache import CacheLayout, Pages
from jspec.drafters.base import About, Memory, View
from jspec.drafters.frozen_layers import FrozenKVConfig, layers, logits_of
from jspec.drafters.layers import (
    check_draft_sampling,
    check_sizes,
    check_weights,
    fitted_to,
    last_layer,
)
from jspec.drafters.ragged import check_threshold, cut_unlikely, likeliest
from jspec.drafters.tail import newest_feature, remember_newest
from jspec.models.base import Target
from jspec.models.layers import linear
from jspec.rounds import DEAD, Evidence, Proposal, SparseLaw
from jspec.sampling import draw, greedy, law, step_keys

__all__ = ["FrozenKVMTP"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenKVMTP:
    """Drafts a chain, one pass of the assistant a token, from the target's own cache.

    Attributes:
      config: of the checkpoint.
      gamma: drafted tokens a round.
      draft_sampling: "greedy" drafts are certain; "probabilistic" ones are drawn at the
        row's own temperature.
      position_offset: where all steps of a draft stand, seen from the anchor's place.
        0: there, as in transformers; -1: at the last committed token.
      confidence_threshold: a chain ends before its survival falls below it.
    """

    about: ClassVar[About] = About(
        paper="Gemma 4 assistants; transformers 5, gemma4_assistant",
        idea="layers without keys draft from the target's own cache and last state",
        weights="a Gemma 4 assistant made for the target",
        passes="gamma",
        topology="chain",
        q=("dense", "sparse", "certain"),
    )
    config: FrozenKVConfig
    gamma: int = 4
    draft_sampling: Literal["greedy", "probabilistic"] = "probabilistic"
    position_offset: int = 0
    confidence_threshold: float = 0.0
    branching = False

    def __post_init__(self) -> None:
        """Refuses what it cannot do."""
        if self.gamma < 0:
            raise ValueError(
                f"num_speculative_tokens must be at least 0, not {self.gamma}"
            )
        if self.position_offset not in (0, -1):
            raise ValueError(
                f"position_offset must be 0, the anchor's place, or -1, the one before "
                f"it, not {self.position_offset!r}"
            )
        check_draft_sampling(self.draft_sampling, "greedy", "probabilistic")
        check_threshold(self.confidence_threshold)

    @classmethod
    def configure(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """An assistant of a checkpoint's configuration."""
        return cls(config=FrozenKVConfig.from_json(config), **options)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return last_layer(
            self.config, "an assistant must be fitted to its target first"
        )

    def fit(self, target: Target) -> Self:
        """Reads the last layer of this target."""
        return dataclasses.replace(self, config=fitted_to(self.config, target))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        return self.config.shapes()

    def check(self, weights: Any, target: Target) -> None:
        """Refuses weights that are not its own, or a target without its keys."""
        check_weights("frozen_kv_mtp", weights, self.weight_shapes())
        check_sizes(
            "frozen_kv_mtp",
            target,
            hidden_size=self.config.backbone_size,
            vocab_size=self.config.vocab_size,
        )
        self._read_layers(target)

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """One state of the target a page: no keys, no values."""
        dtype = weights["pre_projection"].dtype
        return Memory(pages=jnp.zeros((layout.pages, self.config.backbone_size), dtype))

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """Steps on from the newest state and the anchor; nothing is written."""
        length, batch = view.cache.length, anchor.shape[0]
        parent = jnp.arange(self.gamma + 1, dtype=jnp.int32) - 1
        parent = jnp.where((length > 0)[:, None], parent[None], DEAD)
        if self.gamma == 0:
            return Proposal(tokens=anchor[:, None], parent=parent), memory
        size = view.cache.pages.text.shape[1]
        state = newest_feature(memory.pages, view.cache.table, length, size=size)

        def visit(carry: tuple[Array, Array], step: Array):
            token, hidden = carry
            hidden, logits, ids = self._step(weights, token, hidden, view)
            if self.draft_sampling == "greedy":
                chosen, q = greedy(logits[:, 0]), None
            else:
                q = law(logits, view.sampling)[:, 0]
                chosen = draw(step_keys(keys, step), q)
            if ids is not None:
                chosen = jnp.take_along_axis(ids[:, 0], chosen[:, None], 1)[:, 0]
            return (chosen, hidden), (chosen, q, ids, likeliest(logits)[:, 0])

        steps = jnp.arange(self.gamma, dtype=jnp.int32)
        _, (tokens, laws, ids, sure) = jax.lax.scan(visit, (anchor, state), steps)
        proposal = Proposal(
            tokens=jnp.concatenate([anchor[None], tokens]).T,
            parent=parent,
            q=self._law(laws, ids),
            confidence=jnp.concatenate([jnp.ones((1, batch)), sure]).T,
        )
        return cut_unlikely(proposal, self.confidence_threshold), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Remembers the newest state."""
        return remember_newest(memory, evidence, view)

    def spared(self, pages: Pages, target: Target) -> int:
        """Bytes a token of keys and values that drafting reads and does not have.

        A drafter with the same layers and a cache of its own would hold as many.

        Args:
          pages: the target's.
          target: whose layers are read.
        """
        arrays = [
            a[layer] for layer in self._read_layers(target) for a in (pages.k, pages.v)
        ]
        return sum(a.nbytes // (a.shape[0] * a.shape[2]) for a in arrays)

    def _read_layers(self, target: Target) -> tuple[int, ...]:
        """Of each of its layers, the target's stored layer whose keys it reads."""
        config, theirs = self.config, target.config
        if theirs.family != config.target_family:
            raise ValueError(
                f"method 'frozen_kv_mtp' drafts from the keys of a target of the "
                f"family {config.target_family!r}; this one is of {theirs.family!r}"
            )
        last = {theirs.layer_kind(l): l for l in range(theirs.num_layers)}
        found = []
        for place, name in enumerate(config.layer_kinds):
            if name not in last:
                raise ValueError(
                    f"the drafter of method 'frozen_kv_mtp' reads the target's {name} "
                    f"layers; this target has none"
                )
            layer = config.reads[place] if config.reads else last[name]
            if layer >= theirs.num_layers or theirs.layer_kind(layer) != name:
                raise ValueError(
                    f"the drafter of method 'frozen_kv_mtp' reads layer {layer} of its "
                    f"target, a {name} one; this target has no such layer there"
                )
            stored = theirs.cache_layer(layer)
            heads, width = theirs.cache_heads[stored]
            if width != config.kind(name).head_dim or config.num_heads % heads:
                raise ValueError(
                    f"the drafter of method 'frozen_kv_mtp' asks with "
                    f"{config.num_heads} heads of width {config.kind(name).head_dim} "
                    f"in {name} layers, which {heads} key heads of width {width} of "
                    f"this target cannot answer"
                )
            found.append(stored)
        return tuple(found)

    def _step(
        self,
        weights: Any,
        token: Int[Array, " B"],
        hidden: Float[Array, "B E"],
        view: View,
    ) -> tuple[Float[Array, "B E"], Float[Array, "B 1 C"], Int[Array, "B 1 C"] | None]:
        """The next hidden state, and the logits of what follows `token`, with ids."""
        config, target, cache = self.config, view.target, view.cache
        seen = target.embed_tokens(token[:, None]).astype(hidden.dtype)
        pair = jnp.concatenate([seen, hidden[:, None]], axis=-1)
        position = jnp.maximum(cache.length + self.position_offset, 0)[:, None]
        stored = self._read_layers(target)
        written = cache.length > 0
        # The last committed token stands for the one node that a pass appends: then a
        # node sees the committed tokens and no other, one fewer than from its place.
        before = dataclasses.replace(cache, length=jnp.maximum(cache.length - 1, 0))

        def mix(layer: int, q: Array) -> Array:
            window = config.kind(config.layer_kinds[layer]).window
            mixed = before.attend(
                stored[layer],
                q,
                ancestors=None,
                window=None if window is None else window - 1,
                scale=1.0,
                block_pages=cache.block_pages,
            )
            return jnp.where(written[:, None, None, None], mixed, 0)

        x = linear(pair, weights["pre_projection"])
        x = layers(config, weights, x, position, mix)
        logits, ids = logits_of(config, weights, x, target.config.tokens)
        return linear(x, weights["post_projection"])[:, 0], logits, ids

    def _law(
        self, laws: Float[Array, "G B C"] | None, ids: Int[Array, "G B 1 C"] | None
    ) -> Float[Array, "B N C"] | SparseLaw | None:
        """The law of every node; none of the anchor."""
        if laws is None:
            return None
        q = jnp.pad(jnp.moveaxis(laws, 0, 1), ((0, 0), (1, 0), (0, 0)))
        if ids is None:
            return q
        ids = jnp.pad(jnp.moveaxis(ids[:, :, 0], 0, 1), ((0, 0), (1, 0), (0, 0)))
        return SparseLaw(ids=ids, probs=q)
