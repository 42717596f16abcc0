"""The device's side of a host drafter: it offers what it is given."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Drafter, HostDrafter, Memory, View
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal

__all__ = ["Given", "is_host", "sides"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """Offers this round's `weights`: tokens and parents, `[B, gamma]` each.

    They count the anchor as node 0 and leave it out. Without weights nothing is
    offered, so prompts are read and shapes are asked for without any.
    """

    about: ClassVar[About] = About(
        paper="-",
        idea="drafts come from the host",
        weights=None,
        passes="none",
        topology="tree",
        q=("certain",),
    )
    gamma: int
    branching: bool = False
    feature_layers = ()

    def check(self, weights: Any, target: Target) -> None:
        """Drafts for every target."""

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
        """The host's drafts behind the anchor."""
        if weights is None:
            tokens = jnp.zeros((anchor.shape[0], self.gamma), jnp.int32)
            parent = jnp.full_like(tokens, DEAD)
        else:
            tokens, parent = map(jnp.asarray, weights)
        return Proposal(
            tokens=jnp.concatenate([anchor[:, None], tokens], axis=1),
            parent=jnp.pad(parent, ((0, 0), (1, 0)), constant_values=DEAD),
        ), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """The host is told elsewhere."""
        return memory


def is_host(kind: Any) -> bool:
    """Whether a method drafts on the host, by the words that only such ones know."""
    return hasattr(kind, "admit") or hasattr(kind, "leave")


def sides(drafter: Any) -> tuple[Drafter, HostDrafter | None]:
    """What drafts in the round, and what is asked before it; `None`: nobody is."""
    if not is_host(drafter):
        return drafter, None
    return Given(gamma=drafter.gamma, branching=drafter.branching), drafter
