import json

import numpy as np
import pytest

from converters.convert import convert, plan
from converters.export import export
from converters.sources import open_directory
from jspec.checkpoint import load_drafter
from jspec.drafters import METHODS
from tests.drafters import blocks

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

BODY = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "max_position_embeddings": 512,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 7,
    "use_sliding_window": True,
    "attention_bias": False,
}
OPTIONS = {"target_layer_ids": [0, 1], "mask_token_id": 60}
ZLAB = {
    **BODY,
    "architectures": ["DFlashDraftModel"],
    "block_size": 5,
    "num_target_layers": 2,
    "dflash_config": OPTIONS,
}
DENSE = {
    **BODY,
    **OPTIONS,
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 4,
    "markov_rank": 6,
    "markov_head_type": "gated",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
SPECULATORS = {
    "speculators_model_type": "dflash",
    "speculators_version": "0.9.0",
    "architectures": ["DFlashDraftModel"],
    "transformer_layer_config": BODY,
    "aux_hidden_state_layer_ids": [1, 2],
    "mask_token_id": 60,
    "block_size": 5,
    "draft_vocab_size": 40,
    "sliding_window_non_causal": False,
}
SPARK = {
    **SPECULATORS,
    "speculators_model_type": "dspark",
    "architectures": ["DSparkDraftModel"],
    "markov_rank": 6,
    "sample_from_anchor": True,
}
SLIDES = {"windows": (7, None), "causal": (True, False), "taps": (1, 2)}
OWN = {"own_head": True, "own_embedding": True, "draft_vocab_size": 40}
LAYOUTS = {
    "z-lab": ("dflash", ZLAB, SLIDES, {}),
    "z-lab, both ways": (
        "dflash",
        {**ZLAB, "dflash_config": {**OPTIONS, "causal": False}},
        {**SLIDES, "causal": ()},
        {},
    ),
    "z-lab, causal": (
        "dflash",
        {**ZLAB, "is_causal": True},
        {**SLIDES, "causal": (True, True)},
        {},
    ),
    "MiMo": (
        "dflash",
        {
            **{k: v for k, v in ZLAB.items() if k not in ("layer_types",)},
            "use_swa": True,
            "swa_window_size": 9,
            "attention_sink_bias": True,
            "attention_value_scale": 0.5,
            "attention_bias": True,
        },
        {
            **SLIDES,
            "windows": (9, 9),
            "causal": (True, True),
            "sinks": True,
            "value_scale": 0.5,
            "attention_bias": True,
            "mask_embedding": True,
        },
        {},
    ),
    "speculators dflash": ("dflash", SPECULATORS, {**SLIDES, **OWN}, {}),
    "speculators dflash, both ways": (
        "dflash",
        {**SPECULATORS, "sliding_window_non_causal": True},
        {**SLIDES, **OWN, "causal": ()},
        {},
    ),
    "DeepSeek": (
        "dspark",
        DENSE,
        {**SLIDES, "block_size": 4, "sample_from_anchor": True},
        {
            "markov_head": "gated",
            "confidence_head": True,
            "confidence_with_markov": True,
        },
    ),
    "SpecForge": (
        "dspark",
        {
            **ZLAB,
            "architectures": ["DSparkDraftModel"],
            "dflash_config": {
                **OPTIONS,
                "projector_type": "dspark",
                "markov_rank": 6,
                "markov_head_type": "rnn",
            },
        },
        SLIDES,
        {"markov_head": "rnn"},
    ),
    "speculators dspark": (
        "dspark",
        SPARK,
        {**SLIDES, **OWN, "sample_from_anchor": True},
        {"markov_head": "vanilla"},
    ),
}


def expected(method, block, heads):
    config = blocks.block_config(**block).to_json()
    if method == "dspark":
        config = {"block": config, "markov_rank": 6, **heads}
    drafter = METHODS[method].configure(config)
    return drafter, blocks.random_weights(drafter.weight_shapes())


def saved(folder, raw, weights, **more):
    tensors = blocks.torch_names(weights) | more
    mask = tensors.pop("mask_embedding", None)
    if mask is not None:
        torch.save(mask, folder / "mask_embedding.pt")
    if "d2t" in tensors:
        tensors["t2d"] = torch.zeros(64, dtype=torch.bool)
    safetensors.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_whole_and_written_back(layout, tmp_path):
    method, raw, block, heads = LAYOUTS[layout]
    drafter, weights = expected(method, block, heads)
    there = tmp_path / "there"
    there.mkdir()
    saved(there, raw, weights)
    convert(there, tmp_path / "here")
    found, config, arrays = load_drafter(tmp_path / "here")
    assert found == method
    assert METHODS[method].configure(config).config == drafter.config
    assert arrays.keys() == weights.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, weights[name], err_msg=name)
    if "mask_embedding" in weights:
        with pytest.raises(ValueError, match="file of its own"):
            export(tmp_path / "here", tmp_path / "back")
        return
    export(tmp_path / "here", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == raw
    first, second = open_directory(there), open_directory(tmp_path / "back")
    assert second.keys() == first.keys() - {"t2d"}
    for name, tensor in second.items():
        assert tensor.read().tobytes() == first[name].read().tobytes(), name


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_a_drafter_that_came_from_nowhere_is_written_in_its_first_layout(
    method, tmp_path
):
    from jspec.checkpoint import save_drafter

    drafter, weights = expected(method, {**SLIDES, "logit_cap": 3.0}, {})
    config = drafter.config.to_json()
    save_drafter(tmp_path / "here", method, config, weights, source={})
    export(tmp_path / "here", tmp_path / "back")
    convert(tmp_path / "back", tmp_path / "again")
    _, again, _ = load_drafter(tmp_path / "again")
    assert METHODS[method].configure(again).config == drafter.config


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"gone": None}, "the tensor layers.1.mlp.up_proj.weight is missing"),
        ({"layers.0.mlp.extra": torch.zeros(3)}, "layers.0.mlp.extra is left over"),
        ({"norm.weight": torch.zeros(3)}, r"norm.weight has shape \(3,\)"),
        ({"fc.weight": torch.zeros(32, 32)}, r"fc.weight has shape \(32, 32\)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(more, error, tmp_path):
    _, weights = expected("dflash", SLIDES, {})
    if "gone" in more:
        more = {}
        del weights["layers.1.up"]
    saved(tmp_path, ZLAB, weights, **more)
    with pytest.raises(ValueError, match=error):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"block_size": None}, "lacks block_size"),
        ({"dflash_config": {"target_layer_ids": [0, 1]}}, "lacks mask_token_id"),
        ({"dflash_config": {**OPTIONS, "projector_type": "domino"}}, "'domino'"),
        ({"dflash_config": {**OPTIONS, "selector_rank": 8}}, "belongs to DFlash2"),
        ({"dflash_config": {**OPTIONS, "target_layer_ids": "x"}}, "not a list of"),
        ({"sliding_window": None}, "layer_types slides"),
        ({"is_neox_style": False}, "is_neox_style"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        (
            {"architectures": ["DFlash2DraftModel"], "dflash_config": None},
            "a DFlash2 drafter",
        ),
        ({"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel has a body"),
    ],
)
def test_a_file_that_says_something_else_is_refused(change, error, tmp_path):
    _, weights = expected("dflash", {**SLIDES, "own_embedding": True}, {})
    saved(
        tmp_path, {k: v for k, v in (ZLAB | change).items() if v is not None}, weights
    )
    with pytest.raises(ValueError, match=error):
        plan(tmp_path)


def test_taps_that_the_file_leaves_out_are_spread_over_the_target(tmp_path):
    _, weights = expected("dflash", SLIDES, {})
    raw = {**ZLAB, "num_target_layers": 36, "dflash_config": {"mask_token_id": 60}}
    made = plan(saved(tmp_path, raw, weights))
    assert made.config["taps"] == (2, 34)


def test_layouts_are_told_apart_by_their_tensors(tmp_path):
    for method, heads in (("dflash", {}), ("dspark", {"markov_head": "vanilla"})):
        _, weights = expected(method, SLIDES, heads)
        folder = tmp_path / method
        folder.mkdir()
        raw = {**BODY, **OPTIONS, "block_size": 5, "markov_rank": 6}
        assert plan(saved(folder, raw, weights)).family == method
