"""Claim: on the same texts, every drafter of the zoo learns to draft, and how fast.

Table: none in a paper; EAGLE-3 (arXiv:2503.01840), figure 1, draws what data gives.
Command: `python -m benchmarks.runs.learning`
Expected: held-out tau at K = 4 of the shipped drafters after 400,000 tokens: at least
2.0 for EAGLE-3, 1.8 for DFlash, DSpark and Frozen-KV MTP, no goal for the others. No
spread: one seed each.

Nothing is measured here: the cards in `jspec/zoo` hold what `jspec train` examined, on
32 texts that no drafter was trained on. What twice the tokens would give is a line
through the last points over the logarithm of the tokens, so it is derived, and rough:
the learning rate falls while the curve rises.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.claims import RESULTS, Claim, record
from benchmarks.report import save_figure
from jspec import zoo

NAME, K, LAST = "learning", 4, 3
GOALS = {"eagle3": 2.0, "dflash": 1.8, "dspark": 1.8, "frozen_kv_mtp": 1.8}


def taus(card: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Tokens read, and tau at K = 4 of the held-out texts, at every examination."""
    found = []
    for point in card["curve"]:
        held = point["held"]
        if held is not None and point["tokens"]:
            pairs = zip(held["right"][:K], held["inside"][:K], strict=True)
            shares = (right / inside if inside else 0.0 for right, inside in pairs)
            found.append((point["tokens"], 1 + sum(shares)))
    return found


def by_doubling(points: Sequence[tuple[int, float]]) -> float:
    """What twice the tokens add: the slope of the last points by least squares."""
    some = [(math.log2(tokens), tau) for tokens, tau in points[-LAST:]]
    if len(some) < 2:
        return math.nan
    x, y = (sum(values) / len(some) for values in zip(*some, strict=True))
    over = sum((a - x) ** 2 for a, _ in some)
    return sum((a - x) * (b - y) for a, b in some) / over


def collect(target: str) -> dict[str, dict[str, Any]]:
    """The curves of a target's drafters."""
    found = {}
    for method in zoo.shipped().get(target, ()):
        card = zoo.card(target, method)
        points = taus(card)
        found[method] = {
            "parameters": card["parameters"],
            "tokens": card["tokens"],
            "acceptance": list(card["held_out_acceptance"]),
            "curve": [list(point) for point in points],
            "tau": points[-1][1],
            "by_doubling": by_doubling(points),
        }
    return found


def judge(found: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Tau of every method against its goal, if it has one."""
    return [
        Claim(
            what=f"held-out tau of {method} at K = {K}",
            value=one["tau"],
            goal=GOALS.get(method),
            note=f"{one['by_doubling']:+.2f} by twice the tokens (derived)",
        )
        for method, one in found.items()
    ]


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a method, the best first."""
    lines = [
        f"| method | parameters | tokens | acceptance up to 1, 2, 3, 4 | tau, K = {K} "
        "| by twice the tokens |",
        "|---|---|---|---|---|---|",
    ]
    for method, one in sorted(found.items(), key=lambda item: -item[1]["tau"]):
        shares = " ".join(f"{share:.2f}" for share in one["acceptance"][:K])
        lines.append(
            f"| `{method}` | {one['parameters'] / 1e6:.1f} M | {one['tokens']:,} "
            f"| {shares} | {one['tau']:.2f} | {one['by_doubling']:+.2f} |"
        )
    return "\n".join(lines)


def figure(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Tau over the tokens read, a line a method."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 4.6), layout="constrained")
    axes = drawing.add_subplot()
    for method, one in sorted(found.items(), key=lambda item: -item[1]["tau"]):
        axes.plot(*zip(*one["curve"], strict=True), ".-", label=method)
    axes.set(
        xlabel="tokens read in training",
        ylabel=f"tau of held-out texts, K = {K}, greedy",
    )
    axes.set_xscale("log")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    save_figure(drawing, path)


def main(
    target: Annotated[str, typer.Option(help="Whose drafters.")] = "smollm2-135m",
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
) -> None:
    """Reads the cards, writes JSON, table and figure, prints the claims."""
    found = collect(target)
    if not found:
        raise typer.BadParameter(f"no drafter is shipped for {target!r}")
    record(
        NAME,
        {"target": target, "methods": found},
        judge(found),
        draw=lambda path: figure(found, path),
        table=table(found),
        results=out,
    )


if __name__ == "__main__":
    typer.run(main)
