"""EAGLE's and EAGLE-3's layouts become jspec drafters, and come back."""

import json

import numpy as np
import pytest

from converters import convert, export, plan
from jspec import checkpoint
from jspec.drafters import METHODS
from jspec.testing import tiny_target
from tests.converters.drafter_files import V, eagle, eagle3, numbers, read, write
from tests.drafters.eagles import multi_eagle, weights_of

NESTED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
LAYOUTS = {
    "eagle": eagle(),
    "eagle, no bias, the target's embedding": eagle(bias=False, embedding=False),
    "eagle, two layers": eagle(layers=2),
    "eagle3, SafeAILab": eagle3(),
    "eagle3, SafeAILab, the whole vocabulary": eagle3(vd=V),
    "eagle3, SpecForge": eagle3("specforge", fc_norm=True, **NESTED),
    "eagle3, SpecForge, no final norm": eagle3("specforge", norm_output=False),
    "eagle3, speculators": eagle3(
        "speculators",
        norm_before_fc=True,
        norm_before_residual=True,
        norm_output=True,
        eagle_aux_hidden_state_layer_ids=[2, 4, 6],
    ),
}


def converted(folder, case, changes=None, arrays=None):
    config, shapes = case
    source = write(
        folder / "source", config | (changes or {}), arrays or numbers(shapes)
    )
    convert(source, folder / "jspec")
    return checkpoint.load_drafter(folder / "jspec")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_comes_back_as_it_was(tmp_path, name):
    config, shapes = LAYOUTS[name]
    method, settings, weights = converted(tmp_path, LAYOUTS[name])
    assert method == name.split(",")[0]
    drafter = METHODS[method].configure(settings)
    assert {n: a.shape for n, a in weights.items()} == drafter.weight_shapes()
    export(tmp_path / "jspec", tmp_path / "back")
    again, arrays = read(tmp_path / "back")
    assert again == config
    right = numbers(shapes)
    right.pop("t2d", None)
    if settings.get("final_norm") is False:
        del right["norm.weight"]
    assert arrays.keys() == right.keys()
    for tensor, array in right.items():
        assert arrays[tensor].dtype == array.dtype
        np.testing.assert_array_equal(arrays[tensor], array)


@pytest.mark.parametrize("name", ["eagle", "eagle3, SpecForge"])
def test_a_head_of_our_own_is_written_in_a_layout_that_reads_back(tmp_path, name):
    method, settings, weights = converted(tmp_path, LAYOUTS[name])
    checkpoint.save_drafter(tmp_path / "own", method, settings, weights, source={})
    export(tmp_path / "own", tmp_path / "written")
    convert(tmp_path / "written", tmp_path / "again")
    other, config, arrays = checkpoint.load_drafter(tmp_path / "again")
    assert (other, config) == (method, settings)
    for weight, array in weights.items():
        np.testing.assert_array_equal(arrays[weight], array)


def test_matrices_are_transposed_and_offsets_become_ids(tmp_path):
    arrays = numbers(LAYOUTS["eagle3, SafeAILab"][1])
    _, config, weights = converted(tmp_path, LAYOUTS["eagle3, SafeAILab"])
    np.testing.assert_array_equal(weights["fc"], arrays["fc.weight"].T)
    np.testing.assert_array_equal(weights["ids"], np.flatnonzero(arrays["t2d"]))
    assert config["taps"] is None


def test_r57_taps_mean_what_their_key_says(tmp_path):
    _, nested, _ = converted(tmp_path / "a", LAYOUTS["eagle3, SpecForge"])
    _, top, _ = converted(tmp_path / "b", LAYOUTS["eagle3, speculators"])
    assert nested["taps"] == top["taps"] == [2, 4, 6]
    source = checkpoint.read_manifest(tmp_path / "a" / "jspec")["source"]
    assert "whose outputs are read" in source["conventions"]["taps"]


@pytest.mark.parametrize(
    ("layout", "flag", "field"),
    [
        ("speculators", "norm_before_residual", "normed_residual"),
        ("speculators", "norm_output", "normed_feed"),
        ("speculators", "norm_before_fc", "fuse_norm"),
        ("speculators", "fc_norm", "tap_norms"),
        ("specforge", "fc_norm", "tap_norms"),
    ],
)
def test_r58_every_norm_flag_is_read(tmp_path, layout, flag, field):
    _, config, _ = converted(tmp_path, eagle3(layout, **{flag: True}))
    assert config[field] is True


