"""EAGLE's recipe (arXiv:2401.15077, §4.1): say the next feature, and its token.

Smooth L1 between features plus 0.1 of the cross-entropy against the target's law. Only
one step is trained; EAGLE-2 is the same weights.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.eagle import Eagle
from jspec.drafters.eagle_head import EagleConfig
from jspec.training.lessons import Lesson, Truth, Words, head_of
from jspec.training.pairs import roll_out
from jspec.training.recipe import Frame, Recipe, Step, likelihood

__all__ = ["RECIPE"]

OF_TOKENS = 0.1


def plan(frame: Frame) -> dict[str, Any]:
    """One layer as wide as the target's, its embedding and head."""
    return EagleConfig(
        sizes=frame.layer(8 / 3),
        vocab_size=frame.target.vocab_size,
        target_layers=frame.target.num_layers,
    ).to_json()


def drafts(
    drafter: Eagle,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """Every position is an anchor."""
    if words is not None:
        weights = weights | {"head": head_of(target, words)}
    model = drafter.model(weights, target)
    for hidden in roll_out(model, lesson.state, lesson.tokens, steps=steps):
        yield Step(logits=model.logits(hidden), feature=hidden)


def term(step: Step, truth: Truth) -> Float[Array, "B A"]:
    """Regression and classification."""
    assert step.feature is not None
    apart = jnp.abs((step.feature - truth.feature).astype(jnp.float32))
    smooth = jnp.where(apart < 1, apart**2 / 2, apart - 0.5).mean(-1)
    return smooth + OF_TOKENS * likelihood(step, truth)


RECIPE = Recipe(
    loss="smooth L1 of the next feature + 0.1 of the cross-entropy against the "
    "target's law, one step",
    plan=plan,
    drafts=drafts,
    term=term,
    steps=1,
)
