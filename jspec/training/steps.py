"""The pure steps of training: one update, one examination."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from jspec import native
from jspec.training.lessons import Lesson, Words, truth_of
from jspec.training.recipe import Recipe, mean
from jspec.tree import pytree

__all__ = [
    "Guesses",
    "Report",
    "Task",
    "examine",
    "guesses",
    "optimizer",
    "parted",
    "update",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and how; static.

    Attributes:
      recipe: of the method.
      drafter: fitted to the target.
      own_words: whether the drafter has a vocabulary of its own.
      anchors: drawn from each text, if not every position is one.
      steps: updates in all.
      warmup: of them, while the rate rises.
      rate: the highest.
      dtype: of the arithmetic; weights and sums are float32.
      taps: states of the target that the drafter reads; `()` if only its last one.
    """

    recipe: Recipe
    drafter: Any
    own_words: bool
    anchors: int
    steps: int
    warmup: int
    rate: float
    dtype: str
    taps: tuple[int, ...]

    @property
    def examined(self) -> int:
        """Places behind an anchor that are examined."""
        return max(self.recipe.steps, 4)


@pytree
class Report:
    """What one update saw.

    Attributes:
      loss: weighed over the places.
      norm: of the gradient, before it is clipped.
    """

    loss: Float[Array, ""]
    norm: Float[Array, ""]


@pytree
class Guesses:
    """What would be drafted behind each anchor, given the text up to each place.

    Attributes:
      anchors: positions of the anchors.
      tokens: the likeliest ones.
      sure: their probabilities.
      right: whether they are the text's, all places before included.
      inside: whether the target wrote these places, all before included.
    """

    anchors: Int[Array, "B A"]
    tokens: Int[Array, "B A G"]
    sure: Float[Array, "B A G"]
    right: Bool[Array, "B A G"]
    inside: Bool[Array, "B A G"]


def optimizer(task: Task) -> optax.GradientTransformation:
    """AdamW behind a warm-up and a cosine, gradients clipped to norm 1."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=task.rate,
        warmup_steps=task.warmup,
        decay_steps=task.steps,
        end_value=task.rate / 20,
    )

    def matrices(weights: Any) -> Any:
        return jax.tree.map(lambda a: a.ndim > 1, weights)

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=0.01, mask=matrices),
    )


def parted(weights: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """What is learnt, and the ids that are not."""
    learnt = {
        name: a for name, a in weights.items() if jnp.issubdtype(a.dtype, jnp.floating)
    }
    return learnt, {name: a for name, a in weights.items() if name not in learnt}


def update(
    weights: dict[str, Array],
    moments: Any,
    fixed: dict[str, Array],
    target: Any,
    lesson: Lesson,
    words: Words | None,
    key: Key[Array, ""],
    *,
    task: Task,
) -> tuple[dict[str, Array], Any, Report]:
    """One step of gradient descent on a batch of texts.

    Args:
      weights: the drafter's, float32; donated.
      moments: the optimiser's; donated.
      fixed: those that are not learnt.
      target: lends embedding and head.
      lesson: what it showed of the texts.
      words: over which the loss is; `None`: all tokens.
      key: draws anchors.
      task: static.
    """
    anchors = _anchors(lesson, key, task)

    def loss_of(weights: dict[str, Array]) -> Array:
        cast = {name: a.astype(task.dtype) for name, a in weights.items()}
        return _loss(task, cast | fixed, target, lesson, anchors, words)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    changes, moments = optimizer(task).update(gradient, moments, weights)
    after = jax.tree.map(jnp.add, weights, changes)
    return after, moments, Report(loss=loss, norm=_size(gradient))


def _size(gradient: dict[str, Array]) -> Float[Array, ""]:
    return jnp.sqrt(
        sum((jnp.square(a).sum() for a in gradient.values()), jnp.float32(0))
    )


def _loss(
    task: Task,
    weights: dict[str, Array],
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
) -> Float[Array, ""]:
    recipe = task.recipe
    total, weight = jnp.float32(0), 0.0
    with native.aside():
        steps = recipe.drafts(
            task.drafter, weights, target, lesson, anchors, words, recipe.steps
        )
        for i, step in enumerate(steps):
            truth = truth_of(target, lesson, words, anchors, i)
            term = mean(recipe.term(step, truth), truth.counted)
            total += recipe.decay**i * term
            weight += recipe.decay**i
    return total / weight


def _anchors(lesson: Lesson, key: Key[Array, ""], task: Task) -> Int[Array, "B A"]:
    """Every position, or as many as are drawn of those before an answer's token."""
    b, t = lesson.tokens.shape
    if task.recipe.dense:
        return jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], (b, t))
    useful = jnp.pad(lesson.answered, ((0, 0), (0, 1)))[:, 1:]
    score = jax.random.uniform(key, (b, t)) + useful
    score = jnp.where(jnp.arange(t)[None] >= 1, score, -1)
    return jax.lax.top_k(score, min(task.anchors, t - 1))[1].astype(jnp.int32)


def guesses(
    weights: dict[str, Array],
    target: Any,
    lesson: Lesson,
    anchors: Int[Array, "B A"],
    words: Words | None,
    *,
    task: Task,
    steps: int,
) -> Guesses:
    """The likeliest token of every place behind every anchor.

    With the text up to each place given, a place is right just when greedy drafting
    would have its draft there kept, if all drafts before it were.
    """
    tokens, sure, right, inside = [], [], [], []
    good = real = jnp.ones(anchors.shape, bool)
    with native.aside():
        drafts = task.recipe.drafts(
            task.drafter, weights, target, lesson, anchors, words, steps
        )
        for i, step in enumerate(drafts):
            truth = truth_of(target, lesson, words, anchors, i)
            best = jnp.argmax(step.logits, axis=-1).astype(jnp.int32)
            real &= truth.inside
            good &= truth.counted & (best == truth.labels)
            tokens.append(best if words is None else words.ids[best])
            sure.append(jax.nn.softmax(step.logits, axis=-1).max(-1))
            right.append(good & real)
            inside.append(real)
    return Guesses(
        anchors=anchors,
        tokens=jnp.stack(tokens, axis=-1),
        sure=jnp.stack(sure, axis=-1),
        right=jnp.stack(right, axis=-1),
        inside=jnp.stack(inside, axis=-1),
    )


def examine(
    weights: dict[str, Array],
    fixed: dict[str, Array],
    target: Any,
    lesson: Lesson,
    words: Words | None,
    key: Key[Array, ""],
    *,
    task: Task,
) -> tuple[Int[Array, " G"], Int[Array, " G"]]:
    """How many anchors have all drafts up to a place right, and how many have it.

    Args: as of `update`; the likeliest token is taken among all that the drafter has.
    """
    found = guesses(
        {name: a.astype(task.dtype) for name, a in weights.items()} | fixed,
        target,
        lesson,
        _anchors(lesson, key, task),
        words if task.own_words else None,
        task=task,
        steps=task.examined,
    )
    return found.right.sum((0, 1)), found.inside.sum((0, 1))
