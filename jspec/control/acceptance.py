"""How often the draft at each position is kept, by context, and how sure that is.

A position is tried where every draft before it was kept. Its evidence fades with the
rounds that draft so far; while none does, the mean stands still and the interval
widens, so that an old refusal is doubted in time. What one range of contexts has not
seen is taken from all of them, and what nobody has seen from the position before.

Texts are easy in stretches. A large K crosses such a stretch in few rounds, so its
rounds see the first position refused more often than those of a small K would: the
rates of one K make every smaller one look worse than it is. `tokens` corrects this by
the rounds that the smaller K would have taken over the same tokens (`_taken`).
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from jspec.control.base import Counts

__all__ = ["Acceptance", "emitted", "octave"]

MEMORY = 100
"""Rounds after which evidence weighs 1/e."""

DOUBT = 100
"""Rounds without evidence after which it counts for 1/e in the interval."""

HOPE = 0.7
"""Of the first position before there is any evidence."""

HOPE_WEIGHT = 2.0
"""Trials that the hope, or the position before, stands for."""

ELSEWHERE_WEIGHT = 20.0
"""Trials that the evidence of all contexts stands for in each."""

PACE_WEIGHT = 20.0
"""Rows that stand for texts which are alike easy everywhere."""

Z = 1.64
"""Deviations of the upper bound: one in twenty lies above it."""

FIRST_OCTAVE = 256
"""Contexts below this are one range; each range above is twice as long."""


def octave(context: int) -> int:
    """The number of the range that a context lies in."""
    return (context // FIRST_OCTAVE).bit_length()


def emitted(rates: Sequence[float]) -> list[float]:
    """Expected tokens of a round with 0, 1, … drafts, from each position's rate."""
    kept = itertools.accumulate(rates, lambda a, b: a * b)
    return list(itertools.accumulate(kept, initial=1.0))


@dataclasses.dataclass
class _Position:
    """Faded sums.

    Attributes:
      kept: drafts kept here.
      tried: drafts whose predecessors were kept.
      seen: the last round that tried one.
      rows: of rounds that drafted so far.
      within: what they kept up to here.
      emitted: what they emitted.
      taken: the rounds that a K which ends here would have taken for that.
    """

    kept: float = 0.0
    tried: float = 0.0
    seen: int = 0
    rows: float = 0.0
    within: float = 0.0
    emitted: float = 0.0
    taken: float = 0.0

    @property
    def pace(self) -> float:
        """What a K that ends here gains, over what rates from longer drafts say."""
        if self.within <= 0:
            return 1.0
        gain = (self.emitted / self.taken - 1) / (self.within / self.rows)
        return (gain * self.rows + PACE_WEIGHT) / (self.rows + PACE_WEIGHT)


class Acceptance:
    """Faded counts by position, for each range of contexts and for all."""

    def __init__(self, towards: "Acceptance | None" = None) -> None:
        """Has seen nothing.

        Args:
          towards: of a smaller tree, say: what a position is worth before anybody
            tried it here; `None`: what the one before it is.
        """
        self._towards = towards
        self._all: list[_Position] = []
        self._by_octave: dict[int, list[_Position]] = {}
        self._round = 0

    def count(
        self,
        accepted: Counts,
        drafted: int,
        context: int = 0,
        offered: Counts | None = None,
    ) -> None:
        """Takes in a round.

        Args:
          accepted: drafts that each row kept.
          drafted: K of the round; with 0 it only ages what is known.
          context: what stands for the rows' lengths.
          offered: drafts of each row that were verified; what was not is not refused.
            `None`: all.
        """
        rows = list(zip(accepted, offered or [drafted] * len(accepted), strict=True))
        self._round += 1
        own = self._by_octave.setdefault(octave(context), [])
        fade = math.exp(-1 / MEMORY)
        for positions in (self._all, own):
            while len(positions) < drafted:
                positions.append(_Position())
            for at in range(drafted):
                tried = sum(row >= at and shown > at for row, shown in rows)
                if tried:
                    position = positions[at]
                    position.kept *= fade
                    position.tried *= fade
                    position.kept += sum(row > at for row in accepted)
                    position.tried += tried
                    position.seen = self._round

        if not drafted:
            return
        for at, position in enumerate(self._all[:drafted]):
            for name in ("rows", "within", "emitted", "taken"):
                setattr(position, name, getattr(position, name) * fade)
            for row, shown in rows:
                position.rows += 1
                position.within += min(row, at + 1)
                position.emitted += row + 1
                position.taken += _taken(row, shown, at + 1)

    def tokens(self, k: int, context: int = 0) -> list[float]:
        """Expected tokens of a round with 0, 1, …, `k` drafts."""
        paces = [position.pace for position in self._all[:k]]
        paces += [1.0] * (k - len(paces))
        first, *more = emitted(self.mean(k, context))
        gains = zip(more, paces, strict=True)
        return [first, *(1 + (tokens - 1) * pace for tokens, pace in gains)]

    def mean(self, k: int, context: int = 0) -> list[float]:
        """Of each of `k` positions, those before it being kept."""
        return [rate for rate, _ in self._known(k, context)]

    def upper(self, k: int, context: int = 0) -> list[float]:
        """What each may be at best: Wilson's upper bound (Wilson 1927).

        A position that nobody tried may be as good as the one before.
        """
        bounds = []
        best = 1.0
        for rate, trials in self._known(k, context):
            bound = _wilson(rate, trials)
            best = bound if trials >= 1 else min(bound, best)
            bounds.append(best)
        return bounds

    def _known(self, k: int, context: int) -> list[tuple[float, float]]:
        """Rate and trials of each position; trials that are long ago count less."""
        own = self._by_octave.get(octave(context), [])
        usual = self._towards.mean(k, context) if self._towards else ()
        before = HOPE
        known = []
        for at in range(k):
            everywhere = self._all[at] if at < len(self._all) else _Position()
            here = own[at] if at < len(own) else _Position()
            before = usual[at] if usual else before
            rate = _shrunk(everywhere, before, HOPE_WEIGHT)
            before = _shrunk(here, rate, ELSEWHERE_WEIGHT)
            elsewhere = max(0.0, everywhere.tried - here.tried)
            trials = here.tried + min(ELSEWHERE_WEIGHT, elsewhere)
            known.append(
                (before, trials * math.exp((everywhere.seen - self._round) / DOUBT))
            )
        return known


def _taken(accepted: int, drafted: int, k: int) -> float:
    """Rounds of `k` drafts over what a round of more drafts emitted.

    Where a draft was refused, the last of them ends with it. Where none was, the last
    goes on into the next round's tokens, and counts in part.
    """
    emitted = accepted + 1
    if accepted < drafted:
        return float(-(-emitted // (k + 1)))
    return emitted / (k + 1)


def _shrunk(position: _Position, towards: float, weight: float) -> float:
    return (position.kept + weight * towards) / (position.tried + weight)


def _wilson(rate: float, trials: float) -> float:
    if trials <= 0:
        return 1.0
    share = Z * Z / trials
    spread = Z * math.sqrt(rate * (1 - rate) / trials + share / (4 * trials))
    return min(1.0, (rate + share / 2 + spread) / (1 + share))
