"""Where tensors come from: safetensors, torch files and GGUF, read one at a time.

No file is mapped or read whole: a source knows every tensor's name, shape and dtype
at once, and reads the bytes of one when asked for it.
"""

import dataclasses
import io
import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "TENSOR_SUFFIXES",
    "Gguf",
    "Tensor",
    "TensorFiles",
    "beside",
    "open_directory",
    "open_file",
]

TENSOR_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
BESIDE = ("mask_embedding.pt",)
"""A single tensor each: a DFlash drafter's embedding of the mask."""
BLOCK = 8 * 2**20
"""Bytes dequantised at a time: what is needed beside the result is a few of these."""
SAFETENSORS = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
TORCH = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of a source: `dtype` as `read` gives it, `stored` as it lies there."""

    shape: tuple[int, ...]
    dtype: np.dtype
    stored: str
    read: Callable[[], np.ndarray]


type TensorFiles = Mapping[str, Tensor]


def open_directory(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face directory, whichever container they are in.

    Raises:
      ValueError: there are none, a shard is missing, or the index and the files
        disagree; the file or tensor is named.
    """
    for name, reader in (
        ("model.safetensors", _safetensors),
        ("pytorch_model.bin", _torch),
    ):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return reader(folder / name)
        if index.is_file():
            return _sharded(folder, index, reader)
    for suffix in TENSOR_SUFFIXES:
        files = [
            file
            for file in folder.glob(f"*{suffix}")
            if not file.name.startswith(("adapter_", "training_args"))
        ]
        if len(files) == 1:
            return open_file(files[0])
    raise ValueError(
        f"{folder} holds no model.safetensors and no pytorch_model.bin, "
        "whole or in shards"
    )


def beside(folder: Path) -> dict[str, Tensor]:
    """The tensors that layouts keep in files of their own, by the files' names."""
    tensors: dict[str, Tensor] = {}
    for name in BESIDE:
        if (folder / name).is_file():
            tensors |= _torch(folder / name)
    return tensors


def open_file(file: Path) -> dict[str, Tensor]:
    """The tensors of one file, safetensors or torch.

    Raises:
      ValueError: it is neither, or is damaged.
    """
    return _safetensors(file) if file.suffix == ".safetensors" else _torch(file)


