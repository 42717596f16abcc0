"""What a controller is: it says how many tokens the next round drafts."""

import numbers
import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

__all__ = [
    "Aggregate",
    "Controller",
    "Counts",
    "Size",
    "Static",
    "Tree",
    "depth",
    "natural",
    "order",
    "representative",
    "spelled",
]

type Counts = Sequence[int] | np.ndarray
"""A number of tokens for each row."""

type Aggregate = Literal["median", "mean", "max"]


class Tree(NamedTuple):
    """A round of a method that branches, where its trees come in sizes.

    Attributes:
      k: drafted tokens along the longest path.
      nodes: of the tree, the anchor included.
    """

    k: int
    nodes: int


type Size = int | Tree
"""What a round drafts: K, or K and the nodes of a tree. K alone: what the method does
with it, a chain or a tree of its own size."""


def depth(size: Size) -> int:
    """K of a size."""
    return size.k if isinstance(size, Tree) else size


def order(size: Size) -> tuple[int, int]:
    """Sorts sizes: by K, then by nodes."""
    return (size.k, size.nodes) if isinstance(size, Tree) else (size, 0)


def spelled(size: Size) -> str:
    """A size as people read it: `4`, or `4/16`: K and the nodes of a tree."""
    return f"{size.k}/{size.nodes}" if isinstance(size, Tree) else str(size)


class Controller(Protocol):
    """Chooses K, round by round; the engine takes one.

    One that also has `overload`, with the method `observe` of `correction.Overload`, is
    told before every choice how full the engine is.

    One whose `confident` is true also has `hear(confidence, drafted, accepted)`: before
    each `update` it is told what the drafter said of the drafts of that round. A method
    that says nothing is refused for it at start-up.

    One that also has `offer(totals)` and `prices(batch, context, k)`, as `Goodput`
    explains them, can serve a method that leaves several `ragged_budget` to each round:
    what a pass takes must be known, and what the drafter says must be believed.

    One that chooses tree sizes has `Tree`s in its palette; it is refused at start-up
    for methods whose trees have no size to choose. All others deal in K alone.
    """

    @property
    def palette(self) -> tuple[Any, ...]:
        """Every `Size` it may choose, ascending: what has to be compiled."""
        ...

    def k(self, batch: int, context: int = 0) -> Any:
        """The `Size` of the next round: drafted tokens, or a tree.

        Args:
          batch: rows that decode.
          context: what stands for their lengths; see `representative`.
        """
        ...

    def update(self, accepted: Counts, batch: int, drafted: Any = None) -> None:
        """Learns from a round.

        Args:
          accepted: accepted drafts of each row, the bonus not counted.
          batch: rows that decoded.
          drafted: `Size` that it chose for that round, which is read after the next
            one was dispatched; `None`: the one that this controller now chooses.
        """
        ...


class Static:
    """The same K, always."""

    def __init__(self, k: int) -> None:
        """Says what is not a K."""
        self._k = natural(k, "K")

    @property
    def palette(self) -> tuple[int, ...]:
        """Its K alone."""
        return (self._k,)

    def k(self, batch: int, context: int = 0) -> int:
        """Its K."""
        return self._k

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Learns nothing."""


def representative(lengths: Sequence[int], how: Aggregate = "median") -> int:
    """One context for the rows that decode; prompts still being read do not count.

    The median as in the RFC (of two middle lengths the lower, so that it is the length
    of a row); its upstream patch also offers `mean` and `max`. No rows: 0.
    """
    if not lengths:
        return 0
    if how == "median":
        return statistics.median_low(lengths)
    if how == "mean":
        return round(statistics.fmean(lengths))
    if how == "max":
        return max(lengths)
    raise ValueError(f"aggregate {how!r} is not one of median, mean, max")


def natural(value: object, name: str, least: int = 0) -> int:
    """The value as an int; a float, a boolean or digits in a string are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} {value!r} is not an integer")
    if value < least:
        raise ValueError(f"{name} {int(value)} is less than {least}")
    return int(value)
