"""How often the draft at each position is kept, by context, and how sure that is.

A position is tried where every draft before it was kept. Its evidence fades with the
rounds that draft so far; while none does, the mean stands still and the interval
widens, so that an old refusal is doubted in time. What one range of contexts has not
seen is taken from all of them, and what nobody has seen from the position before.
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
    kept: float = 0.0
    tried: float = 0.0
    seen: int = 0


class Acceptance:
    """Faded counts by position, for each range of contexts and for all."""

    def __init__(self) -> None:
        """Has seen nothing."""
        self._all: list[_Position] = []
        self._by_octave: dict[int, list[_Position]] = {}
        self._round = 0

    def count(self, accepted: Counts, drafted: int, context: int = 0) -> None:
        """Takes in a round.

        Args:
          accepted: drafts that each row kept.
          drafted: K of the round; with 0 it only ages what is known.
          context: what stands for the rows' lengths.
        """
        self._round += 1
        own = self._by_octave.setdefault(octave(context), [])
        fade = math.exp(-1 / MEMORY)
        for positions in (self._all, own):
            while len(positions) < drafted:
                positions.append(_Position())
            for at in range(drafted):
                tried = sum(row >= at for row in accepted)
                if tried:
                    position = positions[at]
                    position.kept *= fade
                    position.tried *= fade
                    position.kept += sum(row > at for row in accepted)
                    position.tried += tried
                    position.seen = self._round

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
        before = HOPE
        known = []
        for at in range(k):
            everywhere = self._all[at] if at < len(self._all) else _Position()
            here = own[at] if at < len(own) else _Position()
            rate = _shrunk(everywhere, before, HOPE_WEIGHT)
            before = _shrunk(here, rate, ELSEWHERE_WEIGHT)
            trials = here.tried + min(ELSEWHERE_WEIGHT, everywhere.tried)
            known.append(
                (before, trials * math.exp((everywhere.seen - self._round) / DOUBT))
            )
        return known


def _shrunk(position: _Position, towards: float, weight: float) -> float:
    return (position.kept + weight * towards) / (position.tried + weight)


def _wilson(rate: float, trials: float) -> float:
    if trials <= 0:
        return 1.0
    share = Z * Z / trials
    spread = Z * math.sqrt(rate * (1 - rate) / trials + share / (4 * trials))
    return min(1.0, (rate + share / 2 + spread) / (1 + share))
