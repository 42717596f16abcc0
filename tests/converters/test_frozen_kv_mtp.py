"""Gemma 4's assistants become jspec drafters, come back, and are refused by name."""

import copy
import json

import numpy as np
import pytest

from converters import convert, export
from jspec import checkpoint
from jspec.drafters import METHODS
from jspec.models.base import Rope
from tests.converters.drafter_files import numbers, read, write

H, HB, I, A, V = 24, 32, 40, 4, 64
TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
WIDTHS = {"sliding_attention": 16, "full_attention": 32}
TEXT = {
    "model_type": "gemma4_text",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": I,
    "num_hidden_layers": 3,
    "num_kv_shared_layers": 3,
    "num_attention_heads": A,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "per_layer_config": {"2": {"head_dim": 32, "num_key_value_heads": 1}},
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "layer_types": TYPES,
    "sliding_window": 8,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
CONFIG = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": HB,
    "text_config": TEXT,
    "tie_word_embeddings": True,
}
ORDERED = {
    "use_ordered_embeddings": True,
    "num_centroids": 16,
    "centroid_intermediate_top_k": 5,
}
EMBED, ORDER = "model.embed_tokens.weight", "masked_embedding.token_ordering"


def arrays_of(**changes):
    shapes = {
        "pre_projection.weight": (H, 2 * HB),
        "post_projection.weight": (HB, H),
        EMBED: (V, H),
        "model.norm.weight": (H,),
    }
    for l, kind in enumerate(TYPES):
        d = WIDTHS[kind]
        layer = {
            "self_attn.q_proj.weight": (A * d, H),
            "self_attn.o_proj.weight": (H, A * d),
            "self_attn.q_norm.weight": (d,),
            "mlp.gate_proj.weight": (I, H),
            "mlp.up_proj.weight": (I, H),
            "mlp.down_proj.weight": (H, I),
            "layer_scalar": (1,),
        }
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            layer[f"{name}_layernorm.weight"] = (H,)
        shapes |= {f"model.layers.{l}.{name}": shape for name, shape in layer.items()}
    if changes.get("use_ordered_embeddings"):
        shapes["masked_embedding.centroids.weight"] = (16, H)
    arrays = numbers(shapes)
    if changes.get("use_ordered_embeddings"):
        arrays[ORDER] = np.random.default_rng(0).permutation(V)
    return arrays


def changed(**text):
    config = copy.deepcopy(CONFIG)
    config["text_config"] |= text
    return config


@pytest.mark.parametrize("ordered", [{}, ORDERED], ids=["one table", "centroids"])
def test_an_assistant_comes_back_as_it_was(tmp_path, ordered):
    arrays = arrays_of(**ordered)
    source = write(tmp_path / "source", CONFIG | ordered, arrays)
    convert(source, tmp_path / "jspec")
    method, settings, weights = checkpoint.load_drafter(tmp_path / "jspec")
    assert method == "frozen_kv_mtp"
    drafter = METHODS[method].configure(settings)
    assert {name: a.shape for name, a in weights.items()} == drafter.weight_shapes()
    sliding, full = drafter.config.kinds
    assert (sliding.head_dim, sliding.window, full.window) == (16, 8, None)
    assert full.rope == Rope(kind="proportional", theta=1e6, fraction=0.25)
    export(tmp_path / "jspec", tmp_path / "back")
    again, found = read(tmp_path / "back")
    assert again == CONFIG | ordered
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_r62_every_spelling_of_the_configuration_is_the_same_assistant(tmp_path):
    sparse = {"num_kv_shared_layers", "rope_parameters", "rms_norm_eps", "layer_types"}
    short = {key: value for key, value in TEXT.items() if key not in sparse}
    short |= {"layer_types": [*TYPES[:2], "sliding_attention"]}
    spellings = {
        "as it is": CONFIG,
        "defaults left out": CONFIG | {"text_config": short},
        "promoted": changed(num_kv_shared_layers=0),
        "global_head_dim": changed(global_head_dim=32),
        "unified": CONFIG | {"model_type": "gemma4_unified_assistant"},
        "without a model type": {k: v for k, v in CONFIG.items() if k != "model_type"},
    }
    del spellings["global_head_dim"]["text_config"]["per_layer_config"]
    found = {}
    for name, config in spellings.items():
        source = write(tmp_path / name, config, arrays_of())
        convert(source, tmp_path / f"{name}, read")
        method, settings = checkpoint.read_drafter(tmp_path / f"{name}, read")
        found[name] = method, json.dumps(settings, sort_keys=True)
    assert len(set(found.values())) == 1, found


