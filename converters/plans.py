"""What a conversion is before it is carried out: every tensor's way, checked."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from converters.sources import Tensor, TensorFiles
from converters.tables import IDS, Change, source_shape

__all__ = ["DTYPES", "Line", "Plan", "Report", "match"]

DTYPES: Mapping[str, np.dtype] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One tensor's way: its name there, its name here, and what it becomes."""

    name: str
    weight: str
    tensor: Tensor
    change: Change
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """What it takes here."""
        return self.dtype.itemsize * int(np.prod(self.shape))

    def read(self, config: Any) -> np.ndarray:
        """The weight.

        Raises:
          ValueError: its values do not fit the dtype, or its shape the configuration.
        """
        array = self.tensor.read()
        if array.dtype != self.dtype:
            with np.errstate(over="ignore"):
                cast = array.astype(self.dtype)
            if (
                self.dtype == np.float16
                and np.isinf(cast).sum() > np.isinf(array).sum()
            ):
                raise ValueError(f"{self.name} has values beyond the range of float16")
            array = cast
        changed = self.change(array, config)
        if changed.shape != self.shape:
            raise ValueError(
                f"the tensor {self.name} becomes {changed.shape}; the configuration "
                f"says {self.shape}"
            )
        return changed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A conversion that has been checked and can be carried out.

    Attributes:
      kind: "target" or "drafter".
      family: of a target; the method of a drafter.
      config: `ModelConfig` of a target; JSON of a drafter.
      lines: every tensor that is read.
      source: where it comes from, for the checkpoint.
      tokenizer_files: to be copied.
      notices: what the user should know, a sentence each.
    """

    kind: str
    family: str
    config: Any
    lines: tuple[Line, ...]
    source: Mapping[str, Any]
    tokenizer_files: Mapping[str, Path | bytes]
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a conversion wrote."""

    family: str
    tensors: int
    bytes: int
    dtypes: tuple[str, ...]
    notices: tuple[str, ...] = ()


def match(
    source: Path,
    tensors: TensorFiles,
    table: Mapping[str, tuple[str, Change]],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str | None,
    *,
    waived: Iterable[str] = (),
) -> tuple[Line, ...]:
    """The line of every weight.

    Args:
      source: to be named.
      tensors: what it holds.
      table: a tensor's name and its change, by weight.
      shapes: of the weights.
      dtype: of the real numbers; `None`: as stored.
      waived: tensors that may be there and are not read.

    Raises:
      ValueError: a tensor is missing, left over, of another shape or no weight.
    """
    found: list[Line] = []
    for weight, shape in shapes.items():
        name, change = table[weight]
        tensor = tensors.get(name)
        if tensor is None:
            raise ValueError(f"{source}: the tensor {name} is missing")
        wanted = source_shape(shape, change)
        if wanted is not None and tensor.shape != wanted:
            raise ValueError(
                f"{source}: the tensor {name} has shape {tensor.shape}; the "
                f"configuration says {wanted}"
            )
        kept = tensor.dtype
        if change not in IDS:
            if kept not in DTYPES.values() and (dtype is None or kept.kind != "f"):
                raise ValueError(
                    f"{source}: the tensor {name} is {kept}, which is no dtype for "
                    f"weights; {', '.join(DTYPES)} are"
                )
            kept = kept if dtype is None else DTYPES[dtype]
        elif kept.kind not in "iu":
            raise ValueError(
                f"{source}: the tensor {name} is {kept}, and should be integers"
            )
        found.append(
            Line(
                name=name,
                weight=weight,
                tensor=tensor,
                change=change,
                shape=shape,
                dtype=kept,
            )
        )
    used = {line.name for line in found} | set(waived)
    for name in tensors:
        if name not in used:
            raise ValueError(
                f"{source}: the tensor {name} is left over: the configuration has no "
                "place for it"
            )
    return tuple(found)
