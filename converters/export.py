"""A jspec checkpoint becomes a Hugging Face directory that transformers loads."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters.configs import from_hugging_face, to_hugging_face
from converters.convert import TOKENIZER_FILES
from converters.drafters import CONVERTERS
from converters.drafters.base import Converter
from converters.families import HUGGING_FACE
from converters.plans import DTYPES, Report
from converters.sources import SAFETENSORS
from converters.tables import Change, lines, same, transpose
from jspec import checkpoint
from jspec.drafters import METHODS
from jspec.models.base import TargetConfig, weight_shapes

__all__ = ["SHARD", "export", "exported"]

SHARD = 5 * 10**9
"""Bytes of tensors in one file, as transformers splits them."""
NAMES = {dtype: name for name, dtype in SAFETENSORS.items()}

type Entry = tuple[str, np.ndarray]


def export(
    source: Path,
    target: Path,
    *,
    dtype: str | None = None,
    shard: int = SHARD,
    step: Callable[[int, int], None] | None = None,
) -> Report:
    """Writes the Hugging Face form of the checkpoint `source`, whole or not at all.

    Args:
      source: a jspec checkpoint.
      target: a directory that does not exist yet, or is empty.
      dtype: of all tensors; `None`: as stored, bit for bit.
      shard: the most bytes of tensors in one file.
      step: told after each tensor how many bytes of how many are written.

    Raises:
      ValueError: the checkpoint cannot be read, or not be said in that form.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(
            f"the dtype {dtype!r} is not known; known are {', '.join(DTYPES)}"
        )
    manifest = checkpoint.read_manifest(source)
    place = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    load = {"dtype": dtype, "sharding": lambda name, shape: place}
    config: Any
    if manifest["kind"] == "drafter":
        method, config, weights = checkpoint.load_drafter(source, **load)
        written, table = _converter(method).export(config, manifest["source"])
        copied = {}
    else:
        config, weights = checkpoint.load(source, **load)
        written = _config_json(config, manifest, dtype)
        table = lines(HUGGING_FACE[config.family], config)
        copied = _files(source, written)
    shards: list[list[str]] = [[]]
    size = 0
    for weight in weights:
        if shards[-1] and size + weights[weight].nbytes > shard:
            shards.append([])
            size = 0
        shards[-1].append(weight)
        size += weights[weight].nbytes
    total = sum(array.nbytes for array in weights.values())
    done = 0

    def entries(names: list[str]) -> Iterator[Entry]:
        nonlocal done
        for weight in names:
            name, change = table[weight]
            yield name, change(np.asarray(weights[weight]), config)
            done += weights[weight].nbytes
            if step is not None:
                step(done, total)

    with checkpoint.staging(target) as folder:
        (folder / "config.json").write_text(_text(written), encoding="utf-8")
        for name, content in copied.items():
            (folder / name).write_bytes(content)
        where: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            file = (
                "model.safetensors"
                if len(shards) == 1
                else f"model-{number:05}-of-{len(shards):05}.safetensors"
            )
            header = {
                table[weight][0]: _described(weights[weight], table[weight][1], config)
                for weight in names
            }
            _write(folder / file, header, entries(names))
            where |= dict.fromkeys(header, file)
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": where}
            file = folder / "model.safetensors.index.json"
            file.write_text(_text(index), encoding="utf-8")
    return Report(
        family=manifest["family"],
        tensors=len(weights),
        bytes=total,
        dtypes=tuple(sorted({str(array.dtype) for array in weights.values()})),
    )


def _converter(method: str) -> Converter:
    if method not in CONVERTERS:
        raise ValueError(
            f"drafters of method {method!r} have no other form to be written in"
        )
    return CONVERTERS[method]


def exported(source: Path, dtype: str | None = None) -> list[tuple[str, str, str, str]]:
    """What `export` would write: weight, tensor, shape here and dtype of each."""
    manifest = checkpoint.read_manifest(source)
    stored = dtype or manifest["dtype"]
    if manifest["kind"] == "drafter":
        method, config = checkpoint.read_drafter(source)
        _, table = _converter(method).export(config, manifest["source"])
        drafter: Any = METHODS[method]
        shapes = drafter.configure(config).weight_shapes()
    else:
        target = checkpoint.read_config(source)
        table = lines(HUGGING_FACE[target.family], target)
        shapes = weight_shapes(target)
    return [
        (weight, table[weight][0], str(shape), stored)
        for weight, shape in shapes.items()
    ]


def _files(source: Path, written: Mapping[str, Any]) -> dict[str, bytes]:
    """The tokenizer's files, and what ends a text if no file says it."""
    files = {
        name: (source / name).read_bytes()
        for name in TOKENIZER_FILES
        if (source / name).is_file()
    }
    ends = ("bos_token_id", "eos_token_id", "pad_token_id")
    known = {key: written[key] for key in ends if written.get(key) is not None}
    if known:
        files.setdefault("generation_config.json", _text(known).encode())
    return files


def _described(
    array: Any, change: Change, config: Any
) -> tuple[np.dtype, tuple[int, ...]]:
    """Dtype and shape of a changed array; the large ones are not changed for it."""
    if change in (same, transpose):
        shape = tuple(array.shape)
        return np.dtype(array.dtype), shape[::-1] if change is transpose else shape
    changed = change(np.asarray(array), config)
    return changed.dtype, changed.shape


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _config_json(
    config: TargetConfig, manifest: Mapping[str, Any], dtype: str | None
) -> dict[str, Any]:
    """The config.json it came with, as long as that still says the same model."""
    source = manifest.get("source", {})
    stored = dtype or manifest["dtype"]
    original = source.get("config")
    if isinstance(original, Mapping):
        try:
            again = from_hugging_face(
                original, config.family, token_count=config.token_count
            )
        except ValueError:
            again = None
        if again is not None and _arithmetic(again) == _arithmetic(config):
            kept = dict(original)
            if dtype is not None:
                for key in {"torch_dtype", "dtype"} & kept.keys() or {"torch_dtype"}:
                    kept[key] = dtype
            return kept
    return to_hugging_face(config, stored)


def _arithmetic(config: TargetConfig) -> dict[str, Any]:
    """Everything but the ids that begin and end a text."""
    fields = config.to_json()
    return {key: value for key, value in fields.items() if "token_id" not in key}


def _write(
    file: Path,
    header: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    entries: Iterator[Entry],
) -> None:
    """A safetensors file, one tensor in memory at a time."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in header.items():
        end = at + dtype.itemsize * math.prod(shape)
        described[name] = {
            "dtype": NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _, array in entries:
            stream.write(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
