"""The K of most emitted tokens per second: measured costs times learned acceptance.

Every range of batches and contexts (a cell) has its own K; what drafts are worth is
learned once for all of them (`acceptance`). A cell moves when another K promises a few
percent more. It rises on trial: after one that is taken back the next one waits so
long that trials cost half a percent of the time, and twice as long if it fails again.
A K that may be better at the upper end of what is known is tried out the same way, so a
K of 0 is left again when texts change.

With a fixed acceptance this is a table by batch and context; with costs that do not
depend on K it takes as many drafts as are ever kept. With `confident`, what the drafter
says of its latest drafts, calibrated by what was kept of them, takes the place of the
averages: the confidence budget (`budget`) over whole rounds.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jspec.control.acceptance import Acceptance, emitted, octave
from jspec.control.base import Counts, natural
from jspec.control.budget import survival
from jspec.control.costs import CostTable
from jspec.control.estimator import Estimator, log_odds

__all__ = ["Goodput", "best_k"]

INTERVAL = 4
"""Rounds from one decision of a cell to the next."""

MARGIN = 0.02
"""What a change must promise, as a share of the rate; taking back a trial: none."""

SETTLED = 32
"""Rounds after which a rise counts as right."""

LEAST_WAIT = 8
LONGEST_WAIT = 512
"""Rounds between a change and the next rise."""

SPENT_ON_TRIALS = 0.005
"""Share of the time that trials which fail may cost."""


def best_k(
    costs: CostTable,
    rates: Sequence[float],
    palette: Sequence[int],
    batch: int,
    context: int,
) -> int:
    """The K of most tokens per millisecond at these rates; of several, the smallest."""
    tokens = emitted(rates)
    return max(
        palette, key=lambda k: (tokens[k] / costs.round_ms(batch, k, context), -k)
    )


@dataclasses.dataclass
class _Cell:
    """What a range of batches and contexts does now.

    Attributes:
      still: rounds since the last change.
      decided: rounds since the last decision.
      wait: rounds that a rise has to come after the last change.
      left: the K before a rise that is still on trial.
    """

    k: int
    still: int = 0
    decided: int = 0
    wait: int = LEAST_WAIT
    left: int | None = None


class Goodput:
    """Chooses K by expected tokens per millisecond."""

    def __init__(
        self,
        costs: CostTable,
        *,
        max_k: int | None = None,
        palette: Sequence[int] | None = None,
        confident: bool = False,
    ) -> None:
        """Knows costs, and nothing of the drafts.

        Args:
          costs: measured; there is no default.
          max_k: the largest K to choose; `None`: the largest measured.
          palette: K values to choose from; `None`: those whose drafts were measured,
            and 0.
          confident: whether to believe the drafter about its drafts; see `hear`.
        """
        measured = {sample.size for sample in costs.samples["draft"]}
        if palette is None:
            palette = sorted(measured) or range(1, (max_k or 0) + 1)
        chosen = {0, *(natural(k, "K") for k in palette)}
        most = max(chosen) if max_k is None else natural(max_k, "max_k")
        self._palette = tuple(sorted(k for k in chosen if k <= most))
        if self._palette == (0,) and most > 0:
            raise ValueError(
                f"every measured K of {sorted(chosen)[1:]} exceeds {most}; measure "
                "smaller ones (jspec calibrate -k)"
            )
        self.confident = confident
        self.acceptance = Acceptance()
        self._costs = costs
        self._batches = sorted({sample.batch for sample in costs.samples["verify"]})
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._context = 0
        self._estimator = Estimator(self._palette[-1], interval=25)
        self._heard: list[float] | None = None

    @property
    def palette(self) -> tuple[int, ...]:
        """What it chooses from."""
        return self._palette

    def k(self, batch: int, context: int = 0) -> int:
        """The K of the cell of this batch and context."""
        self._context = context
        ahead = int(np.searchsorted(self._batches, batch))
        cell = self._cells.get((ahead, octave(context)))
        if cell is None:
            rates = self._rates(batch, context, self._tokens)
            cell = self._cells[ahead, octave(context)] = _Cell(k=_best(rates))
        cell.still += 1
        cell.decided += 1
        if cell.decided >= (1 if self._heard else INTERVAL):
            cell.decided = 0
            self._decide(cell, batch, context)
        return cell.k

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Learns what was kept; `hear` comes before, if at all."""
        k = self._palette[-1] if drafted is None else drafted
        self.acceptance.count(accepted, k, self._context)
        if k == 0:
            self._heard = None

    def hear(self, confidence: np.ndarray, drafted: Counts, accepted: Counts) -> None:
        """What the drafter said of the drafts of a round, and what became of them.

        Args:
          confidence: that each is kept if those before it are, `[B, K]`.
          drafted: drafts that each row offered.
          accepted: drafts that each row kept.
        """
        if not (self.confident and confidence.size and np.isfinite(confidence).all()):
            return
        feature = log_odds(np.clip(confidence, 0.0, 1.0))
        calibrated = self._estimator.predict(feature)
        self._estimator.observe(feature, calibrated, drafted, accepted)
        kept = survival(calibrated).mean(axis=0)
        self._heard = [1.0, *(1.0 + kept.cumsum()).tolist()]

    def _tokens(self, k: int, context: int) -> list[float]:
        """Expected tokens with 0, 1, … drafts; beyond what was heard, on average."""
        tokens = emitted(self.acceptance.mean(k, context))
        if not self._heard:
            return tokens
        heard = self._heard[: len(tokens)]
        last = len(heard) - 1
        return heard + [heard[-1] + more - tokens[last] for more in tokens[last + 1 :]]

    def _hoped(self, k: int, context: int) -> list[float]:
        return emitted(self.acceptance.upper(k, context))

    def _rates(
        self, batch: int, context: int, tokens: Callable[[int, int], list[float]]
    ) -> dict[int, float]:
        expected = tokens(self._palette[-1], context)
        return {
            k: expected[k] / self._costs.round_ms(batch, k, context)
            for k in self._palette
        }

    def _listening(self, rates: dict[int, float], batch: int, context: int) -> int:
        """The best K; but 0, at which nothing is heard, only if it is on average, too.

        One round of doubtful drafts says little about those after it.
        """
        best = _best(rates)
        if best > 0 or not self._heard:
            return best
        usual = emitted(self.acceptance.mean(self._palette[-1], context))
        average = self._rates(batch, context, lambda k, context: usual)
        return 0 if _best(average) == 0 else self._palette[1]

    def _decide(self, cell: _Cell, batch: int, context: int) -> None:
        if cell.left is not None and cell.still >= SETTLED:
            cell.wait = max(LEAST_WAIT, cell.wait // 2)
            cell.left = None
        rates = self._rates(batch, context, self._tokens)
        best, now = self._listening(rates, batch, context), rates[cell.k]
        margin = MARGIN if cell.left is None else 0.0
        if best < cell.k and rates[best] > (1 + margin) * now:
            if cell.left is not None:
                fair = int(cell.still * (1 - now / rates[best]) / SPENT_ON_TRIALS)
                cell.wait = max(LEAST_WAIT, fair, min(2 * cell.wait, 2 * fair))
                cell.wait = min(cell.wait, LONGEST_WAIT)
            cell.k, cell.still, cell.left = best, 0, None
            return
        if self._heard and best > cell.k and rates[best] > (1 + MARGIN) * now:
            cell.k, cell.still, cell.left = best, 0, None
            return
        if cell.still < cell.wait:
            return
        wanted = best if rates[best] > (1 + MARGIN) * now else cell.k
        if wanted <= cell.k:
            hoped = self._rates(batch, context, self._hoped)
            rises = [k for k in self._palette if k > cell.k]
            wanted = next((k for k in rises if hoped[k] > (1 + MARGIN) * now), cell.k)
        if wanted > cell.k:
            cell.left = cell.k if cell.left is None else cell.left
            cell.k, cell.still = wanted, 0


def _best(rates: dict[int, float]) -> int:
    return max(rates, key=lambda k: (rates[k], -k))
