"""Medusa's two layouts and IBM's speculators become jspec drafters, and come back."""

import numpy as np
import pytest

from converters import convert, export
from jspec import checkpoint
from jspec.drafters import METHODS
from tests.converters.drafter_files import H, V, numbers, read, write

INNER, STEPS = 24, 3


def medusa(prefix=""):
    shapes = {}
    for h in range(2):
        shapes |= {f"{prefix}{h}.0.linear.weight": (H, H)}
        shapes |= {f"{prefix}{h}.0.linear.bias": (H,), f"{prefix}{h}.1.weight": (V, H)}
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1}
    return config | {"base_model_name_or_path": "a/b"}, shapes


def of_vllm(**changes):
    rows = changes.get("truncated_vocab_size", V)
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": H,
        "vocab_size": V,
        "num_heads": 2,
        "num_hidden_layers": 1,
        "truncated_vocab_size": rows,
    } | changes
    shapes = {f"blocks.{h}.layers.0.weight": (H, H) for h in range(2)}
    if config.get("medusa_fc_bias"):
        shapes |= {f"blocks.{h}.layers.0.bias": (H,) for h in range(2)}
    for h in range(1 if config.get("original_lm_head") else 2):
        shapes[f"lm_heads.{h}.weight"] = (rows, H)
    return config, shapes


def speculator(tied=False, prefix=""):
    shapes = {}
    for i in range(STEPS):
        if not tied or i == 0:
            shapes[f"{prefix}emb.{i}.weight"] = (V, INNER)
            shapes[f"{prefix}head.{i}.weight"] = (V, INNER)
            shapes[f"{prefix}ln.{i}.weight"] = (INNER,)
            shapes[f"{prefix}ln.{i}.bias"] = (INNER,)
        if not tied or i < 2:
            shapes[f"{prefix}proj.{i}.weight"] = (INNER, INNER if i else H)
    config = {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "vocab_size": V,
        "emb_dim": H,
        "inner_dim": INNER,
        "n_predict": STEPS,
        "tie_weights": tied,
        "scale_input": tied,
    }
    return config, shapes


LAYOUTS = {
    "medusa": medusa(),
    "medusa, prefixed": medusa("medusa_head."),
    "medusa, vLLM": of_vllm(medusa_fc_bias=True, logit_scale=0.5),
    "medusa, vLLM, one head": of_vllm(original_lm_head=True),
    "medusa, vLLM, smaller": of_vllm(truncated_vocab_size=40),
    "mlp_speculator": speculator(prefix="speculator."),
    "mlp_speculator, tied": speculator(tied=True),
}


def arrays_of(case):
    config, shapes = LAYOUTS[case]
    arrays = numbers(shapes)
    rows = config.get("truncated_vocab_size", V)
    if rows != V:
        arrays["token_map"] = np.random.default_rng(0).permutation(V)[:rows]
    return arrays


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_layout_comes_back_as_it_was(tmp_path, case):
    config, arrays = LAYOUTS[case][0], arrays_of(case)
    source = write(tmp_path / "source", config, arrays, "heads.pt")
    convert(source, tmp_path / "jspec")
    method, settings, weights = checkpoint.load_drafter(tmp_path / "jspec")
    assert method == case.split(",")[0]
    shapes = METHODS[method].configure(settings).weight_shapes()
    assert {name: a.shape for name, a in weights.items()} == shapes
    export(tmp_path / "jspec", tmp_path / "back")
    again, found = read(tmp_path / "back")
    assert again == config
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_r60_the_original_layout_is_vllms_with_other_names(tmp_path):
    config, shapes = medusa()
    arrays = numbers(shapes)
    names = {"0.0.linear": "blocks.0.layers.0", "1.0.linear": "blocks.1.layers.0"}
    names |= {"0.1.weight": "lm_heads.0.weight", "1.1.weight": "lm_heads.1.weight"}
    other = {}
    for name, array in arrays.items():
        for old, new in names.items():
            if name.startswith(old):
                other[name.replace(old, new)] = array
    convert(write(tmp_path / "a", config, arrays), tmp_path / "1")
    there = of_vllm(medusa_fc_bias=True)[0]
    convert(write(tmp_path / "b", there, other), tmp_path / "2")
    one, two = (checkpoint.load_drafter(tmp_path / name) for name in ("1", "2"))
    assert one[1] == two[1]
    for name, array in one[2].items():
        np.testing.assert_array_equal(array, two[2][name])


def test_repeated_tensors_of_a_tied_speculator_are_read_once(tmp_path):
    config, shapes = speculator(tied=True)
    arrays = numbers(shapes)
    for i in (1, 2):
        arrays[f"head.{i}.weight"] = arrays["head.0.weight"]
    convert(write(tmp_path / "a", config, arrays), tmp_path / "1")
    arrays["head.2.weight"] = arrays["head.2.weight"] + 1
    with pytest.raises(ValueError, match=r"head.2.weight differs from head.0.weight"):
        convert(write(tmp_path / "b", config, arrays), tmp_path / "2")


@pytest.mark.parametrize(
    ("case", "harm", "changes", "why"),
    [
        ("medusa", lambda a: a.pop("1.1.weight"), {}, "1.1.weight is missing"),
        ("medusa", lambda a: a.pop("0.1.weight"), {}, "0.1.weight is missing"),
        ("medusa", lambda a: None, {"medusa_num_heads": 1}, "left over"),
        ("medusa, vLLM, smaller", lambda a: a.pop("token_map"), {}, "token_map is mis"),
        (
            "medusa, vLLM, smaller",
            lambda a: a.update(token_map=a["token_map"] + V),
            {},
            "token_map must name 40 different tokens below 64",
        ),
        ("mlp_speculator", lambda a: None, {"n_predict": None}, "n_predict is None"),
        ("mlp_speculator", lambda a: None, {"n_predict": 4}, "3.weight is missing"),
        ("mlp_speculator", lambda a: None, {"inner_dim": 16}, "has shape"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, case, harm, changes, why):
    arrays = arrays_of(case)
    harm(arrays)
    source = write(tmp_path / "source", LAYOUTS[case][0] | changes, arrays)
    with pytest.raises(ValueError, match=why):
        convert(source, tmp_path / "jspec")
