"""The learning curve of a run, from its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw"]


def draw(path: str | Path, card: Mapping[str, Any]) -> None:
    """Draws loss and held-out acceptance by place over the tokens read.

    Args:
      path: .png, .svg or .pdf.
      card: of a run.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError(
            "a figure needs matplotlib: pip install 'jspec[bench]'"
        ) from error
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    points = card["curve"]
    learnt = [point for point in points if point["loss"] is not None]
    upper.plot([p["tokens"] for p in learnt], [p["loss"] for p in learnt], "k.-")
    upper.set(ylabel="loss", title=f"{card['method']}: {card['tokens']:,} tokens")
    for place in range(len(card["held_out_acceptance"])):
        shares = [
            (p["tokens"], p["held"]["right"][place] / p["held"]["inside"][place])
            for p in points
            if p["held"] is not None and p["held"]["inside"][place]
        ]
        if shares:
            lower.plot(*zip(*shares, strict=True), ".-", label=f"{place + 1}")
    lower.set(
        ylim=(0, 1),
        xlabel="tokens read in training",
        ylabel="held-out drafts right up to place",
    )
    lower.legend(title="place", ncols=4, fontsize=8)
    dated = {"Date": None} if Path(path).suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=dated)
