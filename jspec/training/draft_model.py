"""A small language model's recipe: it is distilled from the target.

Cross-entropy against the target's law at every position, which is the forward KL of
knowledge distillation (Hinton et al. 2015; DistillSpec, arXiv:2310.08461) on text of
the target's own.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import models
from jspec.models.base import ModelConfig
from jspec.training.decoder import heads, read, small
from jspec.training.embeddings import condensed
from jspec.training.lessons import Lesson, Words
from jspec.training.recipe import Frame, Recipe, Step, likelihood

__all__ = ["RECIPE", "SmallModel"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A language model as what is trained: its configuration, its weights' names."""

    config: ModelConfig
    feature_layers = ()

    @classmethod
    def configure(cls, config: Mapping[str, Any], **_: Any) -> Self:
        """From the JSON of a model's configuration."""
        return cls(config=ModelConfig.from_json(config))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Exactly what the configuration needs."""
        return models.weight_shapes(self.config)


def plan(frame: Frame) -> dict[str, Any]:
    """Four layers of a sixth of the target's width."""
    return small(frame, 1 / 6, 4).to_json()


def drafts(
    drafter: SmallModel,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """One pass: what follows a place does not depend on where drafting began."""
    hidden = read(drafter.config, weights, lesson.tokens)
    logits = heads(drafter.config, weights, hidden, words)
    for step in range(steps):
        yield Step(logits=jnp.pad(logits, ((0, 0), (0, step), (0, 0)))[:, step:])


def begin(name: str, shape: tuple[int, ...], target: Any, words: Words | None) -> Any:
    """The embedding is the target's, condensed."""
    return (
        condensed(target, shape[1], size=shape[1] ** -0.5) if name == "embed" else None
    )


RECIPE = Recipe(
    loss="cross-entropy against the target's law at every position",
    plan=plan,
    drafts=drafts,
    term=likelihood,
    steps=1,
    begin=begin,
    language_model=True,
)
