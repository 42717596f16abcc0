"""A table from (batch, context) to K: 3- and 5-tuples, checked, looked up densely.

vLLM's `num_speculative_tokens_per_batch_size` with the context axis of the RFC
"Context-length-aware speculative token scheduling". Executables depend on the K values
that appear, the palette, and not on how many cells there are.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from jspec.control.base import Counts, natural

__all__ = ["Cell", "Schedule"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One entry, every bound inclusive.

    Attributes:
      context_high: `None` in a 3-tuple, which is for all contexts.
      entry: as it was written.
    """

    batch_low: int
    batch_high: int
    context_low: int
    context_high: int | None
    k: int
    entry: tuple[int, ...]

    @property
    def batches(self) -> tuple[int, int]:
        """Its band."""
        return self.batch_low, self.batch_high

    @property
    def shown(self) -> str:
        """As it was written, for messages."""
        return str(list(self.entry))


class Schedule:
    """K from batch and context.

    A batch between two bands has the K of the band before, one above the last band has
    the K of the last. Contexts have no gaps to carry over: each band covers them all.
    """

    def __init__(
        self,
        starts: Sequence[int],
        table: Sequence[Sequence[int]],
        *,
        max_batch: int,
        max_model_len: int,
    ) -> None:
        """Use `parse`.

        Args:
          starts: where each column of contexts begins; the first is 0.
          table: K of each batch, from 0 (never asked for) to `max_batch`, in columns.
          max_batch: what the engine decodes at most.
          max_model_len: the longest context.
        """
        self.max_batch = max_batch
        self.max_model_len = max_model_len
        self._starts = tuple(starts)
        self._table = tuple(tuple(row) for row in table)

    @classmethod
    def parse(
        cls, entries: Any, *, max_batch: int, max_model_len: int, max_k: int
    ) -> "Schedule":
        """Reads `(batch_low, batch_high, K)` and `(…, context_low, context_high, K)`.

        Bounds are inclusive; what lies beyond `max_batch` or `max_model_len` is checked
        and then cut off. Whatever breaks a rule is told in a sentence with its entries.
        """
        natural(max_batch, "max_batch", 1)
        natural(max_model_len, "max_model_len", 1)
        natural(max_k, "max_k")
        if not isinstance(entries, list | tuple):
            raise ValueError(
                f"a schedule is a list of entries, not {type(entries).__name__}"
            )
        if not entries:
            raise ValueError("the schedule is empty; leave it out for a constant K")
        cells = [_cell(entry, max_k) for entry in entries]
        bands = _bands(cells, max_model_len)
        starts = sorted(
            {
                cell.context_low
                for band in bands
                for cell in band
                if cell.context_low <= max_model_len
            }
        )
        table: list[tuple[int, ...]] = []
        carried: tuple[int, ...] = (0,) * len(starts)
        ahead = 0
        for batch in range(max_batch + 1):
            if ahead < len(bands) and batch == bands[ahead][0].batch_low:
                carried = _row(bands[ahead], starts)
                ahead += 1
            table.append(carried)
        return cls(starts, table, max_batch=max_batch, max_model_len=max_model_len)

    @property
    def palette(self) -> tuple[int, ...]:
        """Every K that some batch and context have, ascending."""
        return tuple(sorted({k for row in self._table[1:] for k in row}))

    def tier(self, batch: int, context: int = 0) -> tuple[int, int]:
        """The first batch and the first context with the same entries as these."""
        batch = max(1, min(batch, self.max_batch))
        row = self._table[batch]
        while batch > 1 and self._table[batch - 1] is row:
            batch -= 1
        return batch, self._starts[self._column(context)]

    def k(self, batch: int, context: int = 0) -> int:
        """Drafted tokens of a round over `batch` rows."""
        row = self._table[max(1, min(batch, self.max_batch))]
        return row[self._column(context)]

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """A table learns nothing."""

    def grid(self) -> list[tuple[int, int, int, int, int]]:
        """The whole table as 5-tuples over a rectangular grid, from batch 1 on."""
        runs = []
        for row, group in itertools.groupby(
            range(1, self.max_batch + 1), key=lambda batch: self._table[batch]
        ):
            batches = list(group)
            runs.append((batches[0], batches[-1], row))
        ends = [*(start - 1 for start in self._starts[1:]), self.max_model_len]
        return [
            (low, high, start, end, k)
            for low, high, row in runs
            for start, end, k in zip(self._starts, ends, row, strict=True)
        ]

    def entries(self) -> list[tuple[int, ...]]:
        """The shortest entries that parse back to this table."""
        shortest: list[tuple[int, ...]] = []
        for (low, high), cells in itertools.groupby(
            self.grid(), key=lambda cell: cell[:2]
        ):
            merged: list[list[int]] = []
            for _, _, start, end, k in cells:
                if merged and merged[-1][2] == k:
                    merged[-1][1] = end
                else:
                    merged.append([start, end, k])
            if len(merged) == 1:
                shortest.append((low, high, merged[0][2]))
            else:
                shortest += [(low, high, *part) for part in merged]
        return shortest

    def _column(self, context: int) -> int:
        return max(0, bisect.bisect_right(self._starts, context) - 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and (
            (self.max_batch, self.max_model_len, self.entries())
            == (other.max_batch, other.max_model_len, other.entries())
        )

    def __hash__(self) -> int:
        return hash((self.max_batch, self.max_model_len, tuple(self.entries())))

    def __repr__(self) -> str:
        return f"Schedule({self.entries()})"


def _cell(entry: Any, max_k: int) -> Cell:
    if not isinstance(entry, list | tuple) or len(entry) not in (3, 5):
        raise ValueError(
            f"entry {entry!r} is neither (batch_low, batch_high, K) nor "
            "(batch_low, batch_high, context_low, context_high, K)"
        )
    shown = f"entry {list(entry)}"
    low, high = (
        natural(bound, f"{shown}: batch bound", 1) for bound in (entry[0], entry[1])
    )
    if low > high:
        raise ValueError(f"{shown} begins at batch {low}, after its end, {high}")
    start, end = 0, None
    if len(entry) == 5:
        start, end = (
            natural(bound, f"{shown}: context bound") for bound in (entry[2], entry[3])
        )
        if start > end:
            raise ValueError(f"{shown} begins at context {start}, after its end, {end}")
    k = natural(entry[-1], f"{shown}: K")
    if k > max_k:
        raise ValueError(f"{shown}: K {k} exceeds num_speculative_tokens, {max_k}")
    return Cell(
        batch_low=low,
        batch_high=high,
        context_low=start,
        context_high=end,
        k=k,
        entry=tuple(int(field) for field in entry),
    )


def _bands(cells: list[Cell], max_model_len: int) -> list[list[Cell]]:
    """The cells of each band by context, the bands by batch; refused: what overlaps."""
    ordered = sorted(cells, key=lambda cell: (*cell.batches, cell.context_low))
    first = ordered[0]
    if first.batch_low != 1:
        raise ValueError(
            f"entry {first.shown} is the first, and begins at batch "
            f"{first.batch_low} instead of 1"
        )
    bands = [list(band) for _, band in itertools.groupby(ordered, lambda c: c.batches)]
    for (one, *_), (other, *_) in itertools.pairwise(bands):
        if other.batch_low <= one.batch_high:
            raise ValueError(
                f"entries {one.shown} and {other.shown} both have batch "
                f"{other.batch_low}, but their batch bounds differ"
            )
    for band in bands:
        _covered(band, max_model_len)
    return bands


def _covered(band: list[Cell], max_model_len: int) -> None:
    """Refuses a band whose contexts leave a hole or overlap."""
    low, high = band[0].batches
    whole = [cell for cell in band if cell.context_high is None]
    if whole and len(band) > 1:
        other = next(cell for cell in band if cell is not whole[0])
        raise ValueError(
            f"entries {whole[0].shown} and {other.shown} overlap: the first has every "
            f"context of batches {low} to {high}"
        )
    if whole:
        return
    if band[0].context_low != 0:
        raise ValueError(
            f"entry {band[0].shown} begins at context {band[0].context_low}; contexts "
            f"below have no K at batches {low} to {high}"
        )
    for one, other in itertools.pairwise(band):
        end = one.context_high or 0
        if other.context_low <= end:
            raise ValueError(
                f"entries {one.shown} and {other.shown} overlap at context "
                f"{other.context_low}"
            )
        if other.context_low > end + 1:
            raise ValueError(
                f"entries {one.shown} and {other.shown} leave contexts {end + 1} to "
                f"{other.context_low - 1} without a K"
            )
    end = band[-1].context_high or 0
    if end < max_model_len:
        raise ValueError(
            f"entry {band[-1].shown} is the last of batches {low} to {high}, and ends "
            f"at context {end}; max_model_len is {max_model_len}"
        )


def _row(band: list[Cell], starts: list[int]) -> tuple[int, ...]:
    lows = [cell.context_low for cell in band]
    return tuple(band[bisect.bisect_right(lows, start) - 1].k for start in starts)
