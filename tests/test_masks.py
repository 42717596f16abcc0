import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.masks import (
    full_mask,
    pack_words,
    parents_of,
    query_mask,
    unpack_words,
    words_for,
)
from jspec.rounds import DEAD, ancestors_of


def trees(seed, rows, nodes):
    rng = np.random.default_rng(seed)
    parent = np.array(
        [[DEAD, *(rng.integers(0, n) for n in range(1, nodes))] for _ in range(rows)]
    )
    parent[rng.random(parent.shape) < 0.1] = DEAD
    return jnp.asarray(parent, jnp.int32)


@pytest.mark.parametrize(
    ("nodes", "words"), [(1, 1), (5, 1), (32, 1), (33, 2), (64, 2)]
)
def test_integers_say_what_the_mask_says(nodes, words):
    ancestors = ancestors_of(trees(0, 3, nodes))
    packed = pack_words(ancestors)
    assert packed.dtype == jnp.uint32
    assert packed.shape == (3, nodes, words) == (3, nodes, words_for(nodes))
    for node in range(nodes):
        bits = sum(int(w) << (32 * i) for i, w in enumerate(packed[1, node]))
        seen = [bits >> other & 1 for other in range(nodes)]
        assert seen == ancestors[1, node].astype(int).tolist()
    assert (unpack_words(packed) == ancestors).all()


def test_a_full_mask_is_the_text_and_then_the_tree():
    parent = jnp.array([[-1, 0, 0, 1], [-1, 0, -1, 1]], jnp.int32)
    full = full_mask(ancestors_of(parent), jnp.array([2, 3]), 7)
    drawn = [["".join("01"[int(x)] for x in node) for node in row] for row in full]
    assert drawn == [
        ["1110000", "1111000", "1110100", "1111010"],
        ["1111000", "1111100", "1110010", "1111101"],
    ]


def test_full_and_query_only_masks_go_into_each_other():
    ancestors = ancestors_of(trees(1, 4, 9))
    length = jnp.array([0, 3, 7, 11])
    assert (query_mask(full_mask(ancestors, length, 20), length) == ancestors).all()


def test_nodes_beyond_the_cache_are_seen_by_nobody():
    ancestors = ancestors_of(jnp.array([[-1, 0, 1]], jnp.int32))
    length = jnp.array([4])
    back = query_mask(full_mask(ancestors, length, 6), length)
    assert back.astype(int).tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]


def test_parents_follow_from_ancestors():
    parent = trees(2, 5, 40)
    assert (jax.jit(parents_of)(ancestors_of(parent)) == parent).all()
