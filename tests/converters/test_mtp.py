"""MTP modules of every family become drafters; their targets are converted alone."""

import numpy as np
import pytest

from converters import convert, export, plan
from converters.drafters.mtp_families import FAMILIES
from jspec import checkpoint
from jspec.drafters import METHODS
from tests.converters.drafter_files import A, D, H, V, numbers, read, write
from tests.converters.mtp_files import (
    LT,
    checkpoint_of,
    module,
    only_modules,
    speculators,
    target,
)

CASES = {family: checkpoint_of(family) for family in FAMILIES}
CASES |= {
    "deepseek_v3, two modules": checkpoint_of("deepseek_v3", 2),
    "step3p5, three modules": checkpoint_of("step3p5", 3),
    "mimo_v2, two modules": checkpoint_of("mimo_v2", 2),
    "speculators": speculators(),
    "speculators, of Qwen3-Next": speculators("qwen3_next"),
}
FLAGS = {
    "deepseek_v3": {"zeroed_first"},
    "glm4_moe": {"zeroed_first"},
    "step3p5": {"unit_norms", "own_head", "-normed_features", "-normed_feed"},
    "mimo": {"hidden_first", "zeroed_first"},
    "mimo_v2": set(),
    "qwen3_next": {"unit_norms"},
    "ernie4_5": {"zeroed_first", "-normed_feed", "-final_norm"},
    "speculators": set(),
    "speculators, of Qwen3-Next": {"unit_norms"},
}
BOOLS = {
    **dict.fromkeys(("hidden_first", "zeroed_first", "unit_norms"), False),
    **dict.fromkeys(("own_embedding", "own_head"), False),
    **dict.fromkeys(("normed_features", "normed_feed", "final_norm"), True),
}


def converted(folder, case, arrays=None):
    config, shapes = case
    source = write(folder / "source", config, arrays or numbers(shapes))
    convert(source, folder / "jspec", family="mtp")
    return checkpoint.load_drafter(folder / "jspec")


@pytest.mark.parametrize("name", CASES)
def test_modules_come_back_as_they_were(tmp_path, name):
    config, shapes = CASES[name]
    method, settings, weights = converted(tmp_path, CASES[name])
    assert method == "mtp"
    drafter = METHODS[method].configure(settings)
    assert {n: a.shape for n, a in weights.items()} == drafter.weight_shapes()
    export(tmp_path / "jspec", tmp_path / "back")
    again, arrays = read(tmp_path / "back")
    assert again == config
    right = numbers(shapes)
    assert arrays.keys() == only_modules(shapes).keys()
    for tensor, array in arrays.items():
        np.testing.assert_array_equal(array, right[tensor])
    assert plan(tmp_path / "back").family == "mtp"


@pytest.mark.parametrize("name", FLAGS)
def test_a_family_says_what_its_modules_compute(tmp_path, name):
    _, settings, _ = converted(tmp_path, CASES[name])
    told = BOOLS | {
        flag.removeprefix("-"): not flag.startswith("-") for flag in FLAGS[name]
    }
    assert {flag: settings[flag] for flag in BOOLS} == told


def test_the_layer_is_what_its_tensors_and_its_familys_keys_say(tmp_path):
    sizes = {
        name: converted(tmp_path / name, CASES[name])[1]["sizes"]
        for name in ("mimo", "mimo_v2", "qwen3_next", "glm4_moe")
    }
    assert sizes["mimo"]["attention_bias"] and not sizes["mimo"]["qk_norm"]
    assert sizes["mimo_v2"]["windows"] == [6]
    assert sizes["mimo_v2"]["rope"]["theta"] == 500.0
    assert sizes["qwen3_next"]["output_gate"] and sizes["qwen3_next"]["qk_norm"]
    assert (sizes["qwen3_next"]["rotary_dim"], sizes["glm4_moe"]["rotary_dim"]) == (
        2,
        4,
    )


