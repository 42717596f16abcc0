"""Times of rounds, point by point, in a file that a later run goes on with."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jspec.control import Sample
from jspec.control.base import Counts, Size, Tree, depth, natural, order
from jspec.control.formats import load
from jspec.engine.buckets import powers
from jspec.engine.engine import Engine
from jspec.engine.probe import fits, time_budgets, time_rounds
from jspec.server.local import Server, serve
from jspec.storage import write_file

__all__ = ["Grid", "Palette", "Progress", "Record"]

type Progress = Callable[[str, int, int], None]

KIND = "calibration"
"""What the file says it is."""

SLACK = 128
"""Slots behind the longest context, for drafts and trees."""

FIXED = (
    *("target", "drafter", "method", "options", "draft_sampling", "verification"),
    *("dtype", "device", "cores"),
)
"""What must be alike for one measurement to go on with another."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """What to measure.

    Attributes:
      max_batch: rows; every power of two up to it is measured.
      ks: drafted tokens; 0 is always measured.
      nodes: of trees: each is measured with each K that it holds, and K has no size of
        its own then. None: K alone.
      contexts: tokens in the cache of each row.
      repeats: timed rounds of each.
      kv_pages: pages of the cache; points that need more are left out. `None`: enough.
    """

    max_batch: int = 8
    ks: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (128, 1024, 4096)
    repeats: int = 5
    kv_pages: int | None = None
    nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        for what, value in (("max_batch", self.max_batch), ("repeats", self.repeats)):
            natural(value, what, 1)
        for what, values in (("K", self.ks), ("context", self.contexts)):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{what} values must be some, and distinct: {values}")
            for value in values:
                natural(value, what, 1)
        for value in self.nodes:
            natural(value, "nodes of a tree", min(self.ks) + 1)
        if self.nodes and max(self.nodes) <= max(self.ks):
            raise ValueError(
                f"K = {max(self.ks)} needs a tree of {max(self.ks) + 1} nodes, the "
                f"anchor included; the largest of nodes is {max(self.nodes)}"
            )

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What is drafted, ascending."""
        trees = {Tree(k, n) for k in self.ks for n in self.nodes if n > k}
        return tuple(sorted(trees or self.ks, key=order))

    @property
    def points(self) -> Iterator[tuple[int, int]]:
        """Context and batch of each point, the quick ones first."""
        for context in sorted(self.contexts):
            for batch in powers(self.max_batch):
                yield context, batch


class Palette:
    """A controller whose K others set; all of its K values are compiled."""

    def __init__(self, sizes: Iterable[Size]) -> None:
        """Begins at the smallest."""
        self.palette = tuple(sorted(set(sizes), key=order))
        self.now = self.palette[0]

    def k(self, batch: int, context: int = 0) -> Size:
        """What it was set to."""
        return self.now

    def update(self, accepted: Counts, batch: int, drafted: Size | None = None) -> None:
        """Learns nothing."""


class Priced(Palette):
    """The same for a method that leaves a choice of budgets: the probe sets prices."""

    confident = True

    def hear(self, confidence: Any, drafted: Counts, accepted: Counts) -> None:
        """Learns nothing."""

    def offer(self, totals: Mapping[tuple[int, int], tuple[int, ...]]) -> None:
        """Measures all of them."""

    def prices(self, batch: int, context: int, k: int) -> dict[str, Any]:
        """None is dearer than another."""
        return {"ms": 1.0, "slope": 1.0, "intercept": 0.0, "usual": 1.0}


