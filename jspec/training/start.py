"""A drafter before its first step: its sizes from a plan, its weights drawn."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jspec.drafters import METHODS
from jspec.training.draft_model import SmallModel
from jspec.training.lessons import Words, words_of
from jspec.training.recipe import Frame, Recipe

__all__ = ["configured", "first_weights", "frame_of", "words_for"]


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
) -> dict[str, Array]:
    """What the recipe says, norms of one, biases of zero; the rest is drawn.

    Matrices are normal with the root of one over what they read; those that end a
    branch of a layer are smaller, so that layers begin near the identity.
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
        weights[name] = jnp.array(value, jnp.float32)
    return weights
