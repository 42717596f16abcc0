"""How a method is trained: what it drafts behind every anchor, and what that costs."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec.drafters.layers import LayerSizes
from jspec.models.base import Rope
from jspec.training.lessons import Truth
from jspec.tree import pytree

__all__ = [
    "Frame",
    "Recipe",
    "Step",
    "across",
    "cross_entropy",
    "likelihood",
    "mean",
    "shifted",
    "taps_of",
]


@pytree
class Step:
    """What a drafter says of one place behind every anchor.

    Attributes:
      logits: over the words.
      feature: the state it says the target will have there, if it says one.
      sure: how likely it says its draft is to be kept, if a head says so.
    """

    logits: Float[Array, "B A W"]
    feature: Float[Array, "B A E"] | None = None
    sure: Float[Array, "B A"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """What a drafter's sizes follow from.

    Attributes:
      target: its configuration.
      known: how many different tokens the texts have.
      mask_token_id: a token that no text has.
      length: tokens of the longest text trained on.
    """

    target: Any
    known: int
    mask_token_id: int
    length: int

    @property
    def rope(self) -> Rope:
        """Rotation as in the target."""
        return getattr(self.target, "rope", Rope())

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key heads and head width, as in the target's first layer."""
        keys, width = self.target.cache_heads[0]
        return self.target.num_heads, keys, width

    @property
    def taps(self) -> tuple[int, ...]:
        """A low, a middle and a high state, as EAGLE-3 taps them."""
        return taps_of(self.target.num_layers)

    def layer(self, part: float) -> LayerSizes:
        """One layer of the target's shape, its MLP a part of the width."""
        heads, keys, width = self.heads
        return LayerSizes(
            hidden_size=self.target.hidden_size,
            intermediate_size=self.share(part),
            num_layers=1,
            num_heads=heads,
            num_key_heads=keys,
            head_dim=width,
            norm_eps=self.target.norm_eps,
            rope=self.rope,
            max_position=self.length,
        )

    def share(self, part: float, multiple: int = 8) -> int:
        """A part of the target's width, in whole multiples."""
        wanted = round(self.target.hidden_size * part / multiple) * multiple
        return max(wanted, multiple)

    def words(self, most: int) -> int:
        """Tokens of a smaller vocabulary."""
        return min(most, self.known)


def taps_of(layers: int) -> tuple[int, ...]:
    """A low, a middle and a high state of a target of so many layers."""
    return (2, layers // 2, layers - 3) if layers > 7 else (0, layers // 2, layers)


type Drafts = Callable[..., Iterator[Step]]
type Term = Callable[[Step, Truth], Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one method is trained.

    Attributes:
      loss: what is minimised, in words, for the card.
      plan: the drafter's configuration for a target, as JSON.
      drafts: `(drafter, weights, target, lesson, anchors, words, steps)` to what is
        drafted behind the anchors, given the text up to each place: what a greedy
        draft is if all before it were kept.
      term: the loss of one place.
      steps: places that are trained.
      decay: a place weighs so much of the one before it.
      dense: whether every position is an anchor; else some are drawn.
      begin: a weight's first value, if it is not drawn: `(name, shape, target, words)`.
      gain: what a drawn weight is multiplied with: `(name, shape, target)`.
      fused: the matrix that reads the taps, if one does: its rows begin as small as the
        numbers they read are large.
      tapped: whether it is trained on the frame's taps though its drafter taps none.
      language_model: whether the drafter is a language model of its own.
    """

    loss: str
    plan: Callable[[Frame], dict[str, Any]]
    drafts: Drafts
    term: Term
    steps: int = 4
    decay: float = 0.8
    dense: bool = True
    begin: Callable[..., Array | np.ndarray | None] = lambda *_: None
    gain: Callable[..., np.ndarray | float] = lambda *_: 1.0
    fused: str | None = None
    tapped: bool = False
    language_model: bool = False


def cross_entropy(step: Step, truth: Truth) -> Float[Array, "B A"]:
    """Of the token that is there."""
    law = jax.nn.log_softmax(step.logits, axis=-1)
    return -jnp.take_along_axis(law, truth.labels[..., None], axis=-1)[..., 0]


def likelihood(step: Step, truth: Truth) -> Float[Array, "B A"]:
    """Cross-entropy against the target's law over the words, temperature 1."""
    p = jax.nn.softmax(jax.lax.stop_gradient(truth.law), axis=-1)
    law = jax.nn.log_softmax(step.logits, axis=-1)
    return -jnp.where(p > 0, p * law, 0).sum(-1)


def mean(values: Float[Array, "B A"], counted: Bool[Array, "B A"]) -> Float[Array, ""]:
    """Over what is counted; 0 where nothing is."""
    return jnp.where(counted, values, 0).sum() / jnp.maximum(counted.sum(), 1)


def shifted(tokens: Int[Array, "B T"], by: int) -> Int[Array, "B T"]:
    """The token `by` places on; 0 behind the end."""
    return jnp.pad(tokens, ((0, 0), (0, by)))[:, by:]


def across(a: Array, anchors: Int[Array, "B A"]) -> Array:
    """What stands at the anchors, along the second axis."""
    places = jnp.minimum(anchors, a.shape[1] - 1)
    places = places.reshape(*anchors.shape, *(1,) * (a.ndim - 2))
    return jnp.take_along_axis(a, places, axis=1)
