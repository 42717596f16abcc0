"""PARD's recipe (arXiv:2504.18583, §3): a language model learns to fill masks in.

Cross-entropy of the tokens behind each drawn anchor: that of the anchor's own row and
of the masks behind it. The paper drops masks at random to save work; here anchors are
drawn instead, with all their masks.
"""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Array, Int

from jspec.drafters.pard import PARD, PARDConfig
from jspec.training.decoder import fill_in, heads, read, small
from jspec.training.draft_model import begin
from jspec.training.lessons import Lesson, Words
from jspec.training.recipe import Frame, Recipe, Step, across, cross_entropy

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """The same model as the one that drafts token after token."""
    config = PARDConfig(model=small(frame, 1 / 6, 4), mask_token_id=frame.mask_token_id)
    return config.to_json()


def drafts(
    drafter: PARD,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """One pass over the texts, and one over the masks."""
    config, mask = drafter.config.model, drafter.config.mask_token_id
    keys: list[tuple[Array, Array]] = []
    hidden = across(read(config, weights, lesson.tokens, keys), anchors)
    yield Step(logits=heads(config, weights, hidden, words))
    if steps == 1:
        return
    masked = fill_in(config, weights, keys, anchors, mask, steps - 1)
    for step in range(steps - 1):
        yield Step(logits=heads(config, weights, masked[:, :, step], words))


RECIPE = Recipe(
    loss="cross-entropy at an anchor and 5 masks behind it, each place 0.9 of the one "
    "before",
    plan=plan,
    drafts=drafts,
    term=cross_entropy,
    steps=6,
    decay=0.9,
    dense=False,
    begin=begin,
)
