"""How kernels cut a vocabulary into chunks."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from jspec.pallas.lanes import LANES

__all__ = ["Tiles"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a kernel cuts a vocabulary.

    Attributes:
      chunk: ids of one chunk; 16 a thread leave registers for five blocks on a
        multiprocessor.
      stages: chunks on their way from memory; four of bfloat16 are 16 KB a block.
      programs: blocks to aim for: four on each of 132 multiprocessors.
    """

    chunk: int = 2048
    stages: int = 4
    programs: int = 528

    def __post_init__(self) -> None:
        """Refuses chunks that the copy engine cannot fetch at once."""
        if self.chunk % (2 * LANES) or not 0 < self.chunk <= 256 * LANES:
            raise ValueError(
                f"a chunk must be whole {2 * LANES} ids, at most {256 * LANES}, "
                f"not {self.chunk}"
            )

    def chunks(self, vocabulary: int) -> int:
        """Of one row; the last may be partial."""
        return pl.cdiv(vocabulary, self.chunk)

    def stored(self, vocabulary: int) -> int:
        """Entries kept for a row: its chunks, and undefined ones to fill the lanes."""
        return pl.cdiv(self.chunks(vocabulary), LANES) * LANES

    def share(self, rows: int, vocabulary: int) -> int:
        """Chunks of a row that one block visits."""
        chunks = self.chunks(vocabulary)
        return min(chunks, max(1, rows * chunks // self.programs))

    @property
    def shape(self) -> tuple[int, int]:
        """Of a chunk in shared memory."""
        return self.chunk // LANES, LANES

    @property
    def layout(self) -> Any:
        """Of a chunk in registers, the same for every dtype."""
        return plgpu.Layout.WG_STRIDED(self.shape, min(4, self.chunk // LANES))

    def ids(self) -> Array:
        """In a kernel: where each entry of a chunk stands within it."""
        row, lane = (
            plgpu.broadcasted_iota(jnp.int32, self.shape, axis, layout=self.layout)
            for axis in (0, 1)
        )
        return row * LANES + lane
