"""`jspec calibrate`: what rounds and passes take here, and the schedule that follows.

The rounds are the engine's own, compiled as for serving, timed over pages that hold
nothing in particular. A pass without a drafter is timed in an engine whose drafts are
given to it. What was measured is kept after every batch and context, and a later run
with the same models goes on from there.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jspec.checkpoint import read_config, read_manifest
from jspec.control import CostTable, Sample, Schedule, formats
from jspec.control.base import Counts, natural
from jspec.control.calibration import (
    Best,
    compare,
    constants,
    from_rounds,
    to_schedule,
)
from jspec.control.formats import load
from jspec.drafters.given import is_host
from jspec.engine.buckets import powers
from jspec.engine.probe import fits, time_rounds
from jspec.server.local import Server, serve
from jspec.server.methods import Asked
from jspec.server.schedule import fingerprint
from jspec.targets import resolve

__all__ = ["Calibration", "Grid", "Palette", "calibrate", "export"]

GIVEN = "suffix"
"""A method without a pass of its own: what it drafts comes from the host."""

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
      contexts: tokens in the cache of each row.
      repeats: timed rounds of each.
      kv_pages: pages of the cache; points that need more are left out. `None`: enough.
    """

    max_batch: int = 8
    ks: tuple[int, ...] = (1, 2, 4, 8)
    contexts: tuple[int, ...] = (128, 1024, 4096)
    repeats: int = 5
    kv_pages: int | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        for what, value in (("max_batch", self.max_batch), ("repeats", self.repeats)):
            natural(value, what, 1)
        for what, values in (("K", self.ks), ("context", self.contexts)):
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{what} values must be some, and distinct: {values}")
            for value in values:
                natural(value, what, 1)

    @property
    def points(self) -> Iterator[tuple[int, int]]:
        """Context and batch of each point, the quick ones first."""
        for context in sorted(self.contexts):
            for batch in powers(self.max_batch):
                yield context, batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured, and what follows.

    Attributes:
      rates: acceptance of each position that the schedule assumes.
      left_out: batches and contexts that the pages do not hold.
    """

    costs: CostTable
    rates: tuple[float, ...]
    best: tuple[Best, ...]
    schedule: Schedule
    left_out: tuple[tuple[int, int], ...]


class Palette:
    """A controller whose K others set; all of its K values are compiled."""

    def __init__(self, ks: Iterable[int]) -> None:
        """Begins at the smallest."""
        self.palette = tuple(sorted(set(ks)))
        self.now = self.palette[0]

    def k(self, batch: int, context: int = 0) -> int:
        """What it was set to."""
        return self.now

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Learns nothing."""


type Progress = Callable[[str, int, int], None]


def calibrate(
    output: Path,
    target: str | Path,
    *,
    method: str = "auto",
    drafter: str | Path | None = None,
    draft_sampling: str = "auto",
    method_options: Mapping[str, Any] | None = None,
    verification: str = "standard",
    dtype: str | None = None,
    grid: Grid | None = None,
    alpha: Sequence[float] = (0.7,),
    progress: Progress | None = None,
) -> Calibration:
    """Measures what is not in `output` yet, and writes it there with the schedule.

    Args:
      output: a JSON file: a cost table (`jspec.control.CostTable`), with more.
      target: as for `jspec.serve`, like what follows.
      method: which drafts on the device.
      drafter: the method's weights.
      draft_sampling: how it drafts.
      method_options: its fields.
      verification: which drafts are kept; rows are greedy.
      dtype: of the weights.
      grid: what to measure.
      alpha: acceptance by position, for the schedule; the last goes on.
      progress: told what was measured, how many of how many points.

    Raises:
      ValueError: the arguments cannot work, or `output` holds something else.
    """
    grid = grid or Grid()
    rates = _rates(alpha, max(grid.ks))
    path = resolve(target, progress=False)
    source = None if drafter is None else resolve(drafter, progress=False)
    asked = Asked(
        method=method,
        drafter=drafter,
        num_speculative_tokens=max(grid.ks),
        draft_sampling=draft_sampling,
        options=method_options,
    )
    name, drafting = asked.build(source)
    if is_host(drafting) or drafting.about.topology == "none":
        raise ValueError(
            f"method {name!r} drafts nothing on the device: there is nothing to measure"
        )
    made = {
        "target": fingerprint(path),
        "drafter": fingerprint(source),
        "method": name,
        "options": dict(method_options or {}),
        "draft_sampling": draft_sampling,
        "verification": verification,
        "dtype": dtype or read_manifest(path)["dtype"],
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }
    record = _Record(output, made)
    shared = {"verification": verification, "dtype": dtype}
    own = {
        "method": name,
        "drafter": drafter,
        "draft_sampling": draft_sampling,
        "method_options": method_options,
    }
    count = 2 * len(list(grid.points))
    for kind, ks, options in (
        ("rounds", (0, *grid.ks), own),
        ("passes", grid.ks, {"method": GIVEN}),
    ):
        record.measure(kind, ks, grid, path, options | shared, count, progress)
    calibration = _conclude(record, grid, rates, drafting.about.passes, path)
    record.finish(calibration)
    return calibration


