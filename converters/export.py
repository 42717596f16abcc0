"""A jspec checkpoint becomes a Hugging Face directory that transformers loads."""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from converters.config import from_hugging_face, to_hugging_face
from converters.convert import DTYPES, TOKENIZER_FILES, Report
from converters.families import HUGGING_FACE
from converters.sources import SAFETENSORS
from converters.tables import lines
from jspec import checkpoint
from jspec.models.base import ModelConfig

__all__ = ["SHARD", "export"]

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
      source: a jspec checkpoint of a target.
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
    config, weights = checkpoint.load(
        source, dtype=dtype, sharding=lambda name, shape: place
    )
    written = _config_json(config, manifest, dtype)
    table = lines(HUGGING_FACE[config.family], config)
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
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if not (folder / "generation_config.json").is_file():
            ends = {
                key: written.get(key)
                for key in ("bos_token_id", "eos_token_id", "pad_token_id")
            }
            known = {key: value for key, value in ends.items() if value is not None}
            if known:
                file = folder / "generation_config.json"
                file.write_text(_text(known), encoding="utf-8")
        where: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            file = (
                "model.safetensors"
                if len(shards) == 1
                else f"model-{number:05}-of-{len(shards):05}.safetensors"
            )
            header = {
                table[weight][0]: (
                    np.dtype(weights[weight].dtype),
                    tuple(reversed(weights[weight].shape))
                    if table[weight][1].__name__ == "transpose"
                    else tuple(weights[weight].shape),
                )
                for weight in names
            }
            _write(folder / file, header, entries(names))
            where |= dict.fromkeys(header, file)
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": where}
            file = folder / "model.safetensors.index.json"
            file.write_text(_text(index), encoding="utf-8")
    return Report(
        family=config.family,
        tensors=len(weights),
        bytes=total,
        dtypes=tuple(sorted({str(array.dtype) for array in weights.values()})),
    )


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _config_json(
    config: ModelConfig, manifest: Mapping[str, Any], dtype: str | None
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


def _arithmetic(config: ModelConfig) -> dict[str, Any]:
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
