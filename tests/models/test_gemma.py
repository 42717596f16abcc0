"""Gemma 2, 3 and 4 compute what transformers computes, whatever way a text is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.decode import Finish
from jspec.drafters import METHODS
from jspec.testing import (
    GREEDY,
    Loop,
    text_logits,
)
from tests.models.gemmas import (
    CASES,
    pair,
    recorded,
)

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_at_every_position(case):
    ids, right, _ = recorded(case)
    ours = text_logits(pair(case)[1], ids)
    assert np.abs(right).max() > 1
    np.testing.assert_allclose(ours, right, atol=1e-4)


@pytest.mark.parametrize("case", ["gemma3-linear", "gemma4-everything"])
def test_taps_are_the_stream_after_so_many_layers(case):
    ids, _, states = recorded(case)
    model = pair(case)[1]
    layers = model.config.num_layers
    seen = whole(model, ids, tuple(range(layers + 1)))
    taps = jnp.split(seen.features, layers + 1, axis=-1)
    for ours, right in zip(taps[:-1], states[:-1], strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-3)
    np.testing.assert_allclose(model.normed(taps[-1]), states[-1], atol=1e-4)
    np.testing.assert_array_equal(taps[0], model.embed_tokens(jnp.asarray(ids)))


def whole(model, ids, taps=()):
    b, t = ids.shape
    layout = CacheLayout(rows=b, room=t, pages=b, page_size=t)
    cache = KVCache(
        pages=layer_pages(layout, model.config.cache_heads, model.dtype),
        table=jnp.arange(b, dtype=jnp.int32)[:, None],
        length=jnp.zeros(b, jnp.int32),
    )
    parent = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32) - 1, (b, t))
    read = jax.jit(lambda *inputs: model(*inputs, feature_layers=taps))
    return read(jnp.asarray(ids, jnp.int32), parent, cache)


@pytest.mark.parametrize("case", ["gemma2", "gemma3-linear", "gemma4-everything"])
def test_a_prompt_read_in_pieces_gives_the_same_next_token(case):
    ids, right, _ = recorded(case)
    loop = Loop(pair(case)[1], METHODS["none"](), rows=4, room=80, chunk=5)
    for length in (1, 2, 6, 7, 8, 33, 64):
        loop.admit(length % 4, ids[0, :length].tolist(), GREEDY)
        emission = loop.round([length % 4])
        assert emission.tokens[0, 0] == right[0, length - 1].argmax()
        assert emission.finish[0] == Finish.RUNNING
