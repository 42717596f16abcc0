"""The K of most emitted tokens per second: measured costs times learned acceptance.

Every range of batches and contexts (a cell) has its own K; what drafts are worth is
learned once for all of them (`acceptance`). A cell moves when another K promises a few
percent more. It rises on trial: after one that is taken back the next one waits so
long that trials cost half a percent of the time, and twice as long if it fails again.
A K that may be better at the upper end of what is known is tried out the same way, so a
K of 0 is left again when texts change.

Where the method's trees come in sizes, a size (K and nodes) stands in the place of K.
What a tree of one size keeps is not seen in rounds of another: each has evidence of its
own, begins with what the next smaller one is worth, and is hoped to keep everything
until it was tried (`cells.choose_tree`).

With a fixed acceptance this is a table by batch and context; with costs that do not
depend on K it takes as many drafts as are ever kept. With `confident`, what the drafter
says of its latest drafts, calibrated by what was kept of them, takes the place of the
averages: the confidence budget (`budget`) over whole rounds. Where rounds choose how
many drafts their passes hold (`passes`), a K is worth what its best pass is, and
`prices` tells the round what it chooses by.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jspec.control.acceptance import Acceptance, emitted, octave
from jspec.control.base import Counts, Size, Tree, depth, natural, order, spelled
from jspec.control.budget import survival
from jspec.control.cells import LEAST_TRIAL, MARGIN, SETTLED, Cell, choose_tree, top
from jspec.control.costs import CostTable
from jspec.control.estimator import Estimator, log_odds
from jspec.control.passes import Passes, spread

__all__ = ["Goodput", "best_k"]

INTERVAL = 4
"""Rounds from one decision of a cell to the next."""

FADE = 0.9
"""What a round of confidences weighs, of one that is heard later."""


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


class Goodput:
    """Chooses K by expected tokens per millisecond."""

    def __init__(
        self,
        costs: CostTable,
        *,
        max_k: int | None = None,
        palette: Sequence[Size] | None = None,
        confident: bool = False,
    ) -> None:
        """Knows costs, and nothing of the drafts.

        Args:
          costs: measured; there is no default.
          max_k: the largest K to choose; `None`: the largest measured.
          palette: sizes to choose from; `None`: those whose drafts were measured, and
            0. A `Tree` must have been measured.
          confident: whether to believe the drafter about its drafts; see `hear`.
        """
        if palette is None:
            palette = costs.drafted or range(1, (max_k or 0) + 1)
        chosen = sorted({0, *map(_checked, palette)}, key=order)
        most = depth(chosen[-1]) if max_k is None else natural(max_k, "max_k")
        self._palette = tuple(size for size in chosen if depth(size) <= most)
        if self._palette == (0,) and most > 0:
            raise ValueError(
                f"every measured K of {sorted({*map(depth, chosen[1:])})} exceeds "
                f"{most}; measure smaller ones (jspec calibrate -k)"
            )
        unknown = [s for s in self._palette if isinstance(s, Tree)]
        unknown = [spelled(size) for size in unknown if size not in costs.drafted]
        if unknown:
            raise ValueError(
                f"the costs do not have the trees (K/nodes) {', '.join(unknown)}; "
                "measure them (jspec calibrate --nodes)"
            )
        self.confident = confident
        self.acceptance = Acceptance()
        self._trees: dict[Tree, Acceptance] = {}
        smaller = None
        for size in self._palette:
            if isinstance(size, Tree):
                smaller = self._trees[size] = Acceptance(smaller)
        self._costs = costs
        self._batches = sorted({sample.batch for sample in costs.samples["verify"]})
        self._cells: dict[tuple[int, int], Cell] = {}
        self._context = 0
        self._estimator = Estimator(depth(self._palette[-1]), interval=25)
        self._heard: np.ndarray | None = None
        self._offered: Counts | None = None
        self._reached = np.zeros((2, depth(self._palette[-1])))
        self._passes: Passes | None = None

    @property
    def palette(self) -> tuple[Size, ...]:
        """What it chooses from."""
        return self._palette

    def k(self, batch: int, context: int = 0) -> Size:
        """The K, or the tree, of the cell of this batch and context."""
        self._context = context
        ahead = int(np.searchsorted(self._batches, batch))
        cell = self._cells.get((ahead, octave(context)))
        if cell is None:
            rates = self._now(batch, context)
            cell = self._cells[ahead, octave(context)] = Cell(k=top(rates))
        cell.pass_round()
        if cell.decided >= (INTERVAL if self._heard is None else 1):
            cell.decided = 0
            self._decide(cell, batch, context)
        return cell.k

    def update(self, accepted: Counts, batch: int, drafted: Size | None = None) -> None:
        """Learns what was kept; `hear` comes before, if at all."""
        size = self._palette[-1] if drafted is None else drafted
        for tree, acceptance in self._trees.items():
            if tree == size:
                acceptance.count(accepted, tree.k, self._context)
            else:
                acceptance.count((), 0, self._context)
        if not isinstance(size, Tree):
            self.acceptance.count(accepted, size, self._context, self._offered)
        self._offered = None
        if size == 0:
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
        self._heard, self._offered = survival(calibrated), drafted
        kept = self._heard.mean(axis=0)
        here = self._reached[:, : len(kept)]
        here *= FADE
        here += np.stack([kept, [1.0, *kept[:-1]]])

    def offer(self, totals: Mapping[tuple[int, int], tuple[int, ...]]) -> None:
        """Is told at start-up that rounds choose how many drafts their passes hold.

        Args:
          totals: drafts, all rows together, by the rows of an executable and its K.

        Raises:
          ValueError: a round with one of these was not measured.
        """
        self._passes = Passes(self._costs, totals)

    def prices(self, batch: int, context: int, k: int) -> dict[str, np.ndarray]:
        """What a round chooses by: the fields of `decode.Prices`.

        Args:
          batch: rows of the executable, one of those offered.
          context: what stands for the lengths of the rows that decode.
          k: of the round.
        """
        assert self._passes is not None, "what is priced is offered first"
        kept, reached = self._reached[:, :k]
        usual = np.array(self.acceptance.mean(k, context))
        usual = np.divide(kept, reached, out=usual, where=reached > 0)
        return {
            "ms": self._passes.ms(batch, k, context),
            "slope": np.array(self._estimator.slope),
            "intercept": np.array([0.0, *self._estimator.intercepts[:k]]),
            "usual": np.array([1.0, *usual]),
        }

    def _tokens(self, k: int, context: int) -> list[float]:
        """Expected tokens with 0, 1, … drafts; beyond what was heard, on average."""
        tokens = self.acceptance.tokens(k, context)
        if self._heard is None:
            return tokens
        kept = self._heard.mean(axis=0)[: len(tokens) - 1]
        heard = [1.0, *(1.0 + kept.cumsum()).tolist()]
        last = len(heard) - 1
        return heard + [heard[-1] + more - tokens[last] for more in tokens[last + 1 :]]

    def _usual(self, k: int, context: int) -> list[float]:
        return self.acceptance.tokens(k, context)

    def _hoped(self, k: int, context: int) -> list[float]:
        return emitted(self.acceptance.upper(k, context))

    def _now(self, batch: int, context: int) -> dict[Size, float]:
        """Tokens per millisecond of every size, by the newest that is known."""
        return self._rates(batch, context, self._tokens, rows=self._heard)

    def _rates(
        self,
        batch: int,
        context: int,
        chain: Callable[[int, int], list[float]],
        *,
        hoped: bool = False,
        rows: np.ndarray | None = None,
    ) -> dict[Size, float]:
        """Tokens per millisecond of every size.

        Args:
          batch: rows.
          context: of them.
          chain: expected tokens of a row with 0, 1, … drafts.
          hoped: of trees, what they may be at best.
          rows: survival of every draft of rows that are not alike, as far as it is
            known; `None`: all rows are what `chain` says.
        """
        expected = chain(depth(self._palette[-1]), context)
        rates: dict[Size, float] = {}
        for size in self._palette:
            tokens = expected[depth(size)]
            if isinstance(size, Tree):
                known = self._trees[size]
                read = known.upper if hoped else known.mean
                tokens = emitted(read(size.k, context))[-1]
            if self._passes and isinstance(size, int) and size:
                chances = spread(expected[: size + 1], rows)
                rates[size] = self._passes.best_rate(chances, batch, size, context)
                continue
            rates[size] = tokens / self._costs.round_ms(batch, size, context)
        return rates

    def _listening(self, rates: dict[Size, float], batch: int, context: int) -> Size:
        """The best K; but 0, at which nothing is heard, only if it is on average, too.

        One round of doubtful drafts says little about those after it.
        """
        best = top(rates)
        if best != 0 or self._heard is None:
            return best
        average = self._rates(batch, context, self._usual)
        return 0 if top(average) == 0 else self._palette[1]

    def _decide(self, cell: Cell, batch: int, context: int) -> None:
        rates = self._now(batch, context)
        if self._trees:
            hoped = self._rates(batch, context, self._hoped, hoped=True)
            choose_tree(cell, rates, hoped)
            return
        if cell.left is not None and cell.still < LEAST_TRIAL:
            return
        if cell.left is not None and cell.still >= SETTLED:
            cell.succeed()
        best, now = self._listening(rates, batch, context), rates[cell.k]
        above, here = order(best) > order(cell.k), order(cell.k)
        margin = MARGIN if cell.left is None else 0.0
        if order(best) < here and rates[best] > (1 + margin) * now:
            if cell.left is not None:
                cell.fail(1 - now / rates[best])
            cell.move(best)
            return
        if self._heard is not None and above and rates[best] > (1 + MARGIN) * now:
            cell.move(best)
            return
        if cell.still < cell.wait:
            return
        wanted = best if above and rates[best] > (1 + MARGIN) * now else cell.k
        if wanted == cell.k:
            hoped = self._rates(batch, context, self._hoped)
            rises = [size for size in self._palette if order(size) > here]
            wanted = next((k for k in rises if hoped[k] > (1 + MARGIN) * now), cell.k)
        if wanted != cell.k:
            cell.move(wanted, left=cell.k if cell.left is None else cell.left)


def _checked(size: Size) -> Size:
    """A size that can be: a K, or a tree that holds its longest path."""
    if not isinstance(size, Tree):
        return natural(size, "K")
    natural(size.k, "K of a tree", 1)
    natural(size.nodes, f"nodes of a tree of K = {size.k}", size.k + 1)
    return size
