import jax.numpy as jnp
import numpy as np

from jspec.rounds import ancestors_of
from jspec.rules import ban_words, recent_tokens

TOKENS = jnp.array([[5, 6, 7, 8, 9]])
PARENT = jnp.array([[-1, 0, 0, 2, 3]])
BEFORE = jnp.array([[1, 2, 3]])


def recent(emitted):
    related = ancestors_of(PARENT)
    depth = related.sum(-1, dtype=jnp.int32) - 1
    return recent_tokens(TOKENS, related, depth, BEFORE, jnp.array([emitted]))[0]


def test_the_last_tokens_of_a_node_follow_its_own_path_then_the_text():
    right = [[2, 3, 5], [3, 5, 6], [3, 5, 7], [5, 7, 8], [7, 8, 9]]
    np.testing.assert_array_equal(recent(9), right)


def test_tokens_of_the_prompt_begin_no_forbidden_word():
    np.testing.assert_array_equal(recent(0)[:3], [[-1] * 3, [-1, -1, 6], [-1, -1, 7]])
    np.testing.assert_array_equal(recent(2)[0], [-1, 3, 5])


def banned(words):
    lines = np.full((1, 3, 4), -1, np.int32)
    for line, word in zip(lines[0], words, strict=False):
        line[4 - len(word) :] = word
    logits = ban_words(jnp.zeros((1, 5, 12)), jnp.asarray(lines), recent(9)[None])
    return [np.flatnonzero(np.isinf(row)).tolist() for row in np.asarray(logits[0])]


def test_a_word_bans_its_last_token_where_the_tokens_before_it_stand():
    assert banned([(4,)]) == [[4]] * 5
    assert banned([(5, 10)]) == [[10], [], [], [], []]
    assert banned([(5, 7, 11), (8, 1)]) == [[], [], [11], [1], []]
    assert banned([(3, 5, 7, 0)]) == [[], [], [0], [], []]
    assert banned([(3, 5, 6, 0)]) == [[], [0], [], [], []]
