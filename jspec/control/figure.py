"""The map of speculation: acceptance over drafting cost, and where it begins to pay."""

from collections.abc import Sequence
from pathlib import Path

from jspec.control import economics

__all__ = ["draw"]


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
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError(
            "a figure needs matplotlib: pip install 'jspec[bench]'"
        ) from error
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
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
    figure.savefig(path, dpi=150)
