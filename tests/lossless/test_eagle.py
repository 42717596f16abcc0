"""EAGLE heads answer the four questions, as drawn chains and as grown trees."""

import jax.numpy as jnp
import pytest

from jspec.drafters import METHODS
from jspec.testing import check_method, decode, tiny_target
from tests.drafters.eagles import eagle, eagle3, multi_eagle, sized, weights_of

SMALL = {"draft_vocab_size": 40}
TREE = {"tree_width": 3, "tree_nodes": 8}
DRAFTERS = {
    "eagle, drawn": eagle(gamma=3),
    "multi_eagle, drawn": multi_eagle(),
    "eagle3, drawn from a smaller vocabulary, cut where it is unsure": eagle3(
        config=SMALL, gamma=3, confidence_threshold=0.01
    ),
    "eagle3, a tree, window and sink": eagle3(
        sized(num_layers=2), SMALL, gamma=3, window=4, sink=1, **TREE
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_four_questions(drafter):
    target = tiny_target()
    fitted = DRAFTERS[drafter].fit(target)
    check_method(fitted, weights_of(fitted), target, tokens=16, draws=4000)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle, drawn", "eagle3, a tree, window and sink"])
def test_greedy_text_in_bfloat16_is_plain_decoding(drafter):
    target = tiny_target(dtype=jnp.bfloat16)
    fitted = DRAFTERS[drafter].fit(target)
    weights = weights_of(fitted, dtype=jnp.bfloat16)
    prompts = [[1, 2, 3], [9], [4] * 10]
    plain = decode(target, METHODS["none"](), None, prompts)
    ours = decode(target, fitted, weights, prompts)
    assert [d.tokens for d in ours] == [d.tokens for d in plain]
