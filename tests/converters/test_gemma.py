"""Gemma's files arrive exactly, alone or inside a model of several senses."""

import json

import numpy as np
import pytest
import safetensors.numpy

from converters import convert, export, plan
from converters.check import difference
from converters.configs import from_hugging_face, to_hugging_face
from converters.families import HUGGING_FACE
from converters.tables import lines
from jspec import checkpoint
from jspec.models.base import Rope
from tests.models.gemmas import SIZES, theirs

transformers = pytest.importorskip("transformers")

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def tensors_of(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def edit(folder, change):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def rewrite(folder, change):
    tensors = tensors_of(folder)
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def assert_same_weights(path, model):
    config, weights = checkpoint.load(path)
    state = {name: t.detach().numpy() for name, t in model.state_dict().items()}
    for weight, (name, change) in lines(HUGGING_FACE[config.family], config).items():
        right = change(state[name], config)
        np.testing.assert_array_equal(np.asarray(weights[weight]), right, err_msg=name)


@pytest.mark.parametrize(
    "case", ["gemma2", "gemma3-linear", "gemma3-biases-cap-head", "gemma4-everything"]
)
def test_every_option_arrives_exactly_computes_the_same_and_goes_back(case, tmp_path):
    model, folder, here = theirs(case), tmp_path / "model", tmp_path / "here"
    model.save_pretrained(folder)
    report = convert(folder, here)
    assert report.family == case.split("-")[0]
    assert not any("not read" in notice for notice in report.notices)
    assert_same_weights(here, model)
    assert difference(here, folder).worst < 1e-4

    export(here, tmp_path / "back")
    before, after = tensors_of(folder), tensors_of(tmp_path / "back")
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].tobytes() == after[name].tobytes(), name
    written = (folder / "config.json", tmp_path / "back" / "config.json")
    assert json.loads(written[0].read_text()) == json.loads(written[1].read_text())

    config = checkpoint.read_config(here)
    anew = to_hugging_face(config, "float32")
    assert from_hugging_face(anew, config.family) == config
    kind = {"gemma2": "gemma2"}.get(config.family, f"{config.family}_text")
    assert transformers.AutoConfig.for_model(**anew).model_type == kind


@pytest.fixture
def wrapped(tmp_path):
    """(text model, directory) of a Gemma 3 with eyes, in the older layout."""
    text = theirs("gemma3")
    config = transformers.Gemma3Config(
        text_config=text.config.to_dict(),
        vision_config=transformers.SiglipVisionConfig(**VISION),
        mm_tokens_per_image=4,
        image_token_index=60,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.tie_weights()
    folder = tmp_path / "wrapped"
    model.save_pretrained(folder)
    assert "language_model.model.embed_tokens.weight" in tensors_of(folder)
    return text, folder


def newer(name):
    name = name.replace("language_model.model.", "model.language_model.")
    return name if name.startswith(("model.", "lm_head")) else f"model.{name}"


@pytest.mark.parametrize("layout", ["older", "newer"])
def test_the_language_model_inside_another_is_converted_alone(
    wrapped, tmp_path, layout
):
    text, folder = wrapped
    if layout == "newer":
        tensors = {newer(name): t for name, t in tensors_of(folder).items()}
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    report = convert(folder, tmp_path / "here")
    (notice,) = [n for n in report.notices if "left out" in n]
    assert "tensors of multi_modal_projector, vision_tower are left out" in notice
    assert_same_weights(tmp_path / "here", text)
    export(tmp_path / "here", tmp_path / "back")
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert back["architectures"] == ["Gemma3ForCausalLM"]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    for name, right in text.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], right)


def test_a_wrapper_with_a_tensor_that_nobody_knows_is_refused(wrapped, tmp_path):
    _, folder = wrapped
    name = "language_model.model.layers.0.mlp.extra.weight"
    rewrite(folder, lambda t: t.update({name: np.zeros(3, np.float32)}))
    with pytest.raises(ValueError, match=f"tensor {name} is left over"):
        plan(folder)


def test_keys_of_layers_that_read_those_of_others_may_be_in_the_file(tmp_path):
    model, folder = theirs("gemma4-inputs"), tmp_path / "model"
    model.save_pretrained(folder)
    name = "model.layers.3.self_attn.k_proj.weight"
    rewrite(folder, lambda t: t.update({name: np.zeros((32, 32), np.float32)}))
    convert(folder, tmp_path / "here")
    assert_same_weights(tmp_path / "here", model)
    kept = name.replace("layers.3", "layers.0")
    rewrite(folder, lambda t: t.pop(kept))
    with pytest.raises(ValueError, match=f"tensor {kept} is missing"):
        plan(folder)


def read(family, **changes):
    return from_hugging_face(SIZES | changes, family)


def test_what_google_leaves_out_is_what_transformers_assumes():
    bare = {"hidden_size": 64, "num_hidden_layers": 12, "sliding_window": 1024}
    for family in ("gemma2", "gemma3", "gemma4"):
        kind = "gemma2" if family == "gemma2" else f"{family}_text"
        whole = transformers.AutoConfig.for_model(kind, **bare).to_dict()
        assert from_hugging_face(bare, family) == from_hugging_face(whole, family)


def test_both_spellings_of_two_ropes_are_read():
    old = read(
        "gemma3",
        rope_theta=5e5,
        rope_local_base_freq=2e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    new = read(
        "gemma3",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    )
    assert old == new
    assert old.full.rope == Rope(kind="linear", factor=8.0, theta=5e5)
    assert old.sliding.rope == Rope(theta=2e4)


def test_both_spellings_of_full_layers_keys_are_read():
    by_key = read(
        "gemma4",
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        num_hidden_layers=2,
    )
    by_layer = read(
        "gemma4",
        per_layer_config={"1": {"head_dim": 16, "num_key_value_heads": 1}},
        attention_k_eq_v=True,
        num_hidden_layers=2,
    )
    assert by_key == by_layer
    assert by_key.kinds == ("sliding", "full")
    assert by_key.cache_heads == ((2, 8), (1, 16))


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        ("gemma3", {"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_att"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_att"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "transformers does not read it"),
        ("gemma3", {"layer_types": ["full_attention"]}, "names 1 layers of 4"),
        ("gemma3", {"layer_types": ["linear"] * 4}, "layer type 'linear'"),
        ("gemma4", {"enable_moe_block": True}, "lacks num_experts"),
        ("gemma4", {"per_layer_config": {"0": {"head_dim": 4}}}, "per_layer_config"),
        ("gemma4", {"vocab_size": "many"}, "vocab_size is 'many', not a number"),
        ("gemma4", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(family, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(family, **changes)


def test_a_gguf_of_a_gemma_is_refused_by_name(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="gemma3"):
        plan(tmp_path / "m.gguf")