class Record:
    """The file: what was measured, point by point."""

    def __init__(self, output: Path, made: Mapping[str, Any]) -> None:
        self.output = output
        self.made = dict(made)
        self.samples: dict[str, list[Sample]] = {
            "rounds": [],
            "passes": [],
            "packed": [],
        }
        self.left_out: list[tuple[int, int]] = []
        if not output.exists():
            return
        content = load(output)
        if not isinstance(content, Mapping) or content.get("kind") != KIND:
            raise ValueError(f"{output} is there and holds no calibration")
        for key in FIXED:
            there = content.get("made", {}).get(key)
            if there != json.loads(json.dumps(self.made[key])):
                raise ValueError(
                    f"{output} was measured with another {key}: {there!r}, and this is "
                    f"{self.made[key]!r}; choose another file"
                )
        for kind, samples in self.samples.items():
            samples += [Sample(**one) for one in content.get(kind, ())]

    def measure(
        self,
        kind: str,
        sizes: Sequence[Size],
        grid: Grid,
        target: Path,
        options: Mapping[str, Any],
        count: int,
        progress: Progress | None,
    ) -> None:
        """Times what is missing of one kind, in one server."""
        known = {(one.context, one.batch, one.drafted) for one in self.samples[kind]}

        def read(batch: int, size: Size) -> Size:
            return size if kind == "rounds" else batch * (depth(size) + 1)

        missing = {
            (context, batch): [
                size
                for size in sizes
                if (context, batch, read(batch, size)) not in known
            ]
            for context, batch in grid.points
        }
        if not any(missing.values()):
            return
        with _server(target, grid, sizes, options) as server:
            engine = server._engine

            def time(batch: int, context: int, some: Sequence[Size]) -> list[Sample]:
                times = time_rounds(
                    engine,
                    batch=batch,
                    gammas=some,
                    context=context,
                    repeats=grid.repeats,
                )
                return [
                    Sample(
                        ms=round(ms, 4),
                        batch=batch,
                        size=depth(read(batch, size)),
                        context=context,
                        nodes=size.nodes if isinstance(size, Tree) else None,
                    )
                    for size, every in times.items()
                    for ms in every
                ]

            done = 0 if kind == "rounds" else len(missing)
            self._fill(kind, missing, sizes, engine, time, done, count, progress)

    def measure_budgets(
        self,
        grid: Grid,
        target: Path,
        options: Mapping[str, Any],
        count: int,
        progress: Progress | None,
    ) -> None:
        """Times what is missing of whole rounds, with each of their budgets."""
        known = {(one.context, one.batch) for one in self.samples["packed"]}
        missing = {point: () if point in known else grid.ks for point in grid.points}
        if not any(missing.values()):
            return
        with _server(target, grid, grid.ks, options, Priced) as server:
            engine = server._engine

            def time(batch: int, context: int, some: Sequence[Size]) -> list[Sample]:
                times = time_budgets(
                    engine,
                    batch=batch,
                    ks=some,
                    context=context,
                    repeats=grid.repeats,
                )
                return [
                    Sample(
                        ms=round(ms, 4),
                        batch=batch,
                        size=depth(k),
                        context=context,
                        drafts=total,
                    )
                    for (k, total), every in times.items()
                    for ms in every
                ]

            done = count - len(missing)
            self._fill("packed", missing, grid.ks, engine, time, done, count, progress)

    def _fill(
        self,
        kind: str,
        missing: Mapping[tuple[int, int], Sequence[Size]],
        sizes: Sequence[Size],
        engine: Engine,
        time: Callable[[int, int, Sequence[Size]], list[Sample]],
        done: int,
        count: int,
        progress: Progress | None,
    ) -> None:
        """Times what is missing of each context and batch, where there is room."""
        for (context, batch), some in missing.items():
            done += 1
            if some and fits(engine, batch=batch, gammas=sizes, context=context):
                self.samples[kind] += time(batch, context, some)
                self._write({"complete": False, "verify": []})
            elif some and (batch, context) not in self.left_out:
                self.left_out.append((batch, context))
            if progress is not None:
                progress(f"{kind}, batch {batch}, context {context}", done, count)

    def finish(self, more: Mapping[str, Any]) -> None:
        """Writes the whole of it, with what follows from it."""
        self._write({**more, "complete": True})

    def _write(self, more: Mapping[str, Any]) -> None:
        raw = {
            kind: [dataclasses.asdict(one) for one in samples]
            for kind, samples in self.samples.items()
        }
        content = {"format": 1, "kind": KIND, "made": self.made, **more, **raw}
        write_file(self.output, json.dumps(content, indent=1).encode() + b"\n")


def _server(
    target: Path,
    grid: Grid,
    sizes: Sequence[Size],
    options: Mapping[str, Any],
    palette: type[Palette] = Palette,
) -> Server:
    room = max(grid.contexts) + max(grid.ks) + 2
    most = max((*grid.ks, *grid.nodes))
    pages = -(-(max(grid.contexts) + most + SLACK) // 16)
    return serve(
        target,
        num_speculative_tokens=max(grid.ks),
        schedule=palette((0, *sizes)),
        max_batch=grid.max_batch,
        max_model_len=room,
        page_size=16,
        kv_pages=grid.kv_pages or grid.max_batch * pages,
        prefix_cache=False,
        **options,
    )
