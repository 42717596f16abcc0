"""A token's numbers do not depend on what is verified beside it, to the last bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import native
from jspec.cache import CacheLayout, KVCache, empty_pages
from jspec.models import ModelConfig, Rope, build, random_weights

CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=1000,
    hidden_size=320,
    intermediate_size=900,
    num_layers=2,
    num_heads=6,
    num_key_heads=2,
    head_dim=32,
    norm_eps=1e-5,
    rope=Rope(),
    max_position=2048,
    tie_embeddings=True,
    qk_norm=True,
)
ROWS, NODES, ROOM = 12, 8, 512


@pytest.mark.skipif(native.load() is not None, reason=str(native.load() or ""))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_r26_a_tokens_logits_have_the_same_bits_alone_and_in_any_company(dtype):
    model = build(CONFIG, random_weights(CONFIG, dtype=dtype))
    layout = CacheLayout(rows=ROWS, room=ROOM, pages=ROWS * ROOM // 16)
    pages = empty_pages(layout, layers=2, key_heads=2, head_dim=32, dtype=dtype)

    def fill(a):
        if a.dtype != dtype:
            return a
        return jax.random.normal(jax.random.key(1), a.shape).astype(dtype)

    pages = jax.tree.map(fill, pages)
    table = jnp.arange(ROWS * layout.row_pages, dtype=jnp.int32).reshape(ROWS, -1)
    length = jnp.arange(270, 270 + 7 * ROWS, 7, dtype=jnp.int32)
    tokens = jax.random.randint(jax.random.key(2), (ROWS, NODES), 0, 1000)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def logits(rows, nodes, model, pages):
        parent = jnp.broadcast_to(jnp.arange(nodes) - 1, (rows, nodes))
        cache = KVCache(pages=pages, table=table[:rows], length=length[:rows])
        seen = model(tokens[:rows, :nodes], parent.astype(jnp.int32), cache)
        return seen.logits[0, 0]

    alone = np.asarray(logits(1, 1, model, pages))
    for rows, nodes in ((1, 2), (1, NODES), (4, 1), (9, 1), (3, 5), (ROWS, NODES)):
        beside = np.asarray(logits(rows, nodes, model, pages))
        np.testing.assert_array_equal(beside, alone)
