"""A tiny target, tiny plans, and what a drafter proposes in the engine's own steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jspec import models
from jspec.drafters.base import View
from jspec.drafters.draft_model import DraftModel
from jspec.testing import tiny_target
from jspec.training import RECIPES
from jspec.training.start import configured, frame_of, words_for
from jspec.training.steps import Task
from tests.drafters.blocks import keys, prepared

VOCABULARY, STEPS = 64, 4
PREFIXES = ([3, 14, 15, 9, 2, 6, 5, 35, 8, 9], [1, 2, 40], [*range(20, 34), 7], [5, 11])


@functools.cache
def target():
    return tiny_target(seed=3)


def counts():
    found = np.arange(1, VOCABULARY + 1)
    found[50:] = 0
    return found


def task(method, **changes):
    """The task of a method's own plan for the tiny target, float32."""
    recipe = RECIPES[method]
    frame = frame_of(target().config, counts(), 32)
    config = recipe.plan(frame)
    drafter = configured(method, recipe, config, target())
    fields = {"anchors": 8, "steps": 60, "warmup": 5, "rate": 3e-3, "dtype": "float32"}
    own = "ids" in drafter.weight_shapes()
    taps = frame.taps if recipe.tapped else drafter.feature_layers
    return Task(
        recipe=recipe, drafter=drafter, own_words=own, taps=taps, **fields | changes
    )


def words(task, most=None):
    return words_for(task.drafter.weight_shapes(), counts(), most)


def random_weights(task, seed=1):
    """Every weight drawn, none of them idle."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in task.drafter.weight_shapes().items():
        value = rng.standard_normal(shape)
        if name == "ids":
            weights[name] = words(task).ids
            continue
        if "norm" in name and "bias" not in name:
            value = 1 + 0.3 * value
        elif len(shape) == 2 and not name.endswith(("embed", "before")):
            value *= 1.5 * shape[0] ** -0.5
        weights[name] = jnp.asarray(value, jnp.float32)
    return weights


def proposed(method, task, weights, texts, gamma):
    """What the engine's steps draft, greedily, behind the last token of each text."""
    drafter, own = task.drafter, weights
    if task.recipe.language_model:
        drafter, own = DraftModel(), models.build(task.drafter.config, weights)
    drafter = dataclasses.replace(drafter, gamma=gamma, draft_sampling="greedy")
    loop, view = prepared(target(), drafter, own, texts)
    anchor = jnp.asarray([text[-1] for text in texts], jnp.int32)

    @jax.jit
    def propose(own, memory, anchor, cache, sampling):
        view = View(target=target(), cache=cache, sampling=sampling)
        return drafter.propose(own, memory, anchor, keys(len(texts)), view)[0]

    said = propose(own, loop.state.memory, anchor, view.cache, view.sampling)
    return np.asarray(said.tokens)[:, 1:], np.asarray(said.confidence)[:, 1:]
