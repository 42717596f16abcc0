"""`jspec calibrate`: what rounds and passes take here, and the schedule that follows.

The rounds are the engine's own, compiled as for serving, timed over pages that hold
nothing in particular. A pass without a drafter is timed in an engine whose drafts are
given to it. What was measured is kept after every batch and context, and a later run
with the same models goes on from there.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jspec.checkpoint import read_config, read_manifest
from jspec.control import CostTable, Schedule, formats
from jspec.control.calibration import (
    Best,
    compare,
    constants,
    from_rounds,
    to_schedule,
)
from jspec.drafters.given import is_host
from jspec.drafters.ragged import Ragged
from jspec.server.measurements import Grid, Progress, Record
from jspec.server.methods import Asked
from jspec.server.schedule import fingerprint
from jspec.targets import resolve

__all__ = ["Calibration", "Grid", "calibrate", "export"]

GIVEN = "suffix"
"""A method without a pass of its own: what it drafts comes from the host."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured, and what follows.

    Attributes:
      rates: acceptance of each position that the schedule assumes.
      best: the best K of each point; of trees none, whose acceptance no rate says.
      schedule: the table of these.
      left_out: batches and contexts that the pages do not hold.
    """

    costs: CostTable
    rates: tuple[float, ...]
    best: tuple[Best, ...]
    schedule: Schedule | None
    left_out: tuple[tuple[int, int], ...]


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
    drafted = dict(method_options or {})
    if grid.nodes:
        _check_trees(name, drafting)
        drafted = {"tree_nodes": max(grid.nodes)} | drafted
    made = {
        "target": fingerprint(path),
        "drafter": fingerprint(source),
        "method": name,
        "options": drafted,
        "draft_sampling": draft_sampling,
        "verification": verification,
        "dtype": dtype or read_manifest(path)["dtype"],
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }
    record = Record(output, made)
    chooses = Ragged.of(drafting).chooses
    shared = {"verification": verification, "dtype": dtype}
    own = {
        "method": name,
        "drafter": drafter,
        "draft_sampling": draft_sampling,
        "method_options": drafted or None,
    }
    count = (3 if chooses else 2) * len(list(grid.points))
    budgets = own
    if chooses:
        own = own | {"method_options": _without_budgets(drafted)}
    for kind, sizes, options in (
        ("rounds", (0, *grid.sizes), own),
        ("passes", grid.ks, {"method": GIVEN}),
    ):
        record.measure(kind, sizes, grid, path, options | shared, count, progress)
    if chooses:
        record.measure_budgets(grid, path, budgets | shared, count, progress)
    calibration = _conclude(record, grid, rates, drafting.about.passes, path)
    record.finish(
        {
            **calibration.costs.to_json(),
            **_assumed(calibration),
            "left_out": [list(one) for one in calibration.left_out],
        }
    )
    return calibration


def export(calibration: Calibration, output: Path) -> list[Path]:
    """Writes the schedule as vLLM, SGLang and depthchart read it, beside `output`.

    SGLang's file knows no context: it has the K of the middle one. Trees have no place
    in these files: nothing is written of them.
    """
    if calibration.schedule is None:
        return []
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


def _conclude(
    record: Record, grid: Grid, rates: tuple[float, ...], passes: str, target: Path
) -> Calibration:
    rounds, given = record.samples["rounds"], record.samples["passes"]
    if not rounds:
        raise ValueError(f"kv_pages {grid.kv_pages} hold no point of the grid")
    palette = (0, *sorted(grid.ks))
    costs = from_rounds(rounds, given, record.made, packed=record.samples["packed"])
    left_out = tuple(record.left_out)
    if grid.nodes:
        return Calibration(
            costs=costs, rates=rates, best=(), schedule=None, left_out=left_out
        )
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
        left_out=left_out,
    )


def _without_budgets(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of rounds that verify all they draft: what a draft costs is told by these."""
    ragged = ("ragged", "ragged_budget")
    return {name: x for name, x in options.items() if name not in ragged} or None


def _assumed(calibration: Calibration) -> dict[str, Any]:
    """What follows from costs and an assumed acceptance; of trees nothing does."""
    if calibration.schedule is None:
        return {}
    return {
        "acceptance": list(calibration.rates),
        "best": [dataclasses.asdict(one) for one in calibration.best],
        "schedule": [list(entry) for entry in calibration.schedule.entries()],
    }


def _check_trees(method: str, drafter: Any) -> None:
    if not (drafter.branching and hasattr(drafter, "tree_nodes")):
        raise ValueError(
            f"method {method!r} with these options drafts no trees of a chosen number "
            "of nodes: leave out --nodes, or let it branch (--option tree_width=4, "
            "Medusa: --option widths=[4,2,1])"
        )


def _rates(alpha: Sequence[float], k: int) -> tuple[float, ...]:
    if not alpha or not all(0 <= one <= 1 for one in alpha):
        raise ValueError(f"alpha must be probabilities, not {list(alpha)}")
    return (*alpha, *([alpha[-1]] * k))[:k]
