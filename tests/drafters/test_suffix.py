import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.drafters.places import Corpus, Places
from jspec.params import SamplingParams
from jspec.testing import (
    GREEDY,
    TableTarget,
    check_law,
    check_method,
    decode,
    exact_law,
    sample,
    tiny_target,
)

Suffix = METHODS["suffix"]


class Told:
    """A drafter and its memory, told of texts one after the other."""

    def __init__(self, **options):
        self.drafter = Suffix(**options)
        self.memory = self.drafter.init()
        self.count = 0

    def begin(self, prompt, answer=()):
        name, self.count = self.count, self.count + 1
        self.drafter.admit(self.memory, name, prompt)
        if answer:
            self.drafter.observe(self.memory, name, answer)
        return name

    def end(self, name):
        self.drafter.leave(self.memory, name)

    def draft(self, name, gamma=8):
        [draft] = self.drafter.propose(self.memory, [name], [gamma])
        assert draft.parent is None
        return list(draft.tokens)


ALWAYS = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
SPLIT = [7, 1, 8, 7, 2, 8, 7, 1, 9, 7]


@pytest.mark.parametrize(
    ("text", "options", "right"),
    [
        (ALWAYS, {}, [4, 5, 6]),
        (ALWAYS, {"max_spec_factor": 2.0}, [4, 5, 6, 9, 1, 2]),
        (
            ALWAYS,
            {"max_spec_factor": 2.0, "max_spec_offset": 1.0},
            [4, 5, 6, 9, 1, 2, 3],
        ),
        (ALWAYS, {"max_spec_factor": 0.4}, [4]),
        (ALWAYS, {"max_tree_depth": 1}, [4]),
        (ALWAYS, {"max_tree_depth": 2}, [4, 5]),
        (SPLIT, {"max_spec_factor": 2.0}, [1, 9]),
        (SPLIT, {"max_spec_factor": 2.0, "min_token_prob": 0.5}, [1]),
        (SPLIT, {"min_token_prob": 0.7}, []),
        ([1, 2, 3], {}, []),
        ([1], {}, []),
        ([5, 5], {}, [5]),
        ([5, 5, 5, 5], {}, [5, 5]),
    ],
    ids=str,
)
def test_the_likeliest_continuation_of_the_best_match_is_offered(text, options, right):
    told = Told(**options)
    assert told.draft(told.begin(text)) == right


def test_no_more_is_offered_than_is_asked_for():
    told = Told(max_spec_factor=4.0)
    name = told.begin(ALWAYS)
    assert [told.draft(name, k) for k in (0, 1, 2)] == [[], [4], [4, 5]]


def test_the_longer_match_wins_over_the_more_frequent_one():
    told = Told(max_spec_factor=1.0)
    name = told.begin([3, 4, 9, 3, 4, 9, 3, 4, 9, 1, 2, 3, 4, 6, 7, 8, 5, 1, 2, 3, 4])
    assert told.draft(name) == [6, 7, 8, 5]


def test_what_one_text_was_answered_is_offered_to_all_and_prompts_are_not():
    told = Told()
    told.end(told.begin([1, 2, 3], [4, 5, 6, 7]))
    running = told.begin([21, 22], [23, 24, 25])
    assert told.draft(told.begin([9, 4, 5])) == [6, 7]
    assert told.draft(told.begin([22, 23])) == [24]
    assert told.draft(told.begin([8, 1, 2])) == []
    assert told.draft(running) == []
    alone = Told(max_cached_requests=0)
    alone.end(alone.begin([1, 2, 3], [4, 5, 6, 7]))
    assert alone.draft(alone.begin([9, 4, 5])) == []


def test_the_texts_own_past_wins_a_tie_with_others():
    told = Told()
    told.begin([50], [1, 2, 3, 4])
    assert told.draft(told.begin([1, 2, 7, 8, 1, 2])) == [7, 8]


