"""MTP's recipe (DeepSeek-V3, arXiv:2412.19437, §2.2): one module, used again and again.

Cross-entropy against the target's law at every step of drafting, with each step fed the
state of the one before it. The paper trains a module for each depth together with the
target, and serves the first of them; here the target is as it is, and the one module is
trained at all depths that it drafts.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from jspec.drafters.mtp import MTP
from jspec.drafters.mtp_config import MTPConfig
from jspec.training.embeddings import softened
from jspec.training.lessons import Lesson, Words, head_of
from jspec.training.pairs import roll_out
from jspec.training.recipe import Frame, Recipe, Step, likelihood

__all__ = ["RECIPE"]

MODULE = "modules.0."


def plan(frame: Frame) -> dict[str, Any]:
    """One layer of the target's shape with a narrower MLP, its embedding and head."""
    return MTPConfig(
        sizes=frame.layer(7 / 3),
        vocab_size=frame.target.vocab_size,
        target_layers=frame.target.num_layers,
    ).to_json()


def drafts(
    drafter: MTP,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """Every position is an anchor; the state is normed as `fuse` would norm it."""
    if words is not None:
        weights = weights | {MODULE + "head": head_of(target, words)}
    [model] = drafter.models(weights, target)
    for hidden in roll_out(model, lesson.state, lesson.tokens, steps=steps):
        yield Step(logits=model.logits(hidden))


def begin(
    name: str, shape: tuple[int, ...], target: Any, words: Words | None
) -> np.ndarray | None:
    """The final norm begins soft, for the head is the target's."""
    return softened(target, shape[0]) if name == MODULE + "norm" else None


RECIPE = Recipe(
    loss="cross-entropy against the target's law, 4 steps of one module, each 0.8 of "
    "the one before",
    plan=plan,
    drafts=drafts,
    term=likelihood,
    begin=begin,
)
