"""A range of batches and contexts: its K now, which tree, and what trials cost."""

import dataclasses
from collections.abc import Mapping

from jspec.control.base import Size

__all__ = ["LEAST_TRIAL", "MARGIN", "SETTLED", "Cell", "choose_tree", "top"]

MARGIN = 0.02
"""What a change must promise, as a share of the rate; taking back a trial: none."""

SETTLED = 32
"""Rounds after which a rise counts as right."""

LEAST_TRIAL = 8
"""Rounds that a trial is given: texts are easy in stretches."""

TREE_TRIAL = 24
"""Rounds that a tree is given while it may yet be better than what was left: of a tree
everything is to be learnt, of a chain its last positions."""

LEAST_WAIT = 8
LONGEST_WAIT = 512
"""Rounds between a change and the next rise."""

SPENT_ON_TRIALS = 0.005
"""Share of the time that trials which fail may cost."""


@dataclasses.dataclass
class Cell:
    """What a range of batches and contexts does now.

    Attributes:
      still: rounds since the last change.
      decided: rounds since the last decision.
      wait: rounds that a trial has to come after the last change.
      left: the K before a change that is still on trial.
      age: rounds since the first.
      barred: of trees whose trial failed, the wait and the age at which it ends.
    """

    k: Size
    still: int = 0
    decided: int = 0
    wait: int = LEAST_WAIT
    left: Size | None = None
    age: int = 0
    barred: dict[Size, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def pass_round(self) -> None:
        """Another round is chosen."""
        self.still += 1
        self.decided += 1
        self.age += 1

    def move(self, k: Size, *, left: Size | None = None) -> None:
        """Takes another K; on trial where what is left is said."""
        self.k, self.still, self.left = k, 0, left

    def succeed(self) -> None:
        """The trial was right: the next one may come sooner."""
        self.wait = max(LEAST_WAIT, self.wait // 2)
        self.left = None

    def fail(self, loss: float) -> None:
        """The trial lost this share of its time: the next one comes as much later."""
        self.wait = self._longer(self.wait, loss)

    def bar(self, loss: float) -> None:
        """The same of the tree on trial alone: others may be tried before."""
        before, _ = self.barred.get(self.k, (LEAST_WAIT, 0))
        wait = self._longer(before, loss)
        self.barred[self.k] = wait, self.age + wait

    def _longer(self, wait: int, loss: float) -> int:
        fair = int(self.still * loss / SPENT_ON_TRIALS)
        return min(LONGEST_WAIT, max(LEAST_WAIT, fair, min(2 * wait, 2 * fair)))


def top(rates: Mapping[Size, float]) -> Size:
    """The size of the highest rate; of several, the smallest."""
    best = next(iter(rates))
    for size, rate in rates.items():
        best = size if rate > rates[best] else best
    return best


def choose_tree(
    cell: Cell, rates: Mapping[Size, float], hoped: Mapping[Size, float]
) -> None:
    """Moves to what is known to be better, or tries what may be best.

    Sizes have no order here: a tree of fewer nodes and more depth may cost less or
    more, and what is kept of one is not seen in rounds of another. So the one whose
    upper bound is highest is tried (Lai and Robbins 1985), whichever it is.

    Args:
      cell: changed in place.
      rates: tokens per millisecond by size, as far as is known.
      hoped: the same at the upper end of what is known.
    """
    best, now = top(rates), rates[cell.k]
    if cell.left is not None:
        may_yet = cell.still < TREE_TRIAL and hoped[cell.k] > rates[cell.left]
        if cell.still < LEAST_TRIAL or may_yet:
            return
        if rates[best] > now:
            cell.bar(1 - now / rates[best])
            cell.move(best)
        else:
            cell.barred.pop(cell.k, None)
            cell.left = None
        return
    if rates[best] > (1 + MARGIN) * now:
        cell.move(best)
        return
    if cell.still < LEAST_WAIT:
        return
    ends = {size: end for size, (_, end) in cell.barred.items()}
    free = {size: hope for size, hope in hoped.items() if ends.get(size, 0) <= cell.age}
    wanted = top(free | {cell.k: now})
    if free.get(wanted, 0.0) > (1 + MARGIN) * now and wanted != cell.k:
        cell.move(wanted, left=cell.k)
