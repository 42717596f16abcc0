"""The MLP speculator's recipe (arXiv:2404.19124, §3): cross-entropy of every step.

As in the paper's second stage, the texts are the target's own.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from jspec.drafters.layers import without_padding
from jspec.drafters.mlp_speculator import MLPSpeculator, MLPSpeculatorConfig
from jspec.models.layers import linear
from jspec.training.embeddings import condensed
from jspec.training.lessons import Lesson, Words
from jspec.training.recipe import Frame, Recipe, Step, across, cross_entropy

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """Four tied steps, narrow: embedding and head are of the whole vocabulary."""
    return MLPSpeculatorConfig(
        hidden_size=frame.target.hidden_size,
        vocab_size=frame.target.vocab_size,
        inner_size=frame.share(1 / 9),
        steps=4,
        scaled_input=True,
        tied=True,
        target_layers=frame.target.num_layers,
    ).to_json()


def drafts(
    drafter: MLPSpeculator,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """From the state before the anchor, through the true tokens."""
    b, a = anchors.shape
    state = across(lesson.state, anchors - 1).reshape(b * a, 1, -1)
    state = drafter.first(state)
    for step in range(steps):
        token = across(lesson.tokens, anchors + step).reshape(b * a)
        state = drafter.step(weights, step, state, token)
        head = weights[f"steps.{0 if drafter.config.tied else step}.head"]
        if words is not None:
            head = head[:, words.ids]
        logits = without_padding(linear(state, head, out=np.float32), target)
        yield Step(logits=logits.reshape(b, a, -1))


def begin(name: str, shape: tuple[int, ...], target: Any, words: Words | None) -> Any:
    """Embedding and head are the target's embedding, condensed.

    A token is about as loud as the state it is added to: `step` makes it 2.5 times as
    loud, and with entries of size one it would drown the state.
    """
    if name.endswith(".embed"):
        return condensed(target, shape[1], size=2 * shape[1] ** -0.5)
    if name.endswith(".head"):
        return condensed(target, shape[0], size=shape[0] ** -0.5).T
    return None


RECIPE = Recipe(
    loss="cross-entropy of 4 steps, each 0.8 of the one before",
    plan=plan,
    drafts=drafts,
    term=cross_entropy,
    begin=begin,
)
