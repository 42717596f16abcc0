"""What costs measured on a device say: c, T*, and up to which batch drafting pays."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.spread import crossing

__all__ = ["ALPHAS", "conclude", "figure", "of_method", "reach", "table"]

ALPHAS = (0.5, 0.7, 0.9)
"""Acceptances that are assumed."""


def conclude(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each target and method whose batch 1 was measured: `of_method`."""
    found = []
    for target in result["settings"]["targets"]:
        its = [one for one in result["measured"] if one["target"] == target]
        for method in result["settings"]["methods"]:
            said = of_method(its, method, result["settings"])
            if said is not None:
                found.append({"target": target, "method": method, **said})
    return found


def of_method(
    measured: Sequence[Mapping[str, Any]], method: str, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What one target's measurements say of a method; `None`: batch 1 is missing.

    Args:
      measured: jobs and what they gave.
      method: which.
      settings: as in the result.

    Returns:
      `c` of a pass, `t_star` (`None`: no step was slower for its tokens), the batch up
      to which drafting gains, by assumed acceptance (`closed_form`; `measured`, `None`:
      at all of them, 0: at none), `gains` by batch at the acceptance of the whole
      rounds, and `check`: of each whole round, measured ÷ derived milliseconds.
    """
    from benchmarks.drafting import about
    from jspec.control import economics
    from jspec.control.calibration import constants
    from jspec.control.costs import CostTable, Sample

    k = settings["k"]
    ms = {
        (one["kind"], one["k"], one["batch"]): one["ms"]
        for one in measured
        if one.get("method", method) == method
    }
    every = {batch for _, _, batch in ms}
    needed = (("pass", 0), ("pass", k), ("drafts", k))
    batches = sorted(b for b in every if all((*one, b) in ms for one in needed))
    if 1 not in batches:
        return None
    costs = CostTable(
        verify=[
            Sample(ms=ms["pass", drafted, b], batch=b, size=b * (drafted + 1))
            for b in batches
            for drafted in (0, k)
        ],
        draft=[Sample(ms=ms["drafts", k, b], batch=b, size=k) for b in batches],
    )
    passes = about(method).passes
    known = constants(costs, [0, k], passes)
    finite = math.isfinite(known.t_star)

    def gains(alpha: float) -> dict[int, float]:
        tokens = economics.emitted(alpha, k)
        return {
            b: tokens * costs.round_ms(b, 0) / costs.round_ms(b, k) for b in batches
        }

    def closed(alpha: float) -> float | None:
        if not finite:
            return None
        found = economics.break_even_batch(
            known.t_star, alpha, k, known.c, known.parallel
        )
        return max(0.0, found)

    return {
        "c": known.c,
        "passes": economics.invocations(passes, k),
        "t_star": known.t_star if finite else None,
        "closed_form": {str(alpha): closed(alpha) for alpha in ALPHAS},
        "measured": {str(alpha): reach(gains(alpha)) for alpha in ALPHAS},
        "gains": {str(b): gain for b, gain in gains(settings["alpha"]).items()},
        "check": {
            str(b): ms["round", k, b] / costs.round_ms(b, k)
            for b in batches
            if ("round", k, b) in ms
        },
    }


def reach(gains: Mapping[int, float]) -> float | None:
    """The batch up to which all gain, linear in between; `None`: all; 0: none."""
    batches = sorted(gains)
    if gains[batches[0]] < 1:
        return 0.0
    found = crossing(1.0, batches, [gains[batch] for batch in batches])
    return None if math.isnan(found) else found


def table(result: Mapping[str, Any]) -> str:
    """Markdown: a line a target and method."""
    alpha = str(result["settings"]["alpha"])
    most = result["settings"]["batches"][-1]
    lines = [
        f"{result['device']}, jax {result['jax']}, bfloat16, K = "
        f"{result['settings']['k']}, acceptance assumed; weights: "
        + ", ".join(f"{name} {kind}" for name, kind in result["weights"].items()),
        "",
        f"| target | method | passes | c | T* | pays up to, α = {alpha}, closed form | "
        "on measured costs | whole rounds, measured ÷ derived |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in result["concluded"]:
        t_star = "-" if one["t_star"] is None else f"{one['t_star']:.0f}"
        closed, measured = (one[way][alpha] for way in ("closed_form", "measured"))
        check = statistics.median(one["check"].values()) if one["check"] else math.nan
        lines.append(
            f"| {one['target']} | {one['method']} | {one['passes']} | {one['c']:.3f} | "
            f"{t_star} | {'-' if closed is None else f'{closed:.0f}'} | "
            f"{f'over {most}' if measured is None else f'{measured:.0f}'} | "
            f"{'-' if math.isnan(check) else f'{check:.2f}'} |"
        )
    return "\n".join(lines)


def figure(concluded: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Gains over the batch, a panel a target."""
    from matplotlib.figure import Figure

    targets = list(dict.fromkeys(one["target"] for one in concluded))
    drawing = Figure(figsize=(5.2 * len(targets), 3.8), layout="constrained")
    panels = drawing.subplots(1, len(targets), squeeze=False)[0]
    for axes, target in zip(panels, targets, strict=True):
        for one in concluded:
            if one["target"] == target:
                batches = sorted(map(int, one["gains"]))
                gains = [one["gains"][str(b)] for b in batches]
                axes.plot(batches, gains, "o-", label=f"{one['method']}")
        axes.axhline(1.0, color="0.6")
        axes.set(xscale="log", xlabel="batch", ylabel="gain, derived", title=target)
        axes.legend(fontsize=7)
    drawing.savefig(path, metadata={"Date": None})