def test_matrices_are_transposed_and_modules_are_in_order(tmp_path):
    case = CASES["step3p5, three modules"]
    arrays = numbers(case[1])
    _, _, weights = converted(tmp_path, case)
    for k in range(3):
        prefix = f"model.layers.{LT + k}."
        np.testing.assert_array_equal(
            weights[f"modules.{k}.fc"], arrays[f"{prefix}eh_proj.weight"].T
        )
        np.testing.assert_array_equal(
            weights[f"modules.{k}.head"], arrays[f"{prefix}shared_head.head.weight"].T
        )


def test_steps_raw_names_are_read(tmp_path):
    config, shapes = CASES["step3p5"]
    arrays = numbers(shapes)
    raw = {
        name.replace(f"layers.{LT}.", f"layers.{LT}.transformer.").replace(
            "shared_head.head", "shared_head.output"
        ): array
        for name, array in arrays.items()
    }
    _, _, weights = converted(tmp_path, (config, shapes), raw)
    head = arrays[f"model.layers.{LT}.shared_head.head.weight"]
    np.testing.assert_array_equal(weights["modules.0.head"], head.T)


@pytest.mark.parametrize("name", ["deepseek_v3", "mimo", "qwen3_next"])
def test_a_target_is_converted_and_its_modules_are_left_with_a_word(tmp_path, name):
    config, shapes = CASES[name]
    qwen2 = {"architectures": ["Qwen2ForCausalLM"]} if name != "mimo" else {}
    source = write(tmp_path / "source", config | qwen2, numbers(shapes))
    report = convert(source, tmp_path / "jspec")
    assert report.family == "qwen2"
    assert report.tensors == len(target())
    left = f"{len(shapes) - len(target())} tensors of MTP modules were left"
    assert any(left in notice for notice in report.notices)
    export(tmp_path / "jspec", tmp_path / "back")
    assert read(tmp_path / "back")[0]["architectures"] == ["Qwen2ForCausalLM"]


def test_a_target_that_says_it_has_modules_may_come_without_them(tmp_path):
    config, _ = CASES["mimo"]
    said = config | {"text_config": None}
    source = write(tmp_path / "source", said, numbers(target()))
    assert plan(source).kind == "target"
    with pytest.raises(ValueError, match="no tensors of MTP modules"):
        plan(source, family="mtp")


@pytest.mark.parametrize("part", ["head", "embed"])
def test_a_copy_of_the_targets_table_is_not_stored_and_another_one_is(tmp_path, part):
    config, shapes = CASES["deepseek_v3"]
    arrays = numbers(shapes)
    theirs, ours = {
        "head": ("lm_head.weight", "shared_head.head.weight"),
        "embed": ("model.embed_tokens.weight", "embed_tokens.weight"),
    }[part]
    ours = f"model.layers.{LT}.{ours}"
    copied = arrays | {ours: arrays[theirs].copy()}
    _, settings, weights = converted(tmp_path / "same", (config, shapes), copied)
    assert not settings["own_head"] and not settings["own_embedding"]
    assert f"modules.0.{part}" not in weights
    other = arrays | {ours: arrays[theirs] + 1}
    _, _, weights = converted(tmp_path / "other", (config, shapes), other)
    assert weights[f"modules.0.{part}"].shape == ((H, V) if part == "head" else (V, H))


@pytest.mark.parametrize("name", ["deepseek_v3", "mimo_v2, two modules", "qwen3_next"])
def test_modules_of_our_own_are_written_in_a_layout_that_reads_back(tmp_path, name):
    method, settings, weights = converted(tmp_path, CASES[name])
    checkpoint.save_drafter(tmp_path / "own", method, settings, weights, source={})
    export(tmp_path / "own", tmp_path / "written")
    convert(tmp_path / "written", tmp_path / "again")
    other, config, arrays = checkpoint.load_drafter(tmp_path / "again")
    assert (other, config) == (method, settings)
    for weight, array in weights.items():
        np.testing.assert_array_equal(arrays[weight], array)


def lacks(name):
    return lambda arrays: arrays.pop(name)


