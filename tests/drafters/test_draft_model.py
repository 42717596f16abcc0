import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.params import SamplingParams
from jspec.testing import (
    GREEDY,
    TableTarget,
    check_law,
    decode,
    exact_law,
    sample,
    tiny_target,
)
from tests.drafters import blocks

DraftModel = METHODS["draft_model"]


def table(size, seed=0):
    values = np.random.default_rng(seed).standard_normal((size, size))
    return TableTarget(table=jnp.asarray(2 * values, jnp.float32))


def test_r61_padding_rows_of_either_vocabulary_are_never_offered():
    aim = tiny_target(0, vocab_size=80, token_count=64)
    draft = tiny_target(0, vocab_size=72, token_count=64)
    drafter = DraftModel(gamma=3)
    params = SamplingParams(temperature=4.0, seed=1, max_tokens=30)
    done = decode(aim, drafter, draft, [[1, 2], [3]], params)
    assert max(max(d.tokens) for d in done) < 64
    assert any(sum(d.accepted) for d in done)


def test_r61_another_vocabulary_is_refused_with_its_size():
    with pytest.raises(ValueError, match="has 5 tokens, the target 6"):
        DraftModel().check(table(5), table(6))


def test_a_draft_model_needs_weights():
    with pytest.raises(ValueError, match="needs drafter="):
        DraftModel().check(None, table(6))


def test_a_negative_number_of_drafts_is_refused():
    with pytest.raises(ValueError, match="gamma must be at least 0, not -1"):
        DraftModel(gamma=-1)


def test_plain_decoding_refuses_to_draft():
    with pytest.raises(ValueError, match="drafts nothing"):
        METHODS["none"](gamma=2)


def test_a_draft_of_no_tokens_is_plain_decoding():
    aim = table(6)
    right = decode(aim, METHODS["none"](), None, [[1], [2, 3]], GREEDY)
    ours = decode(aim, DraftModel(gamma=0), table(6, 1), [[1], [2, 3]], GREEDY)
    assert [d.tokens for d in ours] == [d.tokens for d in right]
    assert dataclasses.replace(DraftModel(), gamma=0).gamma == 0


def test_its_confidence_is_what_its_law_gives_its_likeliest_token():
    aim, draft, drafter = tiny_target(), tiny_target(1), DraftModel(gamma=3)
    wish = SamplingParams(temperature=1.0, max_tokens=8)
    loop, view = blocks.prepared(aim, drafter, draft, params=wish)
    proposal, _ = jax.jit(drafter.propose)(
        draft, loop.state.memory, loop.state.rows.anchor, blocks.keys(4), view
    )
    sure = np.array(proposal.confidence)
    assert (sure[:, 0] == 1).all()
    np.testing.assert_allclose(sure[:, 1:], proposal.q[:, 1:].max(-1), atol=1e-6)


@pytest.mark.parametrize("mode", ["cap-accept", "compact"])
def test_rows_share_a_budget_of_its_drafts_and_greedy_text_stays(mode):
    aim, draft = tiny_target(), tiny_target(1)
    prompts = [list(text) for text in blocks.TEXTS]
    params = dataclasses.replace(GREEDY, max_tokens=8)
    right = decode(aim, METHODS["none"](), None, prompts, params)
    drafter = DraftModel(gamma=4, ragged=mode, ragged_budget=1.5)
    done = decode(aim, drafter, draft, prompts, params)
    assert [d.tokens for d in done] == [d.tokens for d in right]
    assert sum(d.drafted[0] for d in done) == 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ragged": "compact"}, "ragged_budget goes with"),
        ({"confidence_threshold": 2.0}, "confidence_threshold must lie"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options, error):
    with pytest.raises(ValueError, match=error):
        DraftModel(**options)


@pytest.mark.slow
def test_sampled_text_follows_the_law_where_its_drafts_share_a_budget():
    drafter = DraftModel(gamma=3, ragged="compact", ragged_budget=1.2)
    params = SamplingParams(temperature=0.9, top_k=4)
    texts = sample(
        tiny_target(), drafter, tiny_target(1), [1, 2, 3, 1, 2], params, draws=8000
    )
    check_law(texts, exact_law(tiny_target(), [1, 2, 3, 1, 2], params))