def test_a_head_beside_its_embedding_is_read_once(tmp_path):
    arrays = arrays_of()
    arrays["lm_head.weight"] = arrays[EMBED]
    convert(write(tmp_path / "a", CONFIG, arrays), tmp_path / "1")
    arrays["lm_head.weight"] = arrays[EMBED] + 1
    with pytest.raises(ValueError, match=rf"lm_head.weight differs from {EMBED}"):
        convert(write(tmp_path / "b", CONFIG, arrays), tmp_path / "2")


FIRST = "model.layers.0."


@pytest.mark.parametrize(
    ("harm", "config", "why"),
    [
        (
            lambda a: a.pop("post_projection.weight"),
            CONFIG,
            "post_projection.weight",
        ),
        (
            lambda a: a.update({f"{FIRST}self_attn.k_proj.weight": a[EMBED]}),
            CONFIG,
            r"layers.0.self_attn.k_proj.weight is left over",
        ),
        (
            lambda a: a.update({f"{FIRST}self_attn.v_proj.weight": a[EMBED]}),
            CONFIG,
            r"layers.0.self_attn.v_proj.weight is left over",
        ),
        (lambda a: a.pop(f"{FIRST}layer_scalar"), CONFIG, "layer_scalar is missing"),
        (
            None,
            CONFIG | {"backbone_hidden_size": 16},
            "pre_projection.weight has",
        ),
        (None, changed(per_layer_config={}), "layers.2.self_attn.q_proj.weight has sh"),
        (
            None,
            changed(per_layer_config={"0": {"head_dim": 8}}),
            "per_layer_config gives sliding_attention layers the head widths",
        ),
        (None, CONFIG | ORDERED, f"{ORDER} is missing"),
        (
            lambda a: a.update({ORDER: np.zeros(V, np.int64)}),
            CONFIG | ORDERED,
            f"{ORDER} must name each of the 64 tokens once",
        ),
        (None, CONFIG | ORDERED | {"num_centroids": 15}, "cannot share 64 tokens"),
        (None, changed(num_kv_shared_layers=1), "num_kv_shared_layers = 1 leaves"),
        (None, changed(enable_moe_block=True), "enable_moe_block = True is not supp"),
        (None, changed(hidden_size_per_layer_input=8), "hidden_size_per_layer_input"),
        (None, changed(hidden_activation="silu"), "hidden_activation = 'silu'"),
        (None, CONFIG | {"tie_word_embeddings": False}, "tie_word_embeddings"),
        (None, changed(layer_types=["full_attention"]), "layer_types must name 3"),
        (None, CONFIG | {"text_config": None}, "lacks text_config"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, harm, config, why):
    arrays = arrays_of(**({} if ORDER in why and harm is None else config))
    if harm is not None:
        harm(arrays)
    with pytest.raises(ValueError, match=why):
        convert(write(tmp_path / "source", config, arrays), tmp_path / "jspec")


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_r62_an_assistant_is_no_drafter_of_another_method(tmp_path, method):
    source = write(tmp_path / "source", CONFIG, arrays_of())
    with pytest.raises(ValueError, match="model type 'gemma4_assistant' are not supp"):
        convert(source, tmp_path / "jspec", family=method)


def test_an_assistant_without_its_config_json_is_not_written_back(tmp_path):
    convert(write(tmp_path / "source", CONFIG, arrays_of()), tmp_path / "jspec")
    _, settings, weights = checkpoint.load_drafter(tmp_path / "jspec")
    checkpoint.save_drafter(
        tmp_path / "own", "frozen_kv_mtp", settings, weights, source={}
    )
    with pytest.raises(ValueError, match="came with no config"):
        export(tmp_path / "own", tmp_path / "back")
