"""Gemma 2, 3 and 4 compute what transformers computes, whatever way a text is read."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import CacheLayout, KVCache, layer_pages
from jspec.decode import Finish
from jspec.drafters import METHODS
from jspec.mesh import AXES
from jspec.models import build, config_from_json, random_weights
from jspec.models.gemma_config import Experts
from jspec.testing import GREEDY, Loop, check_method, decode, text_logits
from tests.models.gemmas import (
    CASES,
    gemma4_config,
    pair,
    recorded,
    tiny_gemma3,
    tiny_gemma4,
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


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("gemma2", marks=pytest.mark.slow),
        pytest.param("gemma3-linear", marks=pytest.mark.slow),
        "gemma4-everything",
    ],
)
def test_a_prompt_read_in_pieces_gives_the_same_next_token(case):
    ids, right, _ = recorded(case)
    loop = Loop(pair(case)[1], METHODS["none"](), rows=4, room=80, chunk=5)
    for length in (1, 2, 6, 7, 8, 33, 64):
        loop.admit(length % 4, ids[0, :length].tolist(), GREEDY)
        emission = loop.round([length % 4])
        assert emission.tokens[0, 0] == right[0, length - 1].argmax()
        assert emission.finish[0] == Finish.RUNNING


GEMMAS = {"gemma3": tiny_gemma3, "gemma4": tiny_gemma4}
PROMPTS = ([5, 9, 5, 9, 5, 9, 5, 9, 5], [3], list(range(1, 30)))


@pytest.mark.parametrize(
    "family", [pytest.param("gemma3", marks=pytest.mark.slow), "gemma4"]
)
@pytest.mark.parametrize(
    "method", ["ngram", pytest.param("draft_model", marks=pytest.mark.slow)]
)
def test_greedy_speculation_is_plain_decoding_past_the_window(family, method):
    target = GEMMAS[family]()
    drafter = METHODS[method](gamma=3)
    draft = tiny_gemma3(seed=1, kinds=("sliding", "full"))
    weights = draft if method == "draft_model" else None
    params = [dataclasses.replace(GREEDY, max_tokens=40)] * len(PROMPTS)
    plain = decode(target, METHODS["none"](), None, PROMPTS, params)
    done = decode(target, drafter, weights, PROMPTS, params)
    assert [d.tokens for d in done] == [d.tokens for d in plain]
    assert {len(d.tokens) for d in done} == {40}


@pytest.mark.slow
@pytest.mark.parametrize("family", GEMMAS)
def test_the_four_questions_of_a_draft_model(family):
    target = GEMMAS[family]()
    check_method(METHODS["draft_model"](gamma=3), tiny_gemma3(seed=1), target)


@pytest.mark.slow
def test_a_gemma_drafts_for_itself_and_everything_is_kept():
    target = tiny_gemma4()
    params = [dataclasses.replace(GREEDY, max_tokens=40)] * len(PROMPTS)
    drafter = METHODS["draft_model"](gamma=3, draft_sampling="greedy")
    for done in decode(target, drafter, target, PROMPTS, params):
        assert done.tau == pytest.approx(4, abs=0.2)


def test_layers_that_read_the_keys_of_others_store_none():
    config = gemma4_config()
    assert [config.stores(l) for l in range(6)] == [True] * 4 + [False] * 2
    assert [config.cache_layer(l) for l in range(6)] == [0, 1, 2, 3, 2, 3]
    assert (config.last_stored("sliding"), config.last_stored("full")) == (2, 3)
    assert config.cache_heads == ((2, 16), (1, 32)) * 2
    layout = CacheLayout(rows=1, room=16, pages=1)
    pages = layer_pages(layout, config.cache_heads, jnp.bfloat16)
    assert pages.bytes_per_token == 2 * 2 * 4 * 32
    assert not any(".k" in name for name in config.weight_shapes() if ".4." in name)


def test_a_configuration_goes_through_json():
    config = gemma4_config(experts=Experts(count=4, top=2, width=8))
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


def test_the_embedding_is_scaled_in_the_models_dtype():
    model = tiny_gemma4(dtype=jnp.bfloat16, hidden_size=48)
    row = model.embed_tokens(jnp.array([[7]], jnp.int32))[0, 0]
    right = np.asarray(model.embed[7], np.float32) * 6.9375
    np.testing.assert_array_equal(row, jnp.asarray(right, jnp.bfloat16))


def test_padding_rows_of_the_vocabulary_have_no_logit():
    seen = whole(tiny_gemma4(token_count=40), np.array([[1, 2, 3]]))
    assert (seen.logits[..., 40:] == -jnp.inf).all()
    assert jnp.isfinite(seen.logits[..., :40]).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"family": "gemma5"}, "'gemma5' is not known; known are gemma2"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, not 0"),
        ({"kinds": ("full", "sideways")}, "full or sliding, not 'sideways'"),
        ({"num_heads": 3}, "num_heads 3 is not a multiple of the 2 key heads of slid"),
        ({"shared_layers": 6}, r"shared_layers must lie in 0\.\.5, not 6"),
        ({"shared_layers": 5}, "no full layer before them has any"),
        ({"final_cap": 0.0}, "final_cap must be above 0"),
        ({"layer_input_rows": 60}, "at least the 61 tokens, not 60"),
        ({"token_count": 62}, r"token_count must lie in 1\.\.61"),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        gemma4_config(**changes)


def test_a_model_without_layers_of_a_kind_has_no_last_one():
    with pytest.raises(ValueError, match="this gemma4 model has no sliding layer"):
        gemma4_config(kinds=("full", "full"), shared_layers=0).last_stored("sliding")


def test_a_missing_weight_is_named():
    config = gemma4_config()
    weights = random_weights(config)
    del weights["layers.3.q_norm"]
    with pytest.raises(ValueError, match=r"layers\.3\.q_norm is missing"):
        build(config, weights)


def test_every_weight_has_axes_on_a_mesh():
    config = gemma4_config(
        attention_bias=True, experts=Experts(count=4, top=2, width=8)
    )
    for name, shape in config.weight_shapes().items():
        assert len(AXES[name.rsplit(".", 1)[-1]]) == len(shape), name


def test_a_cap_of_scores_is_refused_by_the_kernel_that_has_none():
    config = gemma4_config(kinds=("full",) * 3)
    layout = CacheLayout(rows=1, room=16, pages=1)
    cache = KVCache(
        pages=layer_pages(layout, config.cache_heads, jnp.float32),
        table=jnp.zeros((1, 1), jnp.int32),
        length=jnp.zeros(1, jnp.int32),
    )
    with pytest.raises(ValueError, match=r"has no cap of scores, 5\.0 here"):
        cache.attend(
            0,
            jnp.zeros((1, 1, 4, 32)),
            ancestors=None,
            window=None,
            scale=1.0,
            block_pages=1,
            cap=5.0,
            implementation="gpu",
        )
