"""A checkpoint is whole or absent, and gives back exactly what was saved."""

import json
import os
import shutil
import socket

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jspec import checkpoint
from jspec.models.base import ModelConfig, Rope, weight_shapes

CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=24,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_key_heads=2,
    head_dim=4,
    norm_eps=1e-6,
    rope=Rope(theta=5e5),
    max_position=64,
    tie_embeddings=True,
    qk_norm=True,
    windows=(None, 4),
    eos_token_ids=(2, 3),
    token_count=20,
)


def weights(dtype=np.float32):
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape in weight_shapes(CONFIG).items()
    }


def save(path, arrays=None, **files):
    checkpoint.save(
        path,
        CONFIG,
        weights() if arrays is None else arrays,
        source={"format": "test"},
        tokenizer_files=files,
    )
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_come_back_bit_for_bit(tmp_path, dtype):
    save(tmp_path / "c", weights(dtype))
    config, loaded = checkpoint.load(tmp_path / "c")
    assert config == CONFIG
    assert list(loaded) == list(weight_shapes(CONFIG))
    for name, array in weights(dtype).items():
        assert loaded[name].dtype == dtype
        assert np.asarray(loaded[name]).tobytes() == array.tobytes()


def test_device_arrays_are_saved_like_host_arrays(tmp_path):
    save(tmp_path / "c", {n: jnp.asarray(a) for n, a in weights().items()})
    _, loaded = checkpoint.load(tmp_path / "c")
    for name, array in weights().items():
        assert np.array_equal(loaded[name], array)


def test_another_dtype_is_an_exact_cast(tmp_path):
    save(tmp_path / "c", weights(ml_dtypes.bfloat16))
    _, loaded = checkpoint.load(tmp_path / "c", dtype="float32")
    for name, array in weights(ml_dtypes.bfloat16).items():
        assert loaded[name].dtype == jnp.float32
        assert np.array_equal(loaded[name], array.astype(np.float32))


def test_each_weight_goes_where_its_sharding_says(tmp_path):
    save(tmp_path / "c")
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    asked = []

    def place(name, shape):
        asked.append((name, shape))
        if name != "embed":
            return None
        return NamedSharding(mesh, PartitionSpec("model", None))

    _, loaded = checkpoint.load(tmp_path / "c", sharding=place)
    assert dict(asked) == weight_shapes(CONFIG)
    assert isinstance(loaded["embed"].sharding, NamedSharding)
    assert isinstance(loaded["norm"].sharding, SingleDeviceSharding)


def test_the_manifest_states_what_it_is(tmp_path):
    path = save(tmp_path / "c", weights(ml_dtypes.bfloat16), **{"a/b.json": b"{}"})
    manifest = json.loads((path / "jspec.json").read_text())
    assert manifest["format"] == 1
    assert manifest["kind"] == "target"
    assert manifest["family"] == "qwen3"
    assert manifest["dtype"] == "bfloat16"
    assert manifest["source"] == {"format": "test"}
    assert (path / "a" / "b.json").read_bytes() == b"{}"
    assert checkpoint.is_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("layers.1.q"), r"layers\.1\.q is missing"),
        (lambda w: w.update(extra=w["norm"]), "extra belongs to no such model"),
        (lambda w: w.update(norm=w["embed"]), r"norm has shape \(24, 8\), not \(8,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, change, sentence):
    arrays = weights()
    change(arrays)
    with pytest.raises(ValueError, match=sentence):
        save(tmp_path / "c", arrays)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused(tmp_path):
    path = save(tmp_path / "c")
    with pytest.raises(ValueError, match="exists already"):
        save(path)
    assert checkpoint.load(path)[0] == CONFIG


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "c", **{"tokenizer.json": tmp_path / "absent"})
    with pytest.raises(KeyboardInterrupt), checkpoint.staging(tmp_path / "c") as folder:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    dead = tmp_path / f".c.partial-{socket.gethostname()}-999999999-00"
    mine = tmp_path / f".c.partial-{socket.gethostname()}-{os.getpid()}-00"
    for folder in (dead, mine):
        folder.mkdir()
    save(tmp_path / "c")
    assert not dead.exists()
    assert mine.exists()


def _drop_manifest(path):
    (path / "jspec.json").unlink()


def _break_manifest(path):
    (path / "jspec.json").write_text("{")


def _edit(path, **changes):
    manifest = json.loads((path / "jspec.json").read_text())
    (path / "jspec.json").write_text(json.dumps(manifest | changes))


def _drop_chunks(path):
    for file in (path / "weights" / "layers.0.q").iterdir():
        if not file.name.startswith(".z"):
            file.unlink()


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (_drop_manifest, "no jspec.json"),
        (_break_manifest, "cannot be read"),
        (lambda p: _edit(p, format=7), "has format 7; this version of jspec reads 1"),
        (lambda p: _edit(p, kind="drafter"), "kind 'drafter', not a target"),
        (
            lambda p: _edit(p, config=CONFIG.to_json() | {"scale": 2}),
            "unknown configuration key 'scale'",
        ),
        (
            lambda p: _edit(p, config=CONFIG.to_json() | {"vocab_size": 25}),
            r"embed has shape \(24, 8\), not \(25, 8\)",
        ),
        (lambda p: shutil.rmtree(p / "weights"), "no directory 'weights'"),
        (lambda p: (p / "weights" / "_METADATA").unlink(), "weights"),
        (
            lambda p: shutil.rmtree(p / "weights" / "layers.0.q"),
            r"layers\.0\.q is missing",
        ),
        (_drop_chunks, r"layers\.0\.q is incomplete"),
    ],
)
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, harm, sentence):
    path = save(tmp_path / "c")
    harm(path)
    with pytest.raises(ValueError, match=sentence) as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value)
