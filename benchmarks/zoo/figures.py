"""Figures of a zoo run, SVG and PNG: functions of its JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import save_figure
from benchmarks.zoo import summary


def draw(result: Mapping[str, Any], folder: Path, name: str = "zoo") -> list[Path]:
    """Speed-up by method and kind, acceptance by position, tau over K."""
    from matplotlib.figure import Figure

    alone = [
        cell
        for cell in result["cells"]
        if cell["batch"] == 1 and cell["temperature"] == 0
    ]
    if not alone:
        return []
    written = []
    for what, paint in (
        ("speedup", _speedups),
        ("acceptance", _acceptance),
        ("tau", _taus),
    ):
        drawing = Figure(layout="constrained")
        paint(drawing, alone)
        for suffix in (".svg", ".png"):
            path = folder / f"{name}_{what}{suffix}"
            save_figure(drawing, path)
            written.append(path)
    return written


def _speedups(drawing: Any, cells: list[dict[str, Any]]) -> None:
    """A row a method at its fastest K; a mark a kind, a bar for all of them."""
    best = sorted(summary.best(summary.lines(cells)), key=lambda line: line.speedup)
    drawing.set_size_inches(8, 1.2 + 0.32 * len(best))
    axes = drawing.subplots()
    axes.axvline(1, color="0.7", linewidth=0.8)
    for y, line in enumerate(best):
        axes.barh(y, line.speedup, height=0.6, color="0.88")
        if line.interval is not None:
            axes.plot(line.interval, [y, y], color="0.4", linewidth=2)
    for kind, mark in zip(
        dict.fromkeys(cell["kind"] for cell in cells), "o^sDvPX", strict=False
    ):
        own = {
            (line.name, line.k): line.speedup
            for line in summary.lines(cells, lambda c, kind=kind: c["kind"] == kind)
        }
        at = [
            (own[line.name, line.k], y)
            for y, line in enumerate(best)
            if (line.name, line.k) in own
        ]
        axes.plot(*zip(*at, strict=True), mark, markersize=5, label=kind)
    labels = [f"{line.name}, K = {line.k}" if line.k else line.name for line in best]
    axes.set_yticks(range(len(best)), labels)
    axes.set_xlabel("speed-up over plain decoding, greedy, batch 1")
    axes.legend(fontsize=8)


def _acceptance(drawing: Any, cells: list[dict[str, Any]]) -> None:
    """A line a method at its largest K."""
    found = [line for line in summary.lines(cells) if line.accepted]
    drawing.set_size_inches(8, 4.6)
    axes = drawing.subplots()
    for at, name in enumerate(dict.fromkeys(line.name for line in found)):
        line = max((one for one in found if one.name == name), key=lambda one: one.k)
        places = range(1, len(line.accepted) + 1)
        axes.plot(places, line.accepted, _style(at), markersize=4, label=name)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of offered drafts kept")
    axes.set_ylim(0, 1)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=7, ncols=2)


def _taus(drawing: Any, cells: list[dict[str, Any]]) -> None:
    """A line a method over K."""
    found = [line for line in summary.lines(cells) if line.k and line.tau is not None]
    drawing.set_size_inches(8, 4.6)
    axes = drawing.subplots()
    for at, name in enumerate(dict.fromkeys(line.name for line in found)):
        own = sorted((one for one in found if one.name == name), key=lambda one: one.k)
        axes.plot(
            [one.k for one in own],
            [one.tau for one in own],
            _style(at),
            markersize=4,
            label=name,
        )
    axes.set_xlabel("K, drafted tokens of a round")
    axes.set_ylabel("tau, delivered tokens of a round")
    axes.set_xticks(sorted({one.k for one in found}))
    axes.legend(fontsize=7, ncols=2)


def _style(at: int) -> str:
    """A mark and a stroke that repeat later than the colours do."""
    return "o^sDvPX"[at % 7] + ("-", "--", ":")[at // 7 % 3]
