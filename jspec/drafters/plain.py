"""Plain decoding: nothing is drafted, every pass of the target emits one token."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal

__all__ = ["Plain"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    """Proposes the anchor alone: a round of one node."""

    about: ClassVar[About] = About(
        paper="-",
        idea="no drafting: one target pass a token",
        weights=None,
        passes="none",
        topology="none",
        q=("certain",),
    )
    gamma: int = 0
    feature_layers = ()
    branching = False

    def __post_init__(self) -> None:
        """Refuses to draft."""
        if self.gamma != 0:
            raise ValueError(
                f"method 'none' drafts nothing: num_speculative_tokens must be 0, "
                f"not {self.gamma}"
            )

    def check(self, weights: Any, target: Target) -> None:
        """Nothing to check."""

    def init(self, weights: Any, layout: CacheLayout) -> Memory:
        """Remembers nothing."""
        return Memory()

    def propose(
        self,
        weights: Any,
        memory: Memory,
        anchor: Int[Array, " B"],
        keys: Key[Array, " B"],
        view: View,
    ) -> tuple[Proposal, Memory]:
        """The anchor."""
        parent = jnp.full((anchor.shape[0], 1), DEAD, jnp.int32)
        return Proposal(tokens=anchor[:, None], parent=parent), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """Nothing to learn."""
        return memory
