"""Named arrays on disk: an Orbax folder, written whole or not at all."""

import contextlib
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
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Sharding, SingleDeviceSharding

__all__ = [
    "Placement",
    "compare",
    "main_dtype",
    "read",
    "staging",
    "write",
    "write_file",
]

CHUNK = 64 * 2**20
"""Bytes of one chunk on disk: what a device that needs a part has to read."""

type Placement = Callable[[str, tuple[int, ...]], Sharding | None]


def write(folder: Path, weights: Mapping[str, Any]) -> None:
    """Writes arrays by dotted name; host arrays from where they lie, uncopied."""
    tree = _nested(weights)
    chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK), tree)
    with _orbax() as orbax:
        orbax.save(folder.absolute(), args=ocp.args.PyTreeSave(tree, save_args=chunked))
    # It says where the weights were written, and they are moved from there.
    (folder / "commit_success.txt").unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; one that is there stays until then."""
    draft = path.with_suffix(".partial")
    draft.write_bytes(content)
    os.replace(draft, path)


def read(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: Any = None,
    sharding: Placement | None = None,
) -> dict[str, jax.Array]:
    """Reads the arrays that `write` wrote.

    Args:
      folder: where they are.
      shapes: exactly what it must hold.
      dtype: what real numbers become while they are read; `None`: as they are.
        Integers stay integers.
      sharding: where an array of this name and shape goes; `None`: to the default
        device. Each device reads only its part.

    Raises:
      ValueError: an array is missing, left over, misshapen or damaged; it is named.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        raise ValueError(f"{folder.parent} has no directory {folder.name!r}")
    for name in shapes:
        if not (folder / name / ".zarray").is_file():
            raise ValueError(f"{folder}: the weight {name} is missing")
    dtype = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
    home = SingleDeviceSharding(_default_device())

    def restored(
        name: str, shape: tuple[int, ...], stored: Any
    ) -> ocp.ArrayRestoreArgs:
        place = None if sharding is None else sharding(name, shape)
        return ocp.ArrayRestoreArgs(
            sharding=home if place is None else place,
            global_shape=shape,
            dtype=dtype if jnp.issubdtype(stored, jnp.floating) else None,
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
        compare(found, shapes, str(folder))
        _count_chunks(folder, stored)
        wanted = _nested(
            {name: restored(name, s, stored[name].dtype) for name, s in shapes.items()}
        )
        try:
            tree = orbax.restore(
                folder, args=ocp.args.PyTreeRestore(restore_args=wanted)
            )
        except Exception as error:
            raise ValueError(
                f"the weights in {folder} cannot be read: {_first_line(error)}"
            ) from error
    weights = _dotted(tree)
    return {name: weights[name] for name in shapes}


def main_dtype(weights: Mapping[str, Any]) -> str:
    """The dtype of most bytes among the real numbers."""
    sizes: Counter[str] = Counter()
    for array in weights.values():
        if jnp.issubdtype(array.dtype, jnp.floating):
            sizes[str(array.dtype)] += array.nbytes
    return sizes.most_common(1)[0][0]


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


def compare(
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    where: str,
) -> None:
    """Raises `ValueError` unless shapes by name are those wanted."""
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
