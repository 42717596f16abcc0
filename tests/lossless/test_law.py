"""Sampled text follows the target's law: all of the first three tokens together."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.params import SamplingParams
from jspec.testing import TableTarget, check_law, exact_law, sample

PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
DRAWS = 200_000


def table(seed):
    return TableTarget(
        table=jnp.asarray(
            np.random.default_rng(seed).standard_normal((5, 5)), jnp.float32
        )
    )


AIM, DRAFT = table(0), table(1)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "gamma", [pytest.param(n, marks=() if n == 4 else SLOW) for n in (1, 2, 3, 4)]
)
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_the_first_three_tokens_follow_the_law(method, gamma):
    drafter = METHODS[method](gamma=gamma)
    weights = DRAFT if method == "draft_model" else None
    params = SamplingParams(temperature=1.0)
    texts = sample(
        AIM, drafter, weights, PROMPT, params, draws=DRAWS, batch=50_000, greedy_every=5
    )
    assert len(texts) == DRAWS - DRAWS // 5
    check_law(texts, exact_law(AIM, PROMPT, params))


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_r21_filters_shape_the_law_that_is_verified(method):
    params = SamplingParams(temperature=0.7, top_k=4, top_p=0.8, min_p=0.05)
    drafter = METHODS[method](gamma=3)
    weights = DRAFT if method == "draft_model" else None
    texts = sample(AIM, drafter, weights, PROMPT, params, draws=100_000, batch=50_000)
    check_law(texts, exact_law(AIM, PROMPT, params))


def test_r20_a_greedy_draft_of_a_sampled_row_is_certain():
    drafter = METHODS["draft_model"](gamma=3, draft_sampling="greedy")
    params = SamplingParams(temperature=1.0)
    texts = sample(AIM, drafter, DRAFT, PROMPT, params, draws=100_000, batch=50_000)
    check_law(texts, exact_law(AIM, PROMPT, params))


def test_plain_decoding_follows_the_law():
    params = SamplingParams(temperature=1.3)
    texts = sample(
        AIM, METHODS["none"](), None, PROMPT, params, draws=100_000, batch=50_000
    )
    check_law(texts, exact_law(AIM, PROMPT, params))
