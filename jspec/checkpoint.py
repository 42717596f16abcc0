"""jspec's own format: an Orbax checkpoint, one JSON, the tokenizer's files.

jspec.json     {"format": 1, "kind": "target", "family", "dtype", "config", "source"}
weights/       Orbax, one array per weight, named `layers.0.q` and so on
tokenizer.json and whatever else the tokenizer came with, byte for byte
"""

import contextlib
import json
import logging
import math
import os
import secrets
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Sharding, SingleDeviceSharding

from jspec.models.base import ModelConfig, weight_shapes

__all__ = ["is_checkpoint", "load", "read_config", "read_manifest", "save", "staging"]

FORMAT = 1
MANIFEST = "jspec.json"
WEIGHTS = "weights"
CHUNK = 64 * 2**20
"""Bytes of one chunk on disk: what a device that needs a part has to read."""
DTYPES = ("bfloat16", "float16", "float32")

type Placement = Callable[[str, tuple[int, ...]], Sharding | None]


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


def read_config(path: Path) -> ModelConfig:
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
        return ModelConfig.from_json(manifest["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the config in {Path(path) / MANIFEST}: {error}") from None


def save(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, Any],
    *,
    source: Mapping[str, Any],
    tokenizer_files: Mapping[str, Path | bytes],
) -> None:
    """Writes a checkpoint; until it is whole, `path` does not exist.

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
    _compare(
        {name: tuple(array.shape) for name, array in weights.items()},
        weight_shapes(config),
        "the weights to save",
    )
    sizes: Counter[str] = Counter()
    for array in weights.values():
        sizes[str(array.dtype)] += array.nbytes
    manifest = {
        "format": FORMAT,
        "kind": "target",
        "family": config.family,
        "dtype": sizes.most_common(1)[0][0],
        "config": config.to_json(),
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
        tree = _nested(weights)
        chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK), tree)
        with _orbax() as orbax:
            orbax.save(
                (folder / WEIGHTS).absolute(),
                args=ocp.args.PyTreeSave(tree, save_args=chunked),
            )
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def load(
    path: Path,
    *,
    dtype: Any = None,
    sharding: Placement | None = None,
) -> tuple[ModelConfig, dict[str, jax.Array]]:
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
    folder = (path / WEIGHTS).absolute()
    if not folder.is_dir():
        raise ValueError(f"{path} has no directory {WEIGHTS!r}")
    shapes = weight_shapes(config)
    for name in shapes:
        if not (folder / name / ".zarray").is_file():
            raise ValueError(f"{folder}: the weight {name} is missing")
    dtype = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
    home = SingleDeviceSharding(_default_device())

    def restored(name: str, shape: tuple[int, ...]) -> ocp.ArrayRestoreArgs:
        place = None if sharding is None else sharding(name, shape)
        return ocp.ArrayRestoreArgs(
            sharding=home if place is None else place,
            global_shape=shape,
            dtype=dtype,
            strict=True,
        )

    with _orbax() as orbax:
        try:
            described = orbax.metadata(folder).item_metadata
            if described is None:
                raise ValueError("it is no Orbax checkpoint")
            stored = _dotted(described.tree)
            found = {name: tuple(array.shape) for name, array in stored.items()}
        except Exception as error:
            raise ValueError(
                f"{folder} cannot be read: {_first_line(error)}"
            ) from error
        _compare(found, shapes, str(folder))
        _count_chunks(folder, stored)
        wanted = _nested({name: restored(name, s) for name, s in shapes.items()})
        try:
            tree = orbax.restore(
                folder, args=ocp.args.PyTreeRestore(restore_args=wanted)
            )
        except Exception as error:
            raise ValueError(
                f"the weights in {folder} cannot be read: {_first_line(error)}"
            ) from error
    weights = _dotted(tree)
    return config, {name: weights[name] for name in shapes}


@contextlib.contextmanager
def staging(path: Path) -> Generator[Path]:
    """A folder beside `path` that becomes `path` when the block ends well.

    However else the block ends, the folder is removed. What a killed process left
    beside the same `path` is removed as well.

    Raises:
      ValueError: `path` exists and is not an empty directory.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} exists already and is not an empty directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.partial-{socket.gethostname()}-"
    for left in path.parent.glob(f"{_literal(prefix)}*"):
        if not _alive(left.name.removeprefix(prefix).partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    folder = path.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
        folder.rename(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _alive(process: str) -> bool:
    if not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _default_device() -> jax.Device:
    device = jax.config.jax_default_device
    return device if isinstance(device, jax.Device) else jax.devices()[0]


@contextlib.contextmanager
def _orbax() -> Generator[ocp.Checkpointer]:
    """One file per chunk and host arrays taken as they are: no copy of the model.

    Weights hardly compress, and compressing holds several of them twice.
    """
    handlers = ocp.type_handlers
    registry = handlers.create_type_handler_registry(
        (np.ndarray, handlers.NumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, handlers.ArrayHandler()),
    )
    checkpointer = ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(
            use_ocdbt=False, use_compression=False, type_handler_registry=registry
        )
    )
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield checkpointer
    finally:
        log.setLevel(level)
        checkpointer.close()


def _compare(
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    where: str,
) -> None:
    for name, shape in wanted.items():
        if name not in found:
            raise ValueError(f"{where}: the weight {name} is missing")
        if found[name] != shape:
            raise ValueError(
                f"{where}: the weight {name} has shape {found[name]}, not {shape}"
            )
    for name in found:
        if name not in wanted:
            raise ValueError(f"{where}: the weight {name} belongs to no such model")


def _count_chunks(folder: Path, stored: Mapping[str, Any]) -> None:
    """Finds what is missing before a hundred reads fail at once."""
    for name, array in stored.items():
        chunk = array.storage.chunk_shape if array.storage else None
        if not chunk:
            continue
        whole = math.prod(-(-n // c) for n, c in zip(array.shape, chunk, strict=True))
        files = (folder / name).glob("[!.]*")
        if sum(file.stat().st_size > 0 for file in files) < whole:
            raise ValueError(f"{folder}: the weight {name} is incomplete")


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split(".")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            flat |= _dotted(leaf, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = leaf
    return flat


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
