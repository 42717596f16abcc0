"""A drafter before its first step: its sizes from a plan, its weights drawn."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jspec.drafters import METHODS
from jspec.training.draft_model import SmallModel
from jspec.training.lessons import Lesson, Words, words_of
from jspec.training.recipe import Frame, Recipe

__all__ = ["configured", "first_weights", "frame_of", "tap_sizes", "words_for"]


def frame_of(target: Any, counts: np.ndarray, length: int) -> Frame:
    """What the sizes of drafters of a target follow from.

    Args:
      target: its configuration.
      counts: how often each token was written.
      length: of the texts trained on.
    """
    return Frame(
        target=target,
        known=int((counts > 0).sum()),
        mask_token_id=int(np.argmin(counts[: target.tokens])),
        length=length,
    )


def configured(method: str, recipe: Recipe, config: Any, target: Any) -> Any:
    """The drafter of a configuration, fitted to the target."""
    if recipe.language_model:
        return SmallModel.configure(config)
    kind: Any = METHODS[method]
    drafter = kind.configure(config)
    fit = getattr(drafter, "fit", None)
    return drafter if fit is None else fit(target)


def words_for(
    shapes: dict[str, tuple[int, ...]], counts: np.ndarray, most: int | None
) -> Words | None:
    """The likeliest tokens: those of the drafter's own vocabulary, or of the loss.

    Args:
      shapes: of the drafter's weights.
      counts: how often each token was written.
      most: words of the loss of a drafter with the target's vocabulary; `None`: all.
    """
    size = shapes["ids"][0] if "ids" in shapes else most
    if size is None or size >= len(counts):
        return None
    order = np.argsort(-counts, kind="stable")[:size]
    return words_of(np.sort(order), len(counts))


def first_weights(
    recipe: Recipe,
    drafter: Any,
    target: Any,
    words: Words | None,
    seed: int,
    sizes: np.ndarray | None = None,
) -> dict[str, Array]:
    """What the recipe says, norms of one, biases of zero; the rest is drawn.

    Matrices are normal with the root of one over what they read; those that end a
    branch of a layer are smaller, so that layers begin near the identity.

    Args:
      recipe: of the method.
      drafter: whose weights.
      target: the model.
      words: of the loss.
      seed: of what is drawn.
      sizes: see `tap_sizes`; `None`: all taps are read alike, whatever their sizes.
    """
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, shape in drafter.weight_shapes().items():
        last = name.rsplit(".", 1)[-1]
        drawn = rng.standard_normal(shape, np.float32)
        value = recipe.begin(name, shape, target, words)
        if name == "ids":
            assert words is not None
            weights[name] = words.ids
            continue
        if value is None and "bias" in last:
            value = np.zeros(shape, np.float32)
        elif (value is None and last.endswith("norm")) or "tap_norms" in name:
            value = np.ones(shape, np.float32)
        elif value is None:
            scale = 1.0 if len(shape) == 1 else 1 / math.sqrt(shape[0])
            value = drawn * scale * (0.3 if last in ("o", "down") else 1.0)
            value *= recipe.gain(name, shape, target)
            if name == recipe.fused and sizes is not None:
                value /= sizes[:, None]
        weights[name] = jnp.array(value, jnp.float32)
    return weights


def tap_sizes(lesson: Lesson) -> np.ndarray:
    """How large each tapped number usually is: its standard deviation, were it normal.

    A state has a few numbers that are far larger than the others (98 % of the squares
    of `smollm2-135m`'s 15th state are one number's): read alike, what is fused of the
    taps would tell little else, and behind a norm nearly the same at every place. The
    median is taken, for the first tokens of a text are larger still.

    Args:
      lesson: some texts, with features.

    Returns:
      as many numbers as a place has features, all above 0.
    """
    assert lesson.features is not None
    seen = np.asarray(lesson.features, np.float32)[np.asarray(lesson.answered)]
    sizes = np.median(np.abs(seen), axis=0) / 0.6745
    return np.maximum(sizes, 1e-3 * max(float(np.median(sizes)), 1e-6))
