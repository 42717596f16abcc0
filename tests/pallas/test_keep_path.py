import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import KVCache, Pages
from jspec.pallas.keep_path import gpu, keep_path

P, K, S, D = 12, 2, 4, 16


def scene():
    table = np.random.default_rng(0).permutation(P).reshape(3, 4).astype(np.int32)
    table[2, 3] = P
    path = np.array(
        [
            [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1],
            [0, 1, 4, 9, 2, 3, 5, 6, 7, 8, 10],
            [0, 1, 2, 9, 3, 4, 5, 6, 7, 8, 10],
        ],
        np.int32,
    )
    pages = tuple(
        jax.random.normal(jax.random.key(i), (P, K, S, D), jnp.float32)
        for i in range(2)
    )
    length = jnp.array([3, 0, 5], jnp.int32)
    count = jnp.array([10, 4, 3], jnp.int32)
    return pages, jnp.array(table), length, jnp.array(path), count


def test_the_twin_moves_what_a_cache_moves_when_it_keeps_a_path():
    (k, v), table, length, path, count = scene()
    text = jnp.zeros((P, S), jnp.int32)
    cache = KVCache(pages=Pages(k=(k,), v=(v,), text=text), table=table, length=length)
    right = cache.keep(path, path, count, branching=True).pages
    ours = keep_path((k, v), table, length, path, count)
    np.testing.assert_array_equal(ours[0], right.k[0])
    np.testing.assert_array_equal(ours[1], right.v[0])
    assert (ours[0] != k).any()


def test_the_kernel_moves_what_its_twin_moves(interpreted):
    pages, table, length, path, count = scene()
    count = count.at[2].set(4)
    right = keep_path(pages, table, length, path, count)
    ours = interpreted(gpu.keep_path, pages, table, length, path, count)
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(pages[0], scene()[0][0])


def test_the_kernel_changes_the_pages_in_place():
    pages, *others = scene()
    lowered = jax.jit(gpu.keep_path, donate_argnums=0).trace(pages, *others)
    text = lowered.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("#stablehlo.output_operand_alias<") == len(pages)


def test_pages_that_cannot_be_moved_are_refused():
    pages, *others = scene()
    with pytest.raises(ValueError, match="not 1 heads of 16"):
        keep_path((pages[0], pages[1][:, :1]), *others, implementation="gpu")
    with pytest.raises(ValueError, match="whole 128"):
        keep_path((pages[0][..., :4],), *others, implementation="gpu")