def has(name, *shape):
    return lambda arrays: arrays.update({name: np.zeros(shape, np.float32)})


def nothing(arrays):
    return arrays


P = f"model.layers.{LT}."
REFUSED = {
    "missing projection": (
        "mimo",
        lacks("model.mtp_layers.0.input_proj.weight"),
        {},
        "model.mtp_layers.0.input_proj.weight is missing",
    ),
    "narrow projection": (
        "mimo",
        has("model.mtp_layers.0.input_proj.weight", H, H),
        {},
        r"model.mtp_layers.0.input_proj.weight has shape \(32, 32\)",
    ),
    "missing head of a module": (
        "step3p5, three modules",
        lacks(f"model.layers.{LT + 1}.shared_head.head.weight"),
        {},
        f"model.layers.{LT + 1}.shared_head.head.weight is missing",
    ),
    "left-over norm": (
        "ernie4_5",
        has("model.mtp_final_norm.0.weight", H),
        {},
        "model.mtp_final_norm.0.weight is left over",
    ),
    "module beyond those said": (
        "mimo",
        lambda a: a.update(numbers(module("mimo", 1))),
        {},
        "model.mtp_layers.1.* is left over",
    ),
    "module said and not there": (
        "mimo",
        nothing,
        {"num_nextn_predict_layers": 2},
        "model.mtp_layers.1.* is missing",
    ),
    "experts": (
        "qwen3_next",
        has("mtp.layers.0.mlp.experts.0.up_proj.weight", 4, H),
        {},
        "mtp.layers.0.mlp.experts.0.up_proj.weight is part of a mixture of experts",
    ),
    "latent attention": (
        "deepseek_v3",
        has(f"{P}self_attn.kv_a_proj_with_mqa.weight", 8, H),
        {},
        "kv_a_proj_with_mqa.weight is part of latent attention",
    ),
    "linear attention": (
        "qwen3_next",
        has("mtp.layers.0.linear_attn.A_log", 8),
        {},
        "mtp.layers.0.linear_attn.A_log is part of linear attention",
    ),
    "fused projections": (
        "mimo_v2",
        has("model.mtp.layers.0.self_attn.qkv_proj.weight", 64, H),
        {},
        "self_attn.qkv_proj.weight is part of fused queries",
    ),
    "a gate for each head": (
        "step3p5",
        has(f"{P}self_attn.g_proj.weight", A, H),
        {},
        "self_attn.g_proj.weight is part of a gate for each head",
    ),
    "scaled values": (
        "mimo_v2",
        nothing,
        {"attention_value_scale": 0.7},
        "attention_value_scale = 0.7 changes",
    ),
    "narrow values": (
        "mimo_v2",
        has("model.mtp.layers.0.self_attn.v_proj.weight", D, H),
        {},
        r"v_proj.weight has shape \(8, 32\)",
    ),
    "layers behind one projection": (
        "qwen3_next",
        nothing,
        {"num_nextn_predict_layers": 2},
        "behind one projection",
    ),
    "another model": ("mimo", nothing, {"model_type": "novel"}, "model type 'novel'"),
    "another layer in speculators' form": (
        "speculators",
        nothing,
        {"transformer_layer_config": {"model_type": "gpt2"}},
        "model type 'gpt2'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named(tmp_path, case):
    name, harm, changes, why = REFUSED[case]
    config, shapes = CASES[name]
    arrays = numbers(shapes)
    harm(arrays)
    source = write(tmp_path / "source", config | changes, arrays)
    with pytest.raises(ValueError, match=why) as caught:
        convert(source, tmp_path / "jspec", family="mtp")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "jspec").exists()


def test_a_target_that_cannot_be_run_is_refused_by_its_architecture(tmp_path):
    config, shapes = CASES["deepseek_v3"]
    named = config | {"architectures": ["DeepseekV3ForCausalLM"]}
    source = write(tmp_path / "source", named, numbers(shapes))
    with pytest.raises(ValueError, match="DeepseekV3ForCausalLM is not supported"):
        convert(source, tmp_path / "jspec")
