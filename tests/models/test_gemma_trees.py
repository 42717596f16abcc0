"""Trees over layers that slide and layers that read the keys of others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import METHODS
from jspec.testing import GREEDY, Loop, Scripted, decode
from tests.models.gemmas import tiny_gemma3, tiny_gemma4

WINDOW, TOKENS = 7, 40
PROMPTS = [[1, 2, 3], [5] * 11 + [7], [4, 8]]
PARENTS = (0, 0, 2, 2, 4)
"""Nodes 2, 4 and 5 are right at most places; 1 and 3 are their wrong siblings."""


def tree(texts, vocab):
    """At each place the tree whose path is what the text has next, or fails early."""
    lines = np.full((len(texts), 128, len(PARENTS)), -1, np.int32)
    for row, text in enumerate(texts):
        for place in range(len(text) - 3):
            one, two, three = text[place + 1 : place + 4]
            deep = (three + (place % 3 == 1)) % vocab
            wrong = (one + 1) % vocab, (two + 1) % vocab
            two = (two + 2 * (place % 4 == 2)) % vocab
            lines[row, place] = wrong[0], one, wrong[1], two, deep
    return jnp.asarray(lines)


@pytest.mark.parametrize("build", [tiny_gemma3, tiny_gemma4])
def test_kept_branches_leave_every_stored_layer_as_plain_decoding_does(build):
    target = build(sliding_window=WINDOW)
    wish = dataclasses.replace(GREEDY, max_tokens=TOKENS)
    longer = dataclasses.replace(GREEDY, max_tokens=TOKENS + 4)
    plain = decode(target, METHODS["none"](), None, PROMPTS, longer)
    texts = [[*p, *d.tokens] for p, d in zip(PROMPTS, plain, strict=True)]
    drafter = Scripted(gamma=3, parents=PARENTS)
    script = tree(texts, target.config.vocab_size)
    loop = Loop(target, drafter, script, rows=3)
    once = Loop(target, METHODS["none"](), None, rows=3, chunk=64)
    for row, prompt in enumerate(PROMPTS):
        loop.admit(row, prompt, wish)
    got, counts = [list(prompt) for prompt in PROMPTS], set()
    for _ in range(10):
        emission = loop.round()
        counts |= set(emission.accepted.tolist())
        for row, count in enumerate(emission.count):
            got[row] += emission.tokens[row, :count].tolist()
    assert got == [text[: len(ours)] for text, ours in zip(texts, got, strict=True)]
    assert counts >= {1, 2, 3}
    for row, text in enumerate(got):
        once.admit(row, text, GREEDY)
    for row, text in enumerate(got):
        committed = np.arange(len(text) - 1)
        for ours, right in zip(stored(loop), stored(once), strict=True):
            a, b = (
                np.asarray(pages[table[row][committed // 4], :, committed % 4])
                for pages, table in (ours, right)
            )
            np.testing.assert_allclose(a, b, atol=2e-5)


def stored(loop):
    pages, table = loop.state.pages, np.asarray(loop.state.rows.table)
    return [(a, table) for a in jax.tree.leaves((pages.k, pages.v))]
