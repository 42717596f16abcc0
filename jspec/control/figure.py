"""Figures: where speculation begins to pay, and the best K by batch and context."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jspec.control import economics
from jspec.control.calibration import Best

__all__ = ["draw", "draw_best"]


def draw(
    path: str | Path,
    *,
    k: int,
    points: Sequence[tuple[str, float, float]] = (),
    speedups: Sequence[float] = (1.25, 1.5, 2.0, 2.5, 3.0),
) -> None:
    """Draws the break-even curve at batch 1, curves of equal speed-up, and the points.

    Above the curve, towards more acceptance and less cost, a round beats plain
    decoding.

    Args:
      path: .png, .svg or .pdf.
      k: drafted tokens.
      points: a label, the cost of a round's drafts in target steps, and an acceptance.
      speedups: of the other curves.
    """
    figure = _figure(6.4, 4.4)
    axes = figure.add_subplot()
    most = max([1.0, *(1.1 * cost for _, cost, _ in points)])
    costs = [most * step / 200 for step in range(201)]
    for speedup in (1.0, *speedups):
        curve = [(c, economics.alpha_for(speedup, k, c)) for c in costs]
        curve = [(c, alpha) for c, alpha in curve if alpha is not None]
        if not curve:
            continue
        even = speedup == 1.0
        axes.plot(
            [c for c, _ in curve],
            [alpha for _, alpha in curve],
            color="black" if even else "0.6",
            linewidth=2.0 if even else 0.8,
            label="break-even" if even else None,
        )
        if not even:
            axes.annotate(f"{speedup:g}×", curve[len(curve) // 2], color="0.4", size=8)
    for label, cost, alpha in points:
        axes.plot([cost], [alpha], "o", label=label)
    axes.set(
        xlim=(0, most),
        ylim=(0, 1),
        xlabel="cost of a round's drafts (target steps)",
        ylabel="acceptance α",
        title=f"K = {k}, batch 1: above the line, speculation pays",
    )
    axes.legend(loc="lower right")
    _save(figure, path)


def draw_best(path: str | Path, best: Sequence[Best], *, title: str = "") -> None:
    """Draws three maps over batch and context: K predicted, K measured, the gain.

    Args:
      path: .png, .svg or .pdf.
      best: every batch and context.
      title: over all of it.
    """
    batches = sorted({one.batch for one in best})
    contexts = sorted({one.context for one in best})
    at = {(one.context, one.batch): one for one in best}
    most = max(max(one.predicted, one.measured) for one in best)
    figure = _figure(2.4 + 2.2 * len(batches) ** 0.7 * 1.6, 1.6 + 0.55 * len(contexts))
    panels: list[tuple[str, str, str, float]] = [
        ("predicted", "best K, closed form", "d", most),
        ("measured", "best K, measured costs", "d", most),
        ("gain", "gain at measured K", ".2f", max(one.gain for one in best)),
    ]
    for axes, (field, name, form, high) in zip(
        figure.subplots(1, 3, sharey=True), panels, strict=True
    ):
        values = [
            [getattr(at[context, batch], field) for batch in batches]
            for context in contexts
        ]
        low = 1.0 if field == "gain" else 0
        axes.imshow(values, cmap="Blues", vmin=low, vmax=max(high, low + 1e-3) * 1.4)
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                axes.text(column, row, format(value, form), ha="center", va="center")
        axes.set(
            xticks=range(len(batches)),
            xticklabels=batches,
            yticks=range(len(contexts)),
            yticklabels=contexts,
            xlabel="batch",
            title=name,
        )
        axes.title.set_size(10)
    figure.axes[0].set_ylabel("context")
    figure.suptitle(title, size=10)
    _save(figure, path)


def _save(figure: Any, path: str | Path) -> None:
    """The same figure is the same file: no date stands in it."""
    dated = {"Date": None} if Path(path).suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=dated)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError(
            "a figure needs matplotlib: pip install 'jspec[bench]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
