"""What is trained is what drafts: the same tokens at the same places."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.training import RECIPES
from jspec.training.lessons import read
from jspec.training.steps import guesses
from tests.training.kit import (
    PREFIXES,
    STEPS,
    proposed,
    random_weights,
    target,
    task,
    words,
)

QUICK = ("eagle3", "medusa", "draft_model", "dflash")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=() if method in QUICK else pytest.mark.slow)
        for method in RECIPES
    ],
)
def test_training_guesses_what_the_engine_drafts_at_the_same_places(method):
    made = task(method)
    if method == "dspark":
        config = dataclasses.replace(
            made.drafter.config, confidence_head=False, confidence_with_markov=False
        )
        drafter = dataclasses.replace(made.drafter, config=config)
        made = dataclasses.replace(made, drafter=drafter)
    weights = random_weights(made)
    drafted, sure = proposed(method, made, weights, PREFIXES, STEPS)
    texts = np.zeros((len(PREFIXES), 24), np.int32)
    for row, (prefix, drafts) in enumerate(zip(PREFIXES, drafted, strict=True)):
        whole = [*prefix, *drafts]
        texts[row, : len(whole)] = whole
    last = np.array([[len(prefix) - 1] for prefix in PREFIXES])
    known = words(made) if made.own_words else None

    @jax.jit
    def guessed(weights, texts, last):
        answered = jnp.ones(texts.shape, bool)
        lesson = read(target(), texts, answered, made.taps)
        anchors = last
        if made.recipe.dense:
            every = jnp.arange(texts.shape[1], dtype=jnp.int32)[None]
            anchors = jnp.broadcast_to(every, texts.shape)
        return guesses(
            weights, target(), lesson, anchors, known, task=made, steps=STEPS
        )

    found = guessed(weights, texts, last)
    row = np.arange(len(PREFIXES))
    column = last[:, 0] if made.recipe.dense else np.zeros(len(PREFIXES), int)
    assert np.asarray(found.tokens)[row, column].tolist() == drafted.tolist()
    assert np.allclose(np.asarray(found.sure)[row, column], sure, atol=2e-4)
    inside = np.asarray(found.inside)[row, column]
    assert inside.all()
    kept = np.isin(drafted, np.asarray(known.ids)) if known else np.ones_like(inside)
    assert (np.asarray(found.right)[row, column] == kept).all()
    assert len({tuple(each) for each in drafted.tolist()}) > 1
