"""EAGLE-3's recipe (arXiv:2503.01840, §3.2): training-time test over several steps.

The loss is the cross-entropy against the target's law over the drafter's vocabulary, at
places whose token it has; later steps weigh less.
"""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Array, Int

from jspec.drafters.eagle3 import Eagle3
from jspec.drafters.eagle3_config import Eagle3Config
from jspec.training.lessons import Lesson, Words, head_of
from jspec.training.pairs import roll_out
from jspec.training.recipe import Frame, Recipe, Step, likelihood

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """One layer of the target's width with a narrower MLP; 5,120 tokens."""
    return Eagle3Config(
        sizes=frame.layer(16 / 9),
        vocab_size=frame.target.vocab_size,
        target_hidden_size=frame.target.hidden_size,
        draft_vocab_size=frame.words(5120),
        taps=frame.taps,
    ).to_json()


def drafts(
    drafter: Eagle3,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """Every position is an anchor."""
    model = drafter.model(weights, target)
    assert lesson.features is not None
    features = model.fuse(lesson.features)
    for hidden in roll_out(model, features, lesson.tokens, steps=steps):
        yield Step(logits=model.logits(hidden))


def begin(
    name: str, shape: tuple[int, ...], target: Any, words: Words | None
) -> Array | None:
    """The head begins as the target's; its norm's gain would make it too sure."""
    if name == "head" and words is not None and shape[0] == target.config.hidden_size:
        return head_of(target, words)
    return None


RECIPE = Recipe(
    loss="cross-entropy against the target's law over the draft vocabulary, 4 steps of "
    "training-time test, each 0.8 of the one before",
    plan=plan,
    drafts=drafts,
    term=likelihood,
    begin=begin,
    fused="fc",
)
