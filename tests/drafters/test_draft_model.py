import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.params import SamplingParams
from jspec.testing import GREEDY, TableTarget, decode, tiny_target

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