@pytest.mark.parametrize(
    "options", [{"max_cached_requests": 2}, {"max_cached_tokens": 8}], ids=str
)
def test_the_oldest_response_is_forgotten_and_leaves_nothing_behind(options):
    told = Told(**options)
    for first in (10, 20, 30):
        told.end(told.begin([1], range(first, first + 4)))
    memory = told.memory
    assert memory.responses.size == 8
    assert not memory.texts
    assert set(memory.responses._ones) == {*range(20, 24), *range(30, 34)}
    assert len(memory.responses._twos) == 6
    if "max_cached_tokens" in options:
        told = Told(**options, max_cached_requests=3)
        told.begin([1], range(40))
        assert told.memory.responses.size == 0
        assert not told.memory.responses._ones


def test_places_that_were_forgotten_are_no_longer_found():
    places = Places()
    places.extend(0, [1, 2, 3])
    places.extend(1, [1, 2, 4])
    places.remove(0)
    places.remove(7)
    assert [at for _, at in places.twos(1, 2)] == [1]
    assert list(places.ones(3)) == []


def test_a_corpus_is_looked_up_within_its_documents():
    told = Told(max_spec_factor=4.0)
    told.memory.corpora = {"a": Corpus([[1, 2, 3, 4], [5, 6, 1, 2, 3, 4], [4]])}
    assert told.draft(told.begin([9, 2, 3])) == [4]
    assert told.draft(told.begin([9, 4])) == []
    assert told.draft(told.begin([9, 5, 6])) == [1, 2, 3, 4]
    assert told.draft(told.begin([9, 3, 4])) == []
    told.memory.corpora = {}
    assert told.draft(told.begin([9, 2, 3])) == []


def test_a_corpus_and_growing_texts_find_the_same_places():
    drawn = np.random.default_rng(0).integers(0, 6, (20, 40)).tolist()
    grown, corpus = Places(), Corpus(drawn)
    for name, text in enumerate(drawn):
        grown.extend(name, text)

    def seen(places):
        return [tuple(list(text)[max(at - 3, 0) : at + 1][-2:]) for text, at in places]

    for a in range(6):
        assert len(list(grown.ones(a))) == len(list(corpus.ones(a))) > 100
        for b in range(6):
            assert [pair for pair in seen(grown.twos(a, b)) if pair == (a, b)] == (
                seen(corpus.twos(a, b))
            )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gamma": -1}, "gamma must be at least 0, not -1"),
        ({"max_tree_depth": 0}, "max_tree_depth must be at least 1, not 0"),
        ({"max_cached_requests": -1}, "max_cached_requests must be at least 0"),
        ({"min_token_prob": 1.5}, r"min_token_prob must lie in 0..1, not 1.5"),
        ({"max_spec_factor": 0.01}, "draft nothing behind any match"),
    ],
    ids=str,
)
def test_limits_under_which_nothing_is_found_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Suffix(**options)


@pytest.mark.slow
def test_the_four_lossless_questions():
    drafter = Suffix(gamma=3, max_spec_factor=2.0, max_cached_requests=0)
    check_method(drafter, None, tiny_target(), tokens=16, draws=4000)


def test_greedy_text_is_plain_decodings_whatever_others_were_answered():
    target = tiny_target(1)
    prompts = [[1, 2, 3, 1, 2, 3, 1], [5] * 6, [9], [1, 2, 3, 1, 2, 3, 1]]
    drafter = Suffix(gamma=3, max_spec_factor=3.0)
    plain = decode(target, METHODS["none"](), None, prompts, GREEDY)
    ours = decode(target, drafter, None, prompts, GREEDY)
    assert [d.tokens for d in ours] == [d.tokens for d in plain]
    assert sum(sum(d.accepted) for d in ours) > 10


def test_sampled_text_follows_the_law_with_every_row_learning_from_all():
    table = np.random.default_rng(3).standard_normal((5, 5))
    aim = TableTarget(table=jnp.asarray(1.5 * table, jnp.float32))
    params = SamplingParams(temperature=0.9, top_k=4)
    drafter = Suffix(gamma=2, max_spec_factor=2.0)
    prompt = [1, 2, 3, 1, 2]
    texts = sample(aim, drafter, None, prompt, params, draws=4000, batch=2000)
    check_law(texts, exact_law(aim, prompt, params))


def test_another_gamma_is_another_drafter_over_the_same_memory():
    told = Told(max_spec_factor=4.0)
    name = told.begin(ALWAYS)
    other = dataclasses.replace(told.drafter, gamma=0)
    assert other.propose(told.memory, [name], [0])[0].tokens == []
