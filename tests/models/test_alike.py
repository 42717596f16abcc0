"""A token's numbers do not depend on what is verified beside it, to the last bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import native
from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.models import ModelConfig, Rope, build, random_weights
from jspec.models.gemma_config import Experts, LayerType
from tests.models.gemmas import gemma4_config

QWEN = ModelConfig(
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
GEMMA = gemma4_config(
    vocab_size=1000,
    layer_input_rows=1000,
    hidden_size=320,
    intermediate_size=900,
    num_heads=6,
    full=LayerType(
        key_heads=1, head_dim=64, rope=Rope(kind="proportional", fraction=0.25)
    ),
    sliding=LayerType(key_heads=2, head_dim=32, rope=Rope()),
    kinds=("sliding", "full", "full"),
    shared_layers=1,
    sliding_window=100,
    experts=Experts(count=3, top=2, width=40),
    max_position=2048,
)
PACKED = dataclasses.replace(QWEN, vocab_size=1024, intermediate_size=896)
CONFIGS = {"qwen": QWEN, "packed": PACKED, "gemma": GEMMA}
ROWS, NODES, ROOM = 12, 8, 512


@pytest.mark.skipif(native.load() is not None, reason=str(native.load() or ""))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.slow if f == "gemma" else ()) for f in CONFIGS],
)
def test_r26_a_tokens_logits_have_the_same_bits_alone_and_in_any_company(family, dtype):
    config = CONFIGS[family]
    model = build(config, random_weights(config, dtype=dtype))
    model.pack()
    assert (getattr(model, "stack", None) is not None) == (family == "packed")
    layout = CacheLayout(rows=ROWS, room=ROOM, pages=ROWS * ROOM // 16)
    pages = layer_pages(layout, config.cache_heads, dtype)

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
