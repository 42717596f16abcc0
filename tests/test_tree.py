import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Int

from jspec.tree import pytree


@pytree
class Pair:
    left: Int[Array, " B"]
    right: Int[Array, " B"] | None = None


def test_fields_are_children_by_name():
    pair = Pair(left=jnp.arange(3))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(pair)]
    assert paths == [".left"]
    assert jax.tree.map(lambda a: a + 1, pair).left.tolist() == [1, 2, 3]


def test_it_is_frozen_and_takes_keywords_alone():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pair(left=jnp.arange(3)).left = jnp.arange(2)
    with pytest.raises(TypeError):
        Pair(jnp.arange(3))


def test_transformations_may_put_anything_into_it():
    pair = Pair(left=jnp.arange(3), right=jnp.arange(3))
    shapes = jax.eval_shape(lambda pair: pair, pair)
    assert shapes.left.shape == (3,)
    placed = jax.tree.map(lambda a: a.sharding, pair)
    assert isinstance(placed, Pair)


def test_it_goes_through_jit_and_scan():
    def step(pair, _):
        return (jax.tree.map(lambda a: a + 1, pair), None)

    pair = jax.jit(lambda p: jax.lax.scan(step, p, length=3)[0])(
        Pair(left=jnp.arange(2))
    )
    assert pair.left.tolist() == [3, 4]
    assert pair.right is None
