import jax.numpy as jnp
import numpy as np
import pytest

from jspec.masks import pack_words
from jspec.pallas.tree_mask import gpu, tree_mask
from jspec.rounds import DEAD, ancestors_of


def trees(nodes, rows=3):
    rng = np.random.default_rng(nodes)
    parent = [
        [DEAD, *(int(rng.integers(-1, node)) for node in range(1, nodes))]
        for _ in range(rows - 1)
    ]
    return jnp.array([*parent, list(range(-1, nodes - 1))], jnp.int32)


@pytest.mark.parametrize("nodes", [1, 8, 33, 64, 70])
def test_the_twin_packs_the_ancestors(nodes):
    parent = trees(nodes)
    right = pack_words(ancestors_of(parent))
    ours = tree_mask(parent)
    assert ours.dtype == jnp.uint32
    np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize("nodes", [1, 32, 64])
def test_the_kernel_agrees_with_its_twin(interpreted, nodes):
    parent = trees(nodes)
    np.testing.assert_array_equal(interpreted(gpu.tree_mask, parent), tree_mask(parent))


def test_a_tree_of_more_than_64_nodes_is_refused_by_the_kernel():
    with pytest.raises(ValueError, match="at most 64 nodes, not 65"):
        tree_mask(trees(65), implementation="gpu")
