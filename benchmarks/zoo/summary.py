"""What the cells of a zoo run say: medians, intervals, tau, acceptance, costs."""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import spread
from jspec.control.economics import invocations

type Cell = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A contestant at one K, over some cells.

    Attributes:
      tau: delivered tokens per target pass; `None`: rounds are not known.
      accepted: by position, the share of rounds that kept a draft there among those
        that offered one; `offered` counts these.
      rate: tokens per second of a group, the median; `lowest` and `highest` beside it.
      speedup: over plain decoding of the same texts seconds before or after, the median
        of all groups; `interval` holds the true median with 95 % (bootstrap), unless
        there is only one.
      pairs: how many groups were compared.
      equal: the share of greedy texts that are plain decoding's, if any is greedy.
      others: the most cores that other processes used meanwhile.
    """

    name: str
    k: int
    tau: float | None
    accepted: tuple[float, ...]
    offered: tuple[int, ...]
    rate: float
    lowest: float
    highest: float
    speedup: float
    interval: tuple[float, float] | None
    pairs: int
    equal: float | None
    others: float | None


def lines(
    cells: Sequence[Cell], chosen: Callable[[Cell], bool] = lambda cell: True
) -> list[Line]:
    """A line for each contestant and K of the chosen cells, in the order of the run."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        if chosen(cell):
            groups.setdefault((cell["name"], cell["k"]), []).append(cell)
    made = [_line(name, k, own) for (name, k), own in groups.items()]
    return [line for line in made if line is not None]


def best(found: Sequence[Line]) -> list[Line]:
    """Of each contestant the line of its fastest K."""
    names = dict.fromkeys(line.name for line in found)
    return [
        max((line for line in found if line.name == name), key=lambda one: one.speedup)
        for name in names
    ]


def _line(name: str, k: int, cells: Sequence[Cell]) -> Line | None:
    pairs = [
        (mine["tokens"] / mine["seconds"], plain["tokens"] / plain["seconds"])
        for cell in cells
        for mine, plain in zip(cell["groups"], cell["plain"], strict=True)
        if mine["tokens"] and plain["tokens"] and mine["seconds"] and plain["seconds"]
    ]
    if not pairs:
        return None
    rates = [mine for mine, _ in pairs]
    ratios = [mine / plain for mine, plain in pairs]
    rows = [row for cell in cells for row in cell["rows"]]
    equal = [same for cell in cells for same in cell["equal"] or ()]
    others = [
        used
        for cell in cells
        for used in cell["cores_used_by_others"]
        if used is not None
    ]
    # A tree offers more nodes than its paths are long.
    offered = _by_position(rows, "drafted")[:k]
    kept = _by_position(rows, "accepted")[:k]
    return Line(
        name=name,
        k=k,
        tau=tau(rows),
        accepted=tuple(
            a / b if b else 0.0
            for a, b in itertools.zip_longest(kept, offered, fillvalue=0)
        ),
        offered=tuple(offered),
        rate=statistics.median(rates),
        lowest=min(rates),
        highest=max(rates),
        speedup=statistics.median(ratios),
        interval=interval(ratios),
        pairs=len(pairs),
        equal=sum(equal) / len(equal) if equal else None,
        others=max(others, default=None),
    )


def tau(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Delivered tokens per target pass."""
    rounds = sum(row["rounds"] for row in rows)
    return sum(row["tokens"] for row in rows) / rounds if rounds else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the median lies with 95 %; one value does not say."""
    return spread.interval(values, statistics.median) if len(values) > 1 else None


def _by_position(rows: Sequence[Mapping[str, Any]], what: str) -> list[int]:
    counts: list[int] = []
    for row in rows:
        own = row.get(what, ())
        counts.extend([0] * (len(own) - len(counts)))
        for position, count in enumerate(own):
            counts[position] += count
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a round takes without text, in passes of one token of the same batch.

    Attributes:
      round: all of it.
      verify: verifying a chain of K without drafting.
      drafts: what is beyond that, the drafter's reading of what was kept included; a
        tree's verifying of more nodes than a chain has is in it.
      c: of one draft pass; `None`: there is none, or a tree is not told apart.
    """

    name: str
    k: int
    batch: int
    round: float
    verify: float
    drafts: float
    c: float | None


def costs(measured: Sequence[Mapping[str, Any]], trees: Sequence[str]) -> list[Cost]:
    """Of each contestant, K and batch; the latest measurement counts."""
    found: dict[tuple[str, int, int], Cost] = {}
    for line in measured:
        rounds, passes = _medians(line["rounds"]), _medians(line["passes"])
        for (batch, k), ms in rounds.items():
            if k == 0:
                continue
            step, verify = passes[batch, 0], passes[batch, k]
            drafts = max(0.0, ms - verify) / step
            calls = invocations(line["passes_of"], k)
            known = calls and line["name"] not in trees
            found[line["name"], k, batch] = Cost(
                name=line["name"],
                k=k,
                batch=batch,
                round=ms / step,
                verify=verify / step,
                drafts=drafts,
                c=drafts / calls if known else None,
            )
    return list(found.values())


def _medians(listed: Sequence[Sequence[Any]]) -> dict[tuple[int, int], float]:
    return {(batch, k): statistics.median(ms) for batch, k, ms in listed}