def _sharded(
    folder: Path, index: Path, reader: Callable[[Path], dict[str, Tensor]]
) -> dict[str, Tensor]:
    try:
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{index} is not an index of shards") from None
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(where.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ValueError(f"{index.name} names the shard {shard}, which is missing")
        for name, tensor in reader(folder / shard).items():
            if where.get(name) != shard:
                raise ValueError(f"{shard} holds {name}, which {index.name} does not")
            tensors[name] = tensor
    for name, shard in where.items():
        if name not in tensors:
            raise ValueError(f"{shard} lacks {name}, which {index.name} promises")
    return tensors


def _read(file: Path, dtype: np.dtype, shape: tuple[int, ...], at: int) -> np.ndarray:
    count = math.prod(shape)
    flat = np.fromfile(file, dtype=np.uint8, count=count * dtype.itemsize, offset=at)
    if flat.size != count * dtype.itemsize:
        raise ValueError(f"{file} ends before its last tensor: it is truncated")
    return flat.view(dtype).reshape(shape)


def _safetensors(file: Path) -> dict[str, Tensor]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{file} is not a safetensors file, or is truncated")
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            raise ValueError(f"{file} is not a safetensors file") from None
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = SAFETENSORS.get(entry["dtype"])
        if dtype is None:
            raise ValueError(
                f"{name} in {file.name} has dtype {entry['dtype']}, which is not read"
            )
        shape = tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if end - start != math.prod(shape) * dtype.itemsize or 8 + length + end > size:
            raise ValueError(f"{name} in {file} does not fit the file: it is truncated")
        tensors[name] = Tensor(
            shape=shape,
            dtype=dtype,
            stored=entry["dtype"],
            read=_later(_read, file, dtype, shape, 8 + length + start),
        )
    return tensors


def _later(function: Callable[..., np.ndarray], *args: Any) -> Callable[[], np.ndarray]:
    return lambda: function(*args)


@dataclasses.dataclass(frozen=True)
class _Storage:
    dtype: np.dtype
    key: str


class _Unpickler(pickle.Unpickler):
    """Rebuilds tensors of a torch file as references; runs none of its code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in TORCH:
            return TORCH[name]
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return lambda storage, offset, shape, stride, *_: (
                storage,
                offset,
                tuple(shape),
                tuple(stride),
            )
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        raise ValueError(f"it holds {module}.{name}, which is not a tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        _, dtype, key, *_ = pid
        return _Storage(dtype, key)


def _torch(file: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(file) as archive:
            (index,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
            state = _Unpickler(io.BytesIO(archive.read(index))).load()
    except zipfile.BadZipFile:
        raise ValueError(
            f"{file} is not a torch file of version 1.6 or later, or is truncated; "
            "save it again with a current torch"
        ) from None
    except (ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"{file} is not a plain state dictionary: {error}") from None
    root = index.removesuffix("data.pkl")
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if isinstance(state, tuple):
        state = {file.stem: state}
    tensors = {}
    for name, value in state.items():
        if not (isinstance(value, tuple) and isinstance(value[0], _Storage)):
            raise ValueError(f"{name} in {file} is not a tensor")
        storage, offset, shape, stride = value
        tensors[name] = Tensor(
            shape=shape,
            dtype=storage.dtype,
            stored=str(storage.dtype),
            read=_later(_torch_read, file, root, storage, offset, shape, stride),
        )
    return tensors


def _torch_read(
    file: Path,
    root: str,
    storage: _Storage,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> np.ndarray:
    with zipfile.ZipFile(file) as archive:
        data = archive.read(f"{root}data/{storage.key}")
    flat = np.frombuffer(data, dtype=storage.dtype)
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if math.prod(shape) and offset + last >= flat.size:
        raise ValueError(f"{file} ends before its last tensor: it is truncated")
    size = storage.dtype.itemsize
    return np.ascontiguousarray(
        np.lib.stride_tricks.as_strided(
            flat[offset:], shape, tuple(s * size for s in stride), writeable=False
        )
    )


class Gguf:
    """A GGUF file: `metadata` by key, `tensors` with shapes in row-major order.

    A quantised tensor reads as float32, dequantised by the `gguf` package.
    """

    def __init__(self, file: Path) -> None:
        try:
            import gguf
        except ImportError:
            raise ValueError(
                "reading GGUF needs the package gguf: pip install 'jspec[convert]'"
            ) from None
        self.file = file
        with file.open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise ValueError(f"{file} is not a GGUF file")
        try:
            reader = gguf.GGUFReader(file)
        except Exception as error:
            line = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{file} cannot be read as GGUF: {line}") from error
        self.metadata: dict[str, Any] = {
            key: field.contents() for key, field in reader.fields.items()
        }
        if self.metadata.get("split.count", 1) > 1:
            raise ValueError(
                f"{file} is one of {self.metadata['split.count']} parts; "
                "merge them with llama-gguf-split first"
            )
        kinds = gguf.GGMLQuantizationType
        plain = {
            kinds.F32: np.dtype(np.float32),
            kinds.F16: np.dtype(np.float16),
            kinds.F64: np.dtype(np.float64),
            kinds.BF16: np.dtype(ml_dtypes.bfloat16),
        }
        self.tensors: dict[str, Tensor] = {}
        self.quantised = False
        for entry in reader.tensors:
            shape = tuple(int(n) for n in reversed(entry.shape))
            kind = entry.tensor_type
            dtype = plain.get(kind)
            at, size = entry.data_offset, entry.n_bytes
            if dtype is not None:
                read = _later(_read, file, dtype, shape, at)
            else:
                self.quantised = True
                rows = entry.data.shape
                read = _later(_dequantise, file, entry.name, kind, rows, shape, at)
            if at + size > file.stat().st_size:
                raise ValueError(f"{entry.name} lies beyond the end of {file}")
            self.tensors[entry.name] = Tensor(
                shape=shape,
                dtype=np.dtype(np.float32) if dtype is None else dtype,
                stored=kind.name,
                read=read,
            )


def _dequantise(
    file: Path,
    name: str,
    kind: Any,
    rows: tuple[int, ...],
    shape: tuple[int, ...],
    at: int,
) -> np.ndarray:
    import gguf

    packed = _read(file, np.dtype(np.uint8), rows, at).reshape(-1, rows[-1])
    out = np.empty((len(packed), shape[-1]), np.float32)
    block = max(1, BLOCK // (4 * shape[-1]))
    try:
        for row in range(0, len(packed), block):
            part = slice(row, row + block)
            out[part] = gguf.quants.dequantize(packed[part], kind)
    except NotImplementedError:
        raise ValueError(
            f"{name} is stored as {kind.name}, which the gguf package cannot dequantise"
        ) from None
    return out.reshape(shape)
