"""Packed matrices and fused layers say what the plain operations say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import native
from jspec.cache import CacheLayout, KVCache, empty_pages
from jspec.drafters.ragged import Ragged
from jspec.models import ModelConfig, Rope, build, random_weights
from jspec.models import layers as plain
from jspec.rounds import DEAD, Proposal

pytestmark = pytest.mark.skipif(
    native.load() is not None, reason=str(native.load() or "")
)

CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=160,
    num_layers=3,
    num_heads=6,
    num_key_heads=2,
    head_dim=32,
    norm_eps=1e-5,
    rope=Rope(),
    max_position=2048,
    tie_embeddings=True,
)
OPTIONS = {
    "plain": {},
    "biases": {"attention_bias": True, "output_bias": True, "mlp_bias": True},
    "norms, windows, own head": {
        "qk_norm": True,
        "windows": (4, None, 30),
        "tie_embeddings": False,
    },
    "no whole panels of tokens": {"vocab_size": 333},
}
ROWS, NODES, LAYOUT = 4, 7, CacheLayout(rows=4, room=96, pages=4 * 6)
TREE = jnp.array([[-1, 0, 0, 1, 2, 4, 4]] * ROWS, jnp.int32)


def cache(config, dtype):
    pages = empty_pages(
        LAYOUT,
        layers=config.num_layers,
        key_heads=config.num_key_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )
    spread = iter(jax.random.split(jax.random.key(0), 20))
    kinds = {
        name: tuple(jax.random.normal(next(spread), a.shape).astype(dtype) for a in kv)
        for name, kv in (("k", pages.k), ("v", pages.v))
    }
    table = jnp.arange(24, dtype=jnp.int32).reshape(ROWS, -1)
    return KVCache(
        pages=dataclasses.replace(pages, **kinds),
        table=table.at[3].set(24),
        length=jnp.array([0, 5, 60, 0], jnp.int32),
    )


def in_one(pages):
    return dataclasses.replace(pages, k=jnp.stack(pages.k), v=jnp.stack(pages.v))


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(jnp.float32, 1e-4), (jnp.bfloat16, 0.15)]
)
def test_a_packed_model_says_what_it_said_before(option, dtype, bound):
    config = dataclasses.replace(CONFIG, **option)
    tokens = jax.random.randint(jax.random.key(1), (ROWS, NODES), 0, 320)

    @jax.jit
    def read(model, cache):
        seen = model(tokens, TREE, cache, branching=True, feature_layers=(0, 2))
        return seen.logits[:3], seen.features[:3], seen.cache.pages

    model = build(config, random_weights(config, dtype=dtype))
    right = read(model, cache(config, dtype))
    model.pack()
    assert model.stack is not None and not model.layers
    got = read(model, cache(config, dtype))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(
            a.astype(jnp.float32), b.astype(jnp.float32), atol=bound
        )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_pages_of_all_layers_in_one_array_hold_what_an_array_a_layer_holds(dtype):
    config = dataclasses.replace(CONFIG, windows=(4, None, 30))
    tokens = jax.random.randint(jax.random.key(1), (ROWS, NODES), 0, 320)
    path = jnp.array([[0, 2, 4, 6, 1, 3, 5]] * ROWS, jnp.int32)

    @jax.jit
    def read(model, cache):
        seen = model(tokens, TREE, cache, branching=True, feature_layers=(1, 3))
        kept = seen.cache.keep(
            path, tokens, jnp.array([4, 1, 3, 4], jnp.int32), branching=True
        )
        return seen.logits[:3], seen.features[:3], kept

    model = build(config, random_weights(config, dtype=dtype))
    model.pack()
    apart = cache(config, dtype)
    together = dataclasses.replace(apart, pages=in_one(apart.pages))
    assert together.pages.bytes_per_token == apart.pages.bytes_per_token
    right, got = read(model, apart), read(model, together)
    assert got[2].pages.k.shape[0] == config.num_layers
    right = (*right[:2], dataclasses.replace(right[2], pages=in_one(right[2].pages)))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_lie_in_huge_pages_and_are_read_where_they_lie():
    filled = native.room((3, 5), np.dtype(np.float32))
    filled[...] = 2
    assert filled.ctypes.data % (2 << 20) == 0
    array = native.held(filled)
    assert array.unsafe_buffer_pointer() == filled.ctypes.data
    np.testing.assert_array_equal(array, 2)


def test_a_packed_model_reads_chains_packed_into_one_line():
    tokens = jax.random.randint(jax.random.key(2), (ROWS, 4), 0, 320)
    parent = jnp.array([[-1, 0, 1, 2], [-1, 0, -1, -1], [-1] * 4, [-1] * 4], jnp.int32)
    proposal = Proposal(tokens=tokens, parent=parent)
    ragged = Ragged(mode="compact", budget=2)

    here = cache(CONFIG, jnp.float32)
    here = dataclasses.replace(here, table=here.table[::-1], length=here.length[::-1])

    @jax.jit
    def read(model):
        seen = ragged.read(model, proposal, here, branching=False, feature_layers=())
        verified = (parent != DEAD) | (jnp.arange(4) == 0)[None]
        return seen.logits * verified[..., None]

    model = build(CONFIG, random_weights(CONFIG))
    right = read(model)
    model.pack()
    np.testing.assert_allclose(read(model), right, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_matrix_comes_back_from_its_panels_and_takes_as_much_memory(dtype):
    w = jax.random.normal(jax.random.key(0), (34, 96)).astype(dtype)
    panels = native.repack(w)
    assert panels.nbytes == w.nbytes
    np.testing.assert_array_equal(native.unpack(panels), w)
    head = native.repack(w.T[:, :32])
    tokens = jnp.array([[3, 31], [0, 32]])
    taken = plain.embed(head, tokens)
    np.testing.assert_array_equal(taken[0], w[tokens[0]])
    assert np.isnan(taken[1, 1]).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_of_a_packed_product_ignore_their_neighbours(dtype):
    x, w = (
        jax.random.normal(jax.random.key(i), shape).astype(dtype)
        for i, shape in enumerate([(21, 130), (130, 64)])
    )
    panels = native.repack(w)
    product = jax.jit(lambda x: native.panel_product(x, panels, out=jnp.float32))
    whole = np.asarray(product(x))
    right = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    assert np.abs(whole - right).max() < 1e-5 * np.abs(right).max()
    for rows in (1, 2, 3, 5, 8, 9):
        np.testing.assert_array_equal(product(x[:rows]), whole[:rows])


def test_rows_of_another_dtype_meet_the_unpacked_matrix():
    w = jnp.ones((8, 32), jnp.bfloat16)
    y = plain.linear(jnp.full((1, 2, 8), 0.1), native.repack(w), out=jnp.float32)
    np.testing.assert_allclose(y, 0.8, rtol=1e-6)


def test_what_has_no_whole_panels_stays_as_it_is():
    config = dataclasses.replace(CONFIG, intermediate_size=150)
    model = build(config, random_weights(config))
    model.pack()
    assert model.stack is None
    assert not any(native.packed(a) for a in jax.tree.leaves(model))
