"""P-EAGLE's recipe: an EAGLE-3 head learns to fill in masks, all places in one pass.

The loss is EAGLE-3's at the pair and at each mask behind it, for anchors drawn from
each text; the learned feature and the mask's embedding are trained with the rest.
"""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Array, Int

from jspec.drafters.eagle3_config import Eagle3Config
from jspec.drafters.layers import LayerSizes
from jspec.drafters.p_eagle import PEagle, PEagleConfig
from jspec.training import eagle3
from jspec.training.embeddings import condensed
from jspec.training.lessons import Lesson, Words
from jspec.training.pairs import fill_in
from jspec.training.recipe import Frame, Recipe, Step, likelihood

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """Two layers of a sixth of the target's width, for it needs an embedding."""
    width = frame.share(1 / 6, 16)
    sizes = LayerSizes(
        hidden_size=width,
        intermediate_size=4 * width,
        num_layers=2,
        num_heads=width // 8,
        num_key_heads=max(1, width // 32),
        head_dim=32,
        norm_eps=frame.target.norm_eps,
        rope=frame.rope,
        max_position=frame.length,
    )
    head = Eagle3Config(
        sizes=sizes,
        vocab_size=frame.target.vocab_size,
        target_hidden_size=frame.target.hidden_size,
        draft_vocab_size=frame.words(5120),
        taps=frame.taps,
        own_embedding=True,
    )
    return PEagleConfig(head=head, mask_token_id=frame.mask_token_id).to_json()


def drafts(
    drafter: PEagle,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """One pass over the texts, and one over the masks."""
    model = drafter.head.model(weights, target)
    assert lesson.features is not None
    features = model.fuse(lesson.features)
    hidden = fill_in(
        model,
        features,
        model.fuse(weights["mask_hidden"][None, None]),
        drafter.config.mask_token_id,
        lesson.tokens,
        anchors,
        steps=steps,
    )
    for step in range(steps):
        yield Step(logits=model.logits(hidden[:, :, step]))


def begin(name: str, shape: tuple[int, ...], target: Any, words: Words | None) -> Any:
    """The embedding is the target's, condensed; else as EAGLE-3's."""
    if name == "embed":
        return condensed(target, shape[1])
    return eagle3.RECIPE.begin(name, shape, target, words)


RECIPE = Recipe(
    loss="cross-entropy against the target's law over the draft vocabulary at a pair "
    "and 3 masks behind it, each place 0.8 of the one before",
    plan=plan,
    drafts=drafts,
    term=likelihood,
    dense=False,
    begin=begin,
    fused="fc",
)
