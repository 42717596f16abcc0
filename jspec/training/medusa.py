"""Medusa's recipe (arXiv:2401.10774, §2.2.1): cross-entropy of every head.

Head `i` says the token `i + 2` places on and weighs 0.8 of the head before it. A head
begins as the target's own behind a block that adds nothing.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from jspec.drafters.medusa import Medusa, MedusaConfig
from jspec.training.lessons import Lesson, Words, head_of
from jspec.training.recipe import Frame, Recipe, Step, across, cross_entropy

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """Four heads whose blocks share one output matrix of 5,120 tokens."""
    return MedusaConfig(
        hidden_size=frame.target.hidden_size,
        vocab_size=frame.target.vocab_size,
        heads=4,
        shared_head=True,
        draft_vocab_size=frame.words(5120),
        target_layers=frame.target.num_layers,
    ).to_json()


def drafts(
    drafter: Medusa,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """All heads read the state before the anchor."""
    b, a = anchors.shape
    state = across(lesson.state, anchors - 1).reshape(b * a, -1)
    logits = drafter.logits(weights, state, target).reshape(b, a, drafter.gamma, -1)
    for step in range(steps):
        yield Step(logits=logits[:, :, step])


def begin(
    name: str, shape: tuple[int, ...], target: Any, words: Words | None
) -> Array | np.ndarray | None:
    """Blocks of zeros, heads of the target."""
    if name.startswith("blocks."):
        return np.zeros(shape, np.float32)
    if words is None or not name.startswith("heads."):
        return None
    return head_of(target, words)


RECIPE = Recipe(
    loss="cross-entropy of 4 heads, each 0.8 of the one before",
    plan=plan,
    drafts=drafts,
    term=cross_entropy,
    begin=begin,
)
