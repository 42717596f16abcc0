import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import CacheLayout, KVCache, empty_pages

LAYOUT = CacheLayout(rows=2, room=12, pages=8, page_size=4)


def empty(table, length):
    pages = empty_pages(LAYOUT, layers=2, key_heads=1, head_dim=2, dtype=jnp.float32)
    return KVCache(
        pages=pages,
        table=jnp.array(table, jnp.int32),
        length=jnp.array(length, jnp.int32),
    )


def nodes(rows, n, base=1):
    """Node `i` of row `b` holds `100 * b + i + base`."""
    value = 100.0 * np.arange(rows)[:, None] + np.arange(n)[None] + base
    return jnp.asarray(np.repeat(value[:, :, None, None], 2, -1), jnp.float32)


def slots(cache, row, layer=0):
    size = LAYOUT.page_size
    held = [p for p in cache.table[row].tolist() if p < LAYOUT.pages]
    return [float(cache.pages.k[layer][p, 0, s, 0]) for p in held for s in range(size)]


@pytest.mark.parametrize("field", ["rows", "room", "pages", "page_size"])
def test_a_layout_without_size_is_refused(field):
    sizes = {"rows": 1, "room": 1, "pages": 1, "page_size": 1, field: 0}
    with pytest.raises(ValueError, match=f"{field} must be at least 1, not 0"):
        CacheLayout(**sizes)


@pytest.mark.parametrize(
    ("room", "size", "block", "row"), [(12, 4, 3, 3), (300, 16, 16, 32), (1, 16, 1, 1)]
)
def test_a_rows_table_holds_whole_blocks(room, size, block, row):
    layout = CacheLayout(rows=1, room=room, pages=1, page_size=size)
    assert (layout.block_pages, layout.row_pages) == (block, row)


def test_append_writes_behind_the_committed_across_pages():
    cache = empty([[5, 2, 8], [1, 8, 8]], [3, 0])
    cache = cache.append(1, nodes(2, 3), nodes(2, 3))
    assert slots(cache, 0, 1) == [0, 0, 0, 1, 2, 3, 0, 0]
    assert slots(cache, 1, 1) == [101, 102, 103, 0]
    assert not cache.pages.k[0].any()
    assert cache.length.tolist() == [3, 0]


def test_what_has_no_page_or_no_place_is_dropped():
    cache = empty([[5, 8, 8], [1, 3, 4]], [2, 11])
    cache = cache.append(0, nodes(2, 4), nodes(2, 4))
    assert slots(cache, 0) == [0, 0, 1, 2]
    assert slots(cache, 1) == [0] * 11 + [101]
    untouched = [p for p in range(8) if p not in (5, 4)]
    assert not cache.pages.k[0][jnp.array(untouched)].any()


def test_keep_on_a_chain_moves_nothing_and_notes_the_text():
    cache = empty([[5, 2, 8], [1, 8, 8]], [3, 0]).append(0, nodes(2, 3), nodes(2, 3))
    path = jnp.array([[0, 1, 2]] * 2, jnp.int32)
    tokens = jnp.array([[7, 8, 9], [4, 5, 6]], jnp.int32)
    kept = cache.keep(path, tokens, jnp.array([2, 0], jnp.int32), branching=False)
    np.testing.assert_array_equal(kept.pages.k[0], cache.pages.k[0])
    assert kept.length.tolist() == [5, 0]
    assert kept.text[0, 3:5].tolist() == [7, 8]
    assert not kept.pages.text.at[1].get().any()


def test_keep_on_a_tree_moves_the_path_together():
    cache = empty([[5, 2, 8], [1, 3, 8]], [3, 1]).append(0, nodes(2, 5), nodes(2, 5))
    path = jnp.array([[0, 2, 4, 1, 3], [0, 3, 1, 2, 4]], jnp.int32)
    tokens = jnp.array([[7, 8, 9, 0, 0], [4, 5, 0, 0, 0]], jnp.int32)
    kept = cache.keep(path, tokens, jnp.array([3, 2], jnp.int32), branching=True)
    assert slots(kept, 0)[3:6] == [1, 3, 5]
    assert slots(kept, 1)[1:3] == [101, 104]
    assert kept.length.tolist() == [6, 3]
    assert kept.text[0, 3:6].tolist() == [7, 8, 9]
    assert kept.text[1, 1:3].tolist() == [4, 5]


def test_bytes_of_a_token_count_keys_and_values_of_all_layers():
    assert empty([[0, 1, 2]] * 2, [0, 0]).pages.bytes_per_token == 2 * 2 * 2 * 4


def test_attention_is_by_the_implementation_asked_for():
    cache = empty([[5, 2, 8], [1, 8, 8]], [3, 0]).append(0, nodes(2, 1), nodes(2, 1))
    options = {"ancestors": None, "window": None, "scale": 1.0, "block_pages": 3}
    plain = cache.attend(0, nodes(2, 1), **options)
    twin = cache.attend(0, nodes(2, 1), implementation="reference", **options)
    np.testing.assert_allclose(plain, twin, rtol=1e-6)
    with pytest.raises(
        ValueError, match="heads of 64 or 128 numbers in float32, not of 2"
    ):
        cache.attend(0, nodes(2, 1), implementation="gpu", **options)
    with pytest.raises(ValueError, match="no implementation 'triton'"):
        cache.attend(0, nodes(2, 1), implementation="triton", **options)


def test_the_gpu_kernel_is_in_the_program_where_a_caller_asked_for_it():
    layout = CacheLayout(rows=1, room=64, pages=4)
    pages = empty_pages(layout, layers=1, key_heads=1, head_dim=64, dtype=jnp.bfloat16)
    cache = KVCache(
        pages=pages, table=jnp.arange(4)[None], length=jnp.zeros((1,), jnp.int32)
    )

    def attend(cache, q, implementation):
        return cache.attend(
            0,
            q,
            ancestors=None,
            window=None,
            scale=1.0,
            block_pages=layout.block_pages,
            implementation=implementation,
        )

    traced = jax.jit(attend, static_argnums=2)
    for implementation, there in (("gpu", True), ("reference", False), (None, False)):
        lowered = traced.trace(cache, jnp.ones((1, 1, 1, 64)), implementation).lower(
            lowering_platforms=("cuda",)
        )
        assert ("mosaic_gpu" in lowered.as_text()) == there
