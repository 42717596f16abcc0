"""Medians that say how far to trust them: turns, intervals, crossings."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

__all__ = ["crossing", "interval", "turns"]


def turns[T](contestants: Sequence[T], passes: int) -> Iterator[tuple[int, T]]:
    """Everybody once a pass, another one first each time; pass 0 is for warming up.

    What disturbs the machine for a while then disturbs all of them.
    """
    for turn in range(passes + 1):
        first = turn % len(contestants)
        for one in (*contestants[first:], *contestants[:first]):
            yield turn, one


def interval[T](
    repeats: Sequence[T],
    statistic: Callable[[Sequence[T]], float],
    *,
    share: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """The bootstrap's percentile interval of a statistic (Efron and Tibshirani 1993).

    Repeats are drawn whole, with replacement: what belongs together, such as one turn
    of all contestants or one prompt under two rules, is one repeat.

    Args:
      repeats: at least one.
      statistic: of repeats; where it is no number that draw does not count.
      share: of the draws that the interval holds.
      draws: how many.
      seed: of the draws.
    """
    rng = random.Random(seed)
    drawn = [statistic(rng.choices(repeats, k=len(repeats))) for _ in range(draws)]
    found = sorted(one for one in drawn if not math.isnan(one))
    if not found:
        return math.nan, math.nan
    outside = (1 - share) / 2
    low = math.floor(outside * (len(found) - 1))
    return found[low], found[len(found) - 1 - low]


def crossing(level: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Where the line through points first reaches a level; NaN: nowhere between them.

    Args:
      level: the wanted y.
      xs: rising, at least two.
      ys: one for each.
    """
    points = list(zip(xs, ys, strict=True))
    for (x, y), (to, high) in itertools.pairwise(points):
        if min(y, high) <= level <= max(y, high):
            return x if high == y else x + (to - x) * (level - y) / (high - y)
    return math.nan
