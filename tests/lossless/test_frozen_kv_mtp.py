"""Gemma 4 assistants answer the four questions, with one table and with centroids."""

import jax.numpy as jnp
import pytest

from jspec.drafters import METHODS
from jspec.testing import check_method, decode
from tests.drafters.assistants import random_pair

CENTROIDS = {"centroids": 16, "centroid_top_k": 5}
CASES = {
    "drawn": {},
    "drawn from chosen clusters, cut where it is unsure": {
        "changes": CENTROIDS,
        "confidence_threshold": 0.01,
    },
    "certain": {"changes": CENTROIDS, "draft_sampling": "greedy"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_four_questions(case):
    drafter, weights, target = random_pair(gamma=3, **CASES[case])
    check_method(drafter, weights, target, tokens=16, draws=4000)


@pytest.mark.slow
def test_greedy_text_in_bfloat16_is_plain_decoding():
    drafter, weights, target = random_pair(jnp.bfloat16, CENTROIDS, gamma=3)
    prompts = [[1, 2, 3], [9], [4] * 10]
    plain = decode(target, METHODS["none"](), None, prompts)
    ours = decode(target, drafter, weights, prompts)
    assert [d.tokens for d in ours] == [d.tokens for d in plain]
