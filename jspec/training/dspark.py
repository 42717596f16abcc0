"""DSpark's recipe: DFlash's blocks, a bias by the token before, and a confidence.

Cross-entropy of the corrected logits, walked along the true tokens, plus the binary
cross-entropy of the confidence against what speculative sampling would keep of such a
draft, the overlap `sum_x min(p(x), q(x))` of the target's law and the drafter's.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.dspark import DSpark
from jspec.drafters.markov import DSparkConfig, bias, confidence
from jspec.training import dflash
from jspec.training.dflash import block, denoised, over_words
from jspec.training.embeddings import condensed
from jspec.training.lessons import Lesson, Truth, Words
from jspec.training.recipe import Frame, Recipe, Step, across, cross_entropy

__all__ = ["RECIPE"]


def plan(frame: Frame) -> dict[str, Any]:
    """A block that drafts from its anchor on, and a Markov head of rank 16."""
    return DSparkConfig(
        block=block(frame, part=8 / 9, from_anchor=True),
        markov_rank=16,
        confidence_head=True,
        confidence_with_markov=True,
    ).to_json()


def drafts(
    drafter: DSpark,
    weights: Any,
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    steps: int,
) -> Iterator[Step]:
    """One pass over the blocks, then along each."""
    config = drafter.config
    hidden = denoised(config.block, weights, target, lesson, anchors, steps)
    if words is not None and "ids" not in weights:
        weights = weights | {"markov.after": weights["markov.after"][:, words.ids]}
    b, a, _, width = hidden.shape
    state = jnp.zeros((b * a, config.markov_rank), hidden.dtype)
    for step in range(steps):
        here = hidden[:, :, step]
        before = across(lesson.tokens, anchors + step).reshape(b * a)
        row = here.reshape(b * a, width)
        push, state, low = bias(config, weights, state, before, row)
        push = push.reshape(b, a, -1)
        sure = None
        if config.confidence_head:
            sure = confidence(config, weights, row, low, jnp.float32(1))
            sure = sure.reshape(b, a)
        logits = over_words(config.block, weights, target, here, words, push)
        yield Step(logits=logits, sure=sure)


def term(step: Step, truth: Truth) -> Float[Array, "B A"]:
    """Of the token, and of how sure to be of it."""
    loss = cross_entropy(step, truth)
    if step.sure is None:
        return loss
    p = jax.nn.softmax(truth.law, axis=-1)
    q = jax.nn.softmax(jax.lax.stop_gradient(step.logits), axis=-1)
    kept = jnp.minimum(p, q).sum(-1)
    sure = jnp.clip(step.sure, 1e-6, 1 - 1e-6)
    return loss - kept * jnp.log(sure) - (1 - kept) * jnp.log1p(-sure)


def begin(name: str, shape: tuple[int, ...], target: Any, words: Words | None) -> Any:
    """The Markov head begins from the target's embedding, condensed, with no effect.

    The rest begins as DFlash's.
    """
    if name == "markov.before":
        return condensed(target, shape[1])
    if name == "markov.after":
        return jnp.zeros(shape)
    return dflash.begin(name, shape, target, words)


RECIPE = Recipe(
    loss="cross-entropy at 7 places from an anchor on, each 0.85 of the one before, + "
    "binary cross-entropy of the confidence against the overlap of both laws",
    plan=plan,
    drafts=drafts,
    term=term,
    steps=7,
    decay=0.85,
    dense=False,
    begin=begin,
    gain=dflash.RECIPE.gain,
    fused="fc",
)
