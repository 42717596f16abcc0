"""What was saved by transformers arrives exactly, or is refused by name."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from converters import convert, export, plan
from converters.check import difference
from converters.families import HUGGING_FACE
from converters.tables import lines
from jspec import checkpoint


def bits(array):
    if isinstance(array, torch.Tensor):
        array = array.detach().contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(array).tobytes()


def assert_same_weights(path, model):
    config, weights = checkpoint.load(path)
    state = model.state_dict()
    for weight, (name, change) in lines(HUGGING_FACE[config.family], config).items():
        there = state[name].T if change.__name__ == "transpose" else state[name]
        assert bits(np.asarray(weights[weight])) == bits(there), name


def edit(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v != "drop"}))


def rewrite(folder, change):
    file = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    change(tensors)
    safetensors.numpy.save_file(tensors, file)


def test_every_option_arrives_exactly_and_goes_back_bit_for_bit(case, tmp_path):
    model, folder = case
    report = convert(folder, tmp_path / "here")
    assert_same_weights(tmp_path / "here", model)
    assert report.tensors == len(checkpoint.load(tmp_path / "here")[1])
    export(tmp_path / "here", tmp_path / "back")
    before = (folder / "model.safetensors").read_bytes()
    after = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    before = safetensors.numpy.load(before)
    assert before.keys() == after.keys()
    for name in before:
        assert bits(before[name]) == bits(after[name])
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )


def test_every_option_computes_what_transformers_computes(case, tmp_path):
    _, folder = case
    convert(folder, tmp_path / "here")
    assert difference(tmp_path / "here", folder).worst < 1e-4


def test_a_config_written_anew_is_read_as_the_same_model(case, tmp_path):
    _, folder = case
    convert(folder, tmp_path / "here")
    manifest = json.loads((tmp_path / "here" / "jspec.json").read_text())
    manifest["source"] = {}
    (tmp_path / "here" / "jspec.json").write_text(json.dumps(manifest))
    export(tmp_path / "here", tmp_path / "back")
    convert(tmp_path / "back", tmp_path / "again")
    assert checkpoint.read_config(tmp_path / "again") == checkpoint.read_config(
        tmp_path / "here"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("container", ["safetensors", "bin"])
@pytest.mark.parametrize("shards", ["one", "many"])
def test_every_container_and_dtype(make, tmp_path, dtype, container, shards):
    model = make("qwen2", {"tie_word_embeddings": True}, dtype)
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="8KB" if shards == "many" else "1GB")
    assert (folder / "model.safetensors").exists() == (shards == "one")
    if container == "bin":
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        state = model.state_dict()
        assert "lm_head.weight" in state
        if shards == "one":
            torch.save(state, folder / "pytorch_model.bin")
        else:
            where = {name: f"part-{i % 3}.bin" for i, name in enumerate(state)}
            for shard in set(where.values()):
                part = {n: state[n].clone() for n in state if where[n] == shard}
                torch.save(part, folder / shard)
            (folder / "pytorch_model.bin.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": where})
            )
    report = convert(folder, tmp_path / "here")
    assert report.dtypes == (dtype,)
    assert_same_weights(tmp_path / "here", model)


def test_another_dtype_is_asked_for_by_name(tiny, make, tmp_path):
    convert(tiny, tmp_path / "here", dtype="bfloat16")
    assert_same_weights(tmp_path / "here", make("llama", {}, "bfloat16"))


def test_shards_are_written_with_their_index(tiny, make, tmp_path):
    convert(tiny, tmp_path / "here")
    export(tmp_path / "here", tmp_path / "back", shard=20_000)
    index = tmp_path / "back" / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    assert len(set(where.values())) > 2
    convert(tmp_path / "back", tmp_path / "again")
    assert_same_weights(tmp_path / "again", make("llama", {}))


def test_files_that_are_not_tensors_are_copied_byte_for_byte(tiny, tmp_path):
    content = b'{"eos_token_id": [2, 5], "bos_token_id": 1}\n\n'
    (tiny / "generation_config.json").write_bytes(content)
    (tiny / "tokenizer_config.json").write_bytes(b'{"x":  1}')
    convert(tiny, tmp_path / "here")
    assert (tmp_path / "here" / "generation_config.json").read_bytes() == content
    assert (tmp_path / "here" / "tokenizer_config.json").read_bytes() == b'{"x":  1}'
    assert checkpoint.read_config(tmp_path / "here").eos_token_ids == (2, 5)


def test_old_rotary_frequencies_are_ignored(tiny, make, tmp_path):
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    rewrite(tiny, lambda t: t.update({name: np.zeros(4, np.float32)}))
    convert(tiny, tmp_path / "here")
    assert_same_weights(tmp_path / "here", make("llama", {}))


def test_a_tied_head_that_differs_is_refused(tiny, tmp_path):
    edit(tiny, tie_word_embeddings=True)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from"):
        convert(tiny, tmp_path / "here")


UP = "model.layers.1.mlp.up_proj.weight"
EXTRA = "model.layers.1.mlp.extra.weight"


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda f: rewrite(f, lambda t: t.pop(UP)), f"tensor {UP} is missing"),
        (
            lambda f: rewrite(f, lambda t: t.pop("lm_head.weight")),
            r"tensor lm_head\.weight is missing",
        ),
        (
            lambda f: rewrite(f, lambda t: t.update({EXTRA: t[UP]})),
            f"tensor {EXTRA} is left over",
        ),
        (
            lambda f: rewrite(f, lambda t: t.update({UP: t[UP][:-1].copy()})),
            rf"{UP} has shape \(47, 32\); the configuration says \(48, 32\)",
        ),
        (
            lambda f: rewrite(f, lambda t: t.update({UP: t[UP].astype(np.int8)})),
            f"{UP} is int8",
        ),
        (lambda f: edit(f, num_hidden_layers=1), "layers.1.* is left over"),
        (
            lambda f: edit(f, rope_scaling={"rope_type": "spiral", "factor": 2.0}),
            "rope type 'spiral' in rope_scaling is not supported",
        ),
        (lambda f: edit(f, architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no model.safetensors"),
        (
            lambda f: (f / "model.safetensors").write_bytes(
                (f / "model.safetensors").read_bytes()[:-100]
            ),
            "truncated",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tiny, tmp_path, harm, sentence):
    harm(tiny)
    with pytest.raises(ValueError, match=sentence):
        convert(tiny, tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_missing_shard_is_named(make, tmp_path):
    folder = tmp_path / "model"
    make("llama", {}).save_pretrained(folder, max_shard_size="20KB")
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"{lost.name}, which is missing"):
        plan(folder)


def test_a_torch_file_that_holds_code_is_refused(tiny, tmp_path):
    (tiny / "model.safetensors").unlink()
    torch.save({"a": np.random.default_rng}, tiny / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a plain state dictionary: it holds"):
        convert(tiny, tmp_path / "here")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"speculators_model_type": "dflash2"}, "speculators family 'dflash2'"),
        ({"architectures": ["DFlash2DraftModel"]}, "a DFlash2 drafter"),
    ],
)
def test_a_drafter_is_recognised_and_refused(tiny, tmp_path, changes, what):
    edit(tiny, **changes)
    with pytest.raises(ValueError, match=f"{what}.*not a target model") as caught:
        convert(tiny, tmp_path / "here")
    assert "not supported yet" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("d2t", "EAGLE-3"),
        ("fc.weight", "EAGLE"),
        ("markov_head.weight", "DSpark"),
    ],
)
def test_a_drafter_is_recognised_by_its_tensors(tiny, tmp_path, name, what):
    rewrite(tiny, lambda t: t.update({name: np.zeros((2, 4), np.float32)}))
    with pytest.raises(ValueError, match=f"{what} drafter, not a target model"):
        convert(tiny, tmp_path / "here")


def test_an_adapter_is_recognised(tiny, tmp_path):
    (tiny / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="a LoRA adapter, not a target model"):
        convert(tiny, tmp_path / "here")


def test_an_interrupted_conversion_leaves_nothing(tiny, tmp_path):
    def stop(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tiny, tmp_path / "here", step=stop)
    convert(tiny, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "whole", tmp_path / "here", step=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny", "whole"]


def test_values_beyond_float16_are_refused(tiny, tmp_path):
    rewrite(tiny, lambda t: t.update({UP: t[UP] + 1e6}))
    with pytest.raises(ValueError, match=f"{UP} has values beyond the range"):
        convert(tiny, tmp_path / "here", dtype="float16")
