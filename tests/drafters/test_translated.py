"""Drafting with a language model that has another vocabulary."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.drafters.translated import translate
from jspec.params import SamplingParams
from jspec.server.vocabularies import shared_tokens, stand_ins
from jspec.testing import (
    GREEDY,
    TableTarget,
    check_law,
    check_method,
    decode,
    exact_law,
    sample,
    text_logits,
    tiny_target,
)
from jspec.tokenizer import Tokenizer
from tests.serving import write_tokenizer

DraftModel = METHODS["draft_model"]


def table(size, seed=0):
    values = np.random.default_rng(seed).standard_normal((size, size))
    return TableTarget(table=jnp.asarray(1.5 * values, jnp.float32))


SHARED = {0: 3, 2: 1, 3: 6, 5: 0}
HEARD = {1: 4, 4: 2}


def bilingual(seed=1):
    return translate(table(7, seed), SHARED, HEARD, 6)


def test_it_reads_our_tokens_and_says_none_but_the_shared_ones():
    model = table(7, 1)
    ids = np.array([[0, 1, 2, 3, 4, 5]])
    said = np.asarray(text_logits(bilingual(), ids))
    own = np.asarray(text_logits(model, np.array([[3, 4, 1, 6, 2, 0]])))
    for ours, theirs in SHARED.items():
        assert np.array_equal(said[..., ours], own[..., theirs])
    assert np.isneginf(said[..., [1, 4]]).all()


@pytest.mark.parametrize(
    "draft_sampling",
    ["probabilistic", pytest.param("greedy", marks=pytest.mark.slow)],
)
def test_sampled_text_follows_the_targets_law(draft_sampling):
    aim = table(6)
    drafter = DraftModel(gamma=2, draft_sampling=draft_sampling, vocabulary="shared")
    drafter.check(bilingual(), aim)
    params = SamplingParams(temperature=0.8)
    texts = sample(aim, drafter, bilingual(), [1, 2], params, draws=8000)
    check_law(texts, exact_law(aim, [1, 2], params))
    assert set(texts.ravel()) == set(range(6))


def test_greedy_text_is_plain_decodings_and_drafts_are_kept():
    aim = tiny_target(0, vocab_size=12)
    shared = {i: i for i in range(12) if i not in (3, 7)}
    own = translate(aim, shared, {3: 3, 7: 7}, 12)
    drafter = DraftModel(gamma=3, draft_sampling="greedy", vocabulary="shared")
    prompts = [[11, 3, 5, 7, 2], [9], [4, 8]]
    plain = decode(aim, METHODS["none"](), None, prompts, GREEDY)
    ours = decode(aim, drafter, own, prompts, GREEDY)
    assert [d.tokens for d in ours] == [d.tokens for d in plain]
    assert sum(sum(d.accepted) for d in ours) > 10


@pytest.mark.slow
def test_the_four_lossless_questions():
    aim, other = tiny_target(0), tiny_target(1, vocab_size=50)
    shared = {i: (7 * i) % 50 for i in range(0, 50, 2)}
    model = translate(other, shared, {}, 64)
    drafter = DraftModel(gamma=2, vocabulary="shared")
    check_method(drafter, model, aim, tokens=12, draws=3000)


def test_an_empty_intersection_is_refused():
    with pytest.raises(ValueError, match="have no token in common"):
        translate(table(7), {}, HEARD, 6)


def tokenizer(folder, **changes):
    folder.mkdir()
    for name, content in write_tokenizer(folder, **changes).items():
        (folder / name).write_bytes(content)
    return Tokenizer(folder)


def test_tokens_are_shared_by_their_bytes_and_special_ones_by_name(tmp_path):
    one, two = tokenizer(tmp_path / "a"), tokenizer(tmp_path / "b", swap=(40, 90))
    same = shared_tokens(one, one, one.size)
    assert same == {i: i for i in range(one.size)}
    crossed = shared_tokens(one, two, one.size)
    assert {i: j for i, j in crossed.items() if i != j} == {40: 90, 90: 40}
    assert len(crossed) == one.size
    assert shared_tokens(one, two, 50).keys() == set(range(50))


def test_a_token_that_only_we_have_is_heard_as_the_end_of_its_text(tmp_path):
    one = tokenizer(tmp_path / "a")
    two = tokenizer(tmp_path / "b")
    pair = one.encode("he")
    assert len(pair) == 1
    shared = shared_tokens(one, two, one.size)
    del shared[pair[0]]
    assert stand_ins(one, two, shared, one.size) == {pair[0]: pair[0]}
