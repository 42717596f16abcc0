"""Prompt look-up decoding (Saxena 2023): go on as the text last went on."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jspec.cache import CacheLayout
from jspec.drafters.base import About, Memory, View
from jspec.models.base import Target
from jspec.rounds import DEAD, Evidence, Proposal

__all__ = ["NGram"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NGram:
    """Drafts the tokens that followed the latest repeat of the text's last tokens.

    The longest repeat wins, of at most `longest` and at least `shortest` tokens, and
    among equals the latest one. A repeat that reaches into the text's own end is
    continued round and round, so "a b a b" goes on as "a b a b ..."; without a repeat
    nothing is drafted. It remembers nothing: the text is the cache's.
    """

    about: ClassVar[About] = About(
        paper="Saxena 2023, Prompt Lookup Decoding",
        idea="the tokens that followed the latest repeat of the text's end",
        weights=None,
        passes="none",
        topology="chain",
        q=("certain",),
    )
    gamma: int = 4
    longest: int = 5
    shortest: int = 2
    feature_layers = ()
    branching = False

    def __post_init__(self) -> None:
        """Refuses sizes that look up nothing."""
        if self.gamma < 0:
            raise ValueError(f"gamma must be at least 0, not {self.gamma}")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"n-gram sizes must satisfy 1 <= shortest <= longest, not "
                f"shortest={self.shortest}, longest={self.longest}"
            )

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
        """Looks the end of the text up in the text."""
        cache = view.cache
        text = jnp.pad(cache.text, ((0, 0), (0, 1)))
        rows = jnp.arange(anchor.shape[0])
        text = text.at[rows, cache.length].set(anchor, mode="drop")
        guess, known = jax.vmap(self._continue)(text, cache.length + 1)
        steps = jnp.arange(self.gamma, dtype=jnp.int32)[None]
        parent = jnp.where(known[:, None], steps, DEAD)
        return Proposal(
            tokens=jnp.concatenate([anchor[:, None], guess], axis=1),
            parent=jnp.pad(parent, ((0, 0), (1, 0)), constant_values=DEAD),
        ), memory

    def observe(
        self, weights: Any, memory: Memory, evidence: Evidence, view: View
    ) -> Memory:
        """The cache already holds the text."""
        return memory

    def _continue(self, text: Array, length: Array) -> tuple[Array, Array]:
        end = jnp.arange(text.shape[0])
        matched = jnp.zeros_like(end)
        going = (end < length) & (end > 0)
        for back in range(1, self.longest + 1):
            same = jnp.roll(text, back) == text.at[length - back].get(mode="clip")
            going &= same & (end >= back) & (length >= back)
            matched += going
        best = jnp.argmax(matched * text.shape[0] + end * (matched > 0))
        step = jnp.arange(self.gamma) % jnp.maximum(length - best, 1)
        guess = text.at[best + step].get(mode="clip")
        return guess, matched[best] >= self.shortest
