"""Rounds that choose how many drafts their pass holds: what each was measured to take.

A budget's round is timed as a whole: drafting, a pass of so many tokens in its packed
layout, and the verdict, whose width is K whatever is admitted. None of it is read off
another size.
"""

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jspec.control.costs import CostTable, between
from jspec.control.samples import Sample

__all__ = ["Passes", "spread"]


class Passes:
    """Milliseconds of every budget, by batch, K and context."""

    def __init__(
        self, costs: CostTable, totals: Mapping[tuple[int, int], tuple[int, ...]]
    ) -> None:
        """Takes what was measured of these passes.

        Args:
          costs: with whole rounds of them, `packed`.
          totals: drafts, all rows together, that a round may choose from, by the rows
            of an executable and its K.

        Raises:
          ValueError: one of them was not measured.
        """
        self.totals = dict(totals)
        self._batches = sorted({batch for batch, _ in totals})
        self._known = {
            (batch, k): _measured(costs.samples["packed"], batch, k, wanted)
            for (batch, k), wanted in totals.items()
        }

    def ms(self, batch: int, k: int, context: int) -> np.ndarray:
        """Of a round with each of its budgets: linear in the context.

        More drafts never cost less, nor does a longer context.
        """
        contexts, ms = self._known[batch, k]
        return between(context, contexts, ms)

    def best_rate(
        self, survival: np.ndarray, batch: int, k: int, context: int
    ) -> float:
        """Tokens per row and millisecond with the budget for which that is most.

        Args:
          survival: of every draft of some rows, of which those of the round are to be
            like; the best are admitted, wherever they stand.
          batch: rows that decode; the executable may have more.
          k: drafts of each.
          context: what stands for their lengths.
        """
        rows = len(survival)
        at = min(bisect.bisect_left(self._batches, batch), len(self._batches) - 1)
        executable = self._batches[at]
        best_first = np.sort(survival, axis=None)[::-1]
        kept = np.concatenate(([0.0], best_first.cumsum()))
        admitted = np.array(self.totals[executable, k]) * rows / batch
        emitted = 1 + np.interp(admitted, np.arange(len(kept)), kept) / rows
        return float(np.max(emitted / self.ms(executable, k, context)))


def _measured(
    samples: Iterable[Sample], batch: int, k: int, totals: tuple[int, ...]
) -> tuple[list[int], np.ndarray]:
    """Contexts, and the median of each budget in each of them."""
    times: dict[int, dict[int, list[float]]] = {}
    for one in samples:
        if (one.batch, one.size) == (batch, k) and one.drafts is not None:
            at = times.setdefault(one.context, {})
            at.setdefault(one.drafts, []).append(one.ms)
    missing = [
        total for total in totals if any(total not in at for at in times.values())
    ]
    if missing or not times:
        raise ValueError(
            f"the costs have no round of batch {batch} and K = {k} whose pass holds "
            f"{(missing or totals)[0]} drafts, which ragged_budget lets rounds choose: "
            "measure again with these options (jspec calibrate)"
        )
    contexts = sorted(times)
    ms = [
        [statistics.median(times[context][total]) for total in totals]
        for context in contexts
    ]
    ms = np.maximum.accumulate(np.maximum.accumulate(ms, axis=0), axis=1)
    return contexts, np.maximum(ms, 1e-6)


def spread(expected: Sequence[float], rows: np.ndarray | None) -> np.ndarray:
    """Survival of the drafts of rows: what is known of each, then as on average."""
    usual = np.diff(expected)[None]
    if rows is None:
        return usual
    known = rows[:, : usual.shape[1]]
    last = known.shape[1]
    rest = usual[:, last:] / np.maximum(usual[:, last - 1 : last], 1e-9)
    return np.concatenate([known, known[:, -1:] * np.minimum(rest, 1.0)], axis=1)