def export(calibration: Calibration, output: Path) -> list[Path]:
    """Writes the schedule as vLLM, SGLang and depthchart read it, beside `output`.

    SGLang's file knows no context: it has the K of the middle one.
    """
    contexts = sorted({one.context for one in calibration.best})
    middle = contexts[len(contexts) // 2]
    written = []
    forms: tuple[tuple[formats.Form, int | None], ...] = (
        ("vllm", None),
        ("sglang", middle),
        ("depthchart", None),
    )
    for form, context in forms:
        path = output.with_suffix(f".{form}.json")
        formats.save(calibration.schedule, path, form, context=context)
        written.append(path)
    return written


class _Record:
    """The file: what was measured, point by point."""

    def __init__(self, output: Path, made: Mapping[str, Any]) -> None:
        self.output = output
        self.made = dict(made)
        self.samples: dict[str, list[Sample]] = {"rounds": [], "passes": []}
        self.left_out: list[tuple[int, int]] = []
        if not output.exists():
            return
        content = load(output)
        if not isinstance(content, Mapping) or content.get("kind") != "calibration":
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
        ks: Sequence[int],
        grid: Grid,
        target: Path,
        options: Mapping[str, Any],
        count: int,
        progress: Progress | None,
    ) -> None:
        """Times what is missing of one kind, in one server."""
        known = {(one.context, one.batch, one.size) for one in self.samples[kind]}

        def size(batch: int, k: int) -> int:
            return k if kind == "rounds" else batch * (k + 1)

        missing = {
            (context, batch): [
                k for k in ks if (context, batch, size(batch, k)) not in known
            ]
            for context, batch in grid.points
        }
        done = 0 if kind == "rounds" else count // 2
        if not any(missing.values()):
            return
        with _server(target, grid, options) as server:
            engine = server._engine
            for (context, batch), gammas in missing.items():
                done += 1
                if gammas and fits(engine, batch=batch, gammas=ks, context=context):
                    times = time_rounds(
                        engine,
                        batch=batch,
                        gammas=gammas,
                        context=context,
                        repeats=grid.repeats,
                    )
                    self.samples[kind] += [
                        Sample(
                            ms=round(ms, 4),
                            batch=batch,
                            size=size(batch, k),
                            context=context,
                        )
                        for k, every in times.items()
                        for ms in every
                    ]
                    self._write({"complete": False, "verify": []})
                elif gammas:
                    self.left_out.append((batch, context))
                if progress is not None:
                    what = f"{kind}, batch {batch}, context {context}"
                    progress(what, done, count)

    def finish(self, found: Calibration) -> None:
        """Writes the whole of it."""
        self._write(
            found.costs.to_json()
            | {
                "complete": True,
                "acceptance": list(found.rates),
                "best": [dataclasses.asdict(one) for one in found.best],
                "schedule": [list(entry) for entry in found.schedule.entries()],
                "left_out": [list(one) for one in found.left_out],
            }
        )

    def _write(self, more: Mapping[str, Any]) -> None:
        raw = {
            kind: [dataclasses.asdict(one) for one in samples]
            for kind, samples in self.samples.items()
        }
        content = {"format": 1, "kind": "calibration", "made": self.made} | more | raw
        partial = self.output.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        os.replace(partial, self.output)


def _server(target: Path, grid: Grid, options: Mapping[str, Any]) -> Server:
    room = max(grid.contexts) + max(grid.ks) + 2
    pages = -(-(max(grid.contexts) + max(grid.ks) + SLACK) // 16)
    return serve(
        target,
        num_speculative_tokens=max(grid.ks),
        schedule=Palette((0, *grid.ks)),
        max_batch=grid.max_batch,
        max_model_len=room,
        page_size=16,
        kv_pages=grid.kv_pages or grid.max_batch * pages,
        prefix_cache=False,
        **options,
    )


def _conclude(
    record: _Record, grid: Grid, rates: tuple[float, ...], passes: str, target: Path
) -> Calibration:
    rounds, given = record.samples["rounds"], record.samples["passes"]
    if not rounds:
        raise ValueError(f"kv_pages {grid.kv_pages} hold no point of the grid")
    palette = (0, *sorted(grid.ks))
    costs = from_rounds(rounds, given, record.made)
    batches = sorted({one.batch for one in rounds})
    contexts = sorted({one.context for one in rounds})
    found = constants(costs, palette, passes)
    reach = found.t_star if math.isfinite(found.t_star) else None
    costs.made["closed_form"] = dataclasses.asdict(found) | {"t_star": reach}
    best = compare(
        costs, rates, palette, batches=batches, contexts=contexts, passes=passes
    )
    return Calibration(
        costs=costs,
        rates=rates,
        best=tuple(best),
        schedule=to_schedule(best, max_model_len=read_config(target).max_position),
        left_out=tuple(record.left_out),
    )


def _rates(alpha: Sequence[float], k: int) -> tuple[float, ...]:
    if not alpha or not all(0 <= one <= 1 for one in alpha):
        raise ValueError(f"alpha must be probabilities, not {list(alpha)}")
    return (*alpha, *(alpha[-1:] * k))[:k]