def test_r58_the_same_key_means_another_norm_to_specforge(tmp_path):
    _, config, _ = converted(tmp_path, eagle3("specforge", norm_output=True))
    assert (config["normed_feed"], config["final_norm"]) == (False, True)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": None},
    ],
)
def test_r59_rope_is_read_wherever_it_stands(tmp_path, spelling):
    _, config, _ = converted(tmp_path, eagle(), spelling)
    assert config["sizes"]["rope"]["theta"] == 5e5


def test_r59_a_head_keeps_its_own_rope_scaling(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    _, config, _ = converted(tmp_path, eagle(), {"rope_scaling": scaling})
    assert config["sizes"]["rope"]["kind"] == "llama3"


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("file", ["safetensors", "pytorch_model.bin", "head.pt"])
def test_r60_prefixes_and_containers_do_not_matter(tmp_path, prefix, file):
    config, shapes = LAYOUTS["eagle3, SafeAILab"]
    arrays = numbers(shapes)
    renamed = {
        (prefix if name not in ("d2t", "t2d", "lm_head.weight") else "") + name: array
        for name, array in arrays.items()
    }
    source = write(tmp_path / "source", config, renamed, file)
    convert(source, tmp_path / "jspec")
    _, _, weights = checkpoint.load_drafter(tmp_path / "jspec")
    np.testing.assert_array_equal(weights["head"], arrays["lm_head.weight"].T)


def test_a_single_file_is_read_beside_its_config(tmp_path):
    config, shapes = eagle()
    source = write(tmp_path / "s", config, numbers(shapes), "head.pt")
    assert plan(source / "head.pt").family == "eagle"


def test_r64_the_heads_own_window_is_kept(tmp_path):
    _, config, _ = converted(tmp_path, eagle(), {"sliding_window": 4})
    assert config["sizes"]["windows"] == [4]


def lacks(name):
    return lambda arrays: arrays.pop(name)


def has(name, *shape):
    return lambda arrays: arrays.update({name: np.zeros(shape, np.float32)})


def shifted(by):
    def change(arrays):
        arrays["d2t"] = arrays["d2t"] + by

    return change


REFUSED = {
    "missing map": (eagle3(), lacks("d2t"), {}, "d2t is missing"),
    "map out of range": (eagle3(), shifted(V), {}, "d2t maps draft id 0 to"),
    "map that falls": (
        eagle3(),
        lambda a: a.update(d2t=a["d2t"][::-1].copy()),
        {},
        "d2t maps draft id",
    ),
    "map of another length": (
        eagle3(),
        lambda a: (a.update(d2t=a["d2t"][:-1]), a.pop("t2d")),
        {},
        r"d2t has shape \(39,\).* \(40,\)",
    ),
    "t2d of other tokens": (
        eagle3(),
        lambda a: a.update(t2d=~a["t2d"]),
        {},
        "t2d marks other tokens",
    ),
    "missing head": (eagle3(), lacks("lm_head.weight"), {}, "lm_head.weight is missi"),
    "narrow first projection": (
        eagle3(),
        has("fc.weight", 32, 70),
        {},
        r"fc.weight has shape \(32, 70\)",
    ),
    "narrow attention": (
        eagle3(),
        has("midlayer.self_attn.q_proj.weight", 32, 32),
        {},
        r"q_proj.weight has shape \(32, 32\)",
    ),
    "left-over tap norm": (
        eagle3(),
        has("fc_norm.0.weight", 32),
        {},
        "fc_norm.0.weight is left over",
    ),
    "left-over final norm": (
        eagle(),
        has("norm.weight", 32),
        {},
        "norm.weight is l",
    ),
    "norm that the flag asks for": (
        eagle3("speculators"),
        lambda a: None,
        {"norm_before_fc": True},
        "input_norm.weight is missing",
    ),
    "missing bias": (eagle(), lacks("fc.bias"), {}, "fc.bias is missing"),
    "no taps": (
        eagle3(),
        lambda a: None,
        {"eagle_config": {"use_aux_hidden_state": False}},
        "use_aux_hidden_state = False",
    ),
    "five taps, none named": (
        eagle3(),
        has("fc.weight", 32, 160),
        {},
        "there are 5 taps",
    ),
    "another kind of layer": (
        eagle3(),
        lambda a: None,
        {"model_type": "gpt2"},
        "model type 'gpt2'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named(tmp_path, case):
    (config, shapes), harm, changes, why = REFUSED[case]
    arrays = numbers(shapes)
    harm(arrays)
    source = write(tmp_path / "source", config | changes, arrays)
    with pytest.raises(ValueError, match=why) as caught:
        convert(source, tmp_path / "jspec")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "jspec").exists()


@pytest.mark.parametrize(
    ("method", "case", "why"),
    [
        ("eagle", eagle3(), r"fc.weight has shape \(32, 96\).* \(32, 64\)"),
        ("eagle3", eagle(), "midlayer|hidden_norm|there are 2 taps"),
    ],
)
def test_r56_one_is_not_read_as_the_other(tmp_path, method, case, why):
    config, shapes = case
    source = write(tmp_path / "source", config, numbers(shapes))
    with pytest.raises(ValueError, match=why):
        plan(source, family=method)


def test_a_key_that_nobody_reads_is_reported(tmp_path):
    config, shapes = eagle3()
    source = write(tmp_path / "source", config | {"novelty": 1}, numbers(shapes))
    found = plan(source).notices
    assert any("'novelty', which is not read" in notice for notice in found)
    assert any("embedding: the target's; head: its own" in notice for notice in found)


def test_r60_a_conversion_is_no_larger_than_its_source(tmp_path):
    config, shapes = eagle(embedding=False)
    source = write(tmp_path / "source", config, numbers(shapes))
    report = convert(source, tmp_path / "jspec")
    assert report.bytes <= (source / "model.safetensors").stat().st_size


def test_a_checkpoint_of_an_unknown_method_is_refused(tmp_path):
    converted(tmp_path, eagle())
    file = tmp_path / "jspec" / "jspec.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"family": "eagle9"}))
    with pytest.raises(ValueError, match="'eagle9' is no method with a drafter"):
        checkpoint.read_drafter(tmp_path / "jspec")
    with pytest.raises(ValueError, match="kind 'drafter', not a target"):
        checkpoint.read_config(tmp_path / "jspec")


def test_one_module_per_step_is_the_same_method_and_has_no_other_form(tmp_path):
    drafter = multi_eagle()
    checkpoint.save_drafter(
        tmp_path / "jspec",
        "eagle",
        drafter.config.to_json(),
        weights_of(drafter),
        source={},
    )
    with pytest.raises(ValueError, match="one module per step have no other form"):
        export(tmp_path / "jspec", tmp_path / "back")
    method, config, weights = checkpoint.load_drafter(tmp_path / "jspec")
    again = METHODS[method].configure(config)
    assert (method, again) == ("eagle", drafter)
    again.fit(tiny_target()).check(weights, tiny_target())
    with pytest.raises(ValueError, match="tree_width does not go with"):
        METHODS[method].configure(config, tree_width=2)


def test_r55_a_head_is_found_borrowed_or_missed_as_the_file_says(tmp_path):
    config, shapes = eagle3("speculators", vd=V)
    inner = config["transformer_layer_config"] | {"tie_word_embeddings": True}
    tied = {"transformer_layer_config": inner}
    whole = numbers(shapes)
    headless = {n: a for n, a in whole.items() if n != "lm_head.weight"}
    _, both, weights = converted(tmp_path / "both", (config, shapes), tied)
    assert (both["own_head"], both["tied_head"]) == (True, False)
    np.testing.assert_array_equal(weights["head"], whole["lm_head.weight"].T)
    _, alone, weights = converted(
        tmp_path / "tied", (config, shapes), tied, arrays=headless
    )
    assert (alone["own_head"], alone["tied_head"]) == (False, True)
    assert "head" not in weights
    with pytest.raises(ValueError, match=r"lm_head.weight is missing"):
        converted(tmp_path / "none", (config, shapes), arrays=headless)
