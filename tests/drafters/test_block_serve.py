"""Block drafters through `jspec.serve`, from a published layout to a text."""

import json

import pytest

import jspec
from jspec.drafters import METHODS
from jspec.models.base import Rope
from tests import serving
from tests.converters import test_block_drafters as layouts
from tests.drafters import blocks


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_a_published_layout_is_served_and_greedy_text_is_plain(
    servers, method, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    aim = servers["plain"]
    model = json.loads((servers.paths["target"] / "jspec.json").read_text())["config"]
    sizes = {
        "vocab_size": model["vocab_size"],
        "hidden_size": model["hidden_size"],
        "target_hidden_size": model["hidden_size"],
        "mask_token_id": 0,
        "rope": Rope(theta=100.0),
        **layouts.SLIDES,
        "taps": (0, 1),
    }
    raw = layouts.ZLAB if method == "dflash" else layouts.DENSE
    raw = raw | {name: sizes[name] for name in ("vocab_size", "hidden_size")}
    taps = {"target_layer_ids": [-1, 0], "mask_token_id": 0}
    if method == "dflash":
        raw["dflash_config"] = taps
        config = blocks.block_config(**sizes).to_json()
    else:
        raw |= taps
        sizes |= {"block_size": 4, "sample_from_anchor": True}
        heads = layouts.LAYOUTS["DeepSeek"][3]
        block = blocks.block_config(**sizes).to_json()
        config = {"block": block, "markov_rank": 6, **heads}
    drafter = METHODS[method].configure(config)
    weights = blocks.random_weights(drafter.weight_shapes())
    there = tmp_path / "there"
    there.mkdir()
    layouts.saved(there, raw, weights)
    with serving.quick_compiler(tmp_path / "xla"):
        server = jspec.serve(
            servers.paths["target"],
            drafter=there,
            max_batch=2,
            max_model_len=64,
            page_size=4,
            compilation_cache=False,
            method_options={"confidence_threshold": 0.02},
        )
    with server:
        prompts = ["def f(x):", "x"]
        done = server.generate(prompts, serving.greedy(max_tokens=12))
        right = aim.generate(prompts, serving.greedy(max_tokens=12))
        assert [d.token_ids for d in done] == [d.token_ids for d in right]
        assert sum(d.speculation.drafted for d in done) > 0
