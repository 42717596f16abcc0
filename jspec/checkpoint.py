"""jspec's own format: an Orbax checkpoint, one JSON, the tokenizer's files.

jspec.json     {"format": 1, "kind", "family", "dtype", "config", "source"}
weights/       Orbax, one array per weight, named `layers.0.q` and so on
tokenizer.json and whatever else a target's tokenizer came with, byte for byte

`kind` is "target" or "drafter"; the family of a drafter is its method.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jspec.drafters import METHODS
from jspec.models import TargetConfig, config_from_json, weight_shapes
from jspec.storage import Placement, compare, main_dtype, read, staging, write

__all__ = [
    "WEIGHTS",
    "is_checkpoint",
    "load",
    "load_drafter",
    "read_config",
    "read_drafter",
    "read_manifest",
    "save",
    "save_drafter",
    "staging",
]

FORMAT = 1
MANIFEST = "jspec.json"
WEIGHTS = "weights"


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a directory in this format."""
    return (path / MANIFEST).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """What `jspec.json` says, checked as far as every reader relies on it.

    Raises:
      ValueError: there is none, or it is not one that this version reads.
    """
    file = Path(path) / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{path} is not a jspec checkpoint: it has no {MANIFEST}"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise ValueError(
            f"{file} has format {found!r}; this version of jspec reads {FORMAT}"
        )
    for key in ("kind", "family", "dtype", "config"):
        if key not in manifest:
            raise ValueError(f"{file} lacks the key {key!r}")
    return manifest


def read_config(path: Path) -> TargetConfig:
    """The configuration of the target in `path`.

    Raises:
      ValueError: `path` holds no target that this version reads.
    """
    manifest = read_manifest(path)
    if manifest["kind"] != "target":
        raise ValueError(
            f"{path} holds a checkpoint of kind {manifest['kind']!r}, not a target"
        )
    try:
        return config_from_json(manifest["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the config in {Path(path) / MANIFEST}: {error}") from None


def save(
    path: Path,
    config: TargetConfig,
    weights: Mapping[str, Any],
    *,
    source: Mapping[str, Any],
    tokenizer_files: Mapping[str, Path | bytes],
) -> None:
    """Writes a target's checkpoint; until it is whole, `path` does not exist.

    Host arrays are written from where they lie, without a second copy.

    Args:
      path: a directory that does not exist yet, or is empty.
      config: of the model.
      weights: numpy or JAX arrays, by dotted name.
      source: where the weights come from and the conventions they had there.
      tokenizer_files: by relative name: a file to copy, or its bytes.

    Raises:
      ValueError: the weights are not those of `config`, or `path` is taken.
    """
    _save(
        path,
        weights,
        weight_shapes(config),
        {"kind": "target", "family": config.family, "config": config.to_json()},
        source,
        tokenizer_files,
    )


def load(
    path: Path,
    *,
    dtype: Any = None,
    sharding: Placement | None = None,
) -> tuple[TargetConfig, dict[str, jax.Array]]:
    """Reads a target's configuration and its weights, by dotted name.

    Args:
      path: a directory that `save` wrote.
      dtype: what the weights become while they are read; `None`: as they are.
      sharding: where a weight of this name and shape goes; `None`: to the default
        device. Each device reads only its part.

    Raises:
      ValueError: a file or a weight is missing, left over, misshapen or damaged.
    """
    path = Path(path)
    config = read_config(path)
    shapes = weight_shapes(config)
    return config, read(path / WEIGHTS, shapes, dtype=dtype, sharding=sharding)


def read_drafter(path: Path) -> tuple[str, dict[str, Any]]:
    """The method of the drafter in `path`, and its configuration.

    Raises:
      ValueError: `path` holds no drafter that this version reads.
    """
    manifest = read_manifest(path)
    if manifest["kind"] != "drafter":
        raise ValueError(
            f"{path} holds a checkpoint of kind {manifest['kind']!r}, not a drafter"
        )
    method, config = manifest["family"], manifest["config"]
    try:
        _shapes(method, config)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the config in {Path(path) / MANIFEST}: {error}") from None
    return method, config


def save_drafter(
    path: Path,
    method: str,
    config: Mapping[str, Any],
    weights: Mapping[str, Any],
    *,
    source: Mapping[str, Any],
) -> None:
    """Writes a drafter's checkpoint; until it is whole, `path` does not exist.

    Args:
      path: a directory that does not exist yet, or is empty.
      method: whose drafter it is.
      config: what the method's `configure` takes, as JSON.
      weights: numpy or JAX arrays, by dotted name.
      source: where the weights come from and the conventions they had there.

    Raises:
      ValueError: the weights are not those of `config`, or `path` is taken.
    """
    about = {"kind": "drafter", "family": method, "config": dict(config)}
    _save(path, weights, _shapes(method, config), about, source, {})


def load_drafter(
    path: Path,
    *,
    dtype: Any = None,
    sharding: Placement | None = None,
) -> tuple[str, dict[str, Any], dict[str, jax.Array]]:
    """Reads a drafter's method, configuration and weights; as `load`.

    Integers among the weights, such as ids, keep their dtype.
    """
    path = Path(path)
    method, config = read_drafter(path)
    shapes = _shapes(method, config)
    weights = read(path / WEIGHTS, shapes, dtype=dtype, sharding=sharding)
    return method, config, weights


def _shapes(method: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    if not hasattr(METHODS.get(method), "configure"):
        raise ValueError(f"{method!r} is no method with a drafter to load")
    trained: Any = METHODS[method]
    return trained.configure(config).weight_shapes()


def _save(
    path: Path,
    weights: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    about: Mapping[str, Any],
    source: Mapping[str, Any],
    tokenizer_files: Mapping[str, Path | bytes],
) -> None:
    found = {name: tuple(array.shape) for name, array in weights.items()}
    compare(found, shapes, "the weights to save")
    manifest = {
        "format": FORMAT,
        "kind": about["kind"],
        "family": about["family"],
        "dtype": main_dtype(weights),
        "config": about["config"],
        "source": dict(source),
    }
    with staging(Path(path)) as folder:
        for name, content in tokenizer_files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            else:
                shutil.copyfile(content, file)
        write(folder / WEIGHTS, weights)
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
