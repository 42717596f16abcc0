"""Claim: as load grows each controller finds the K that is best there.

Table: the sweep of concurrency that SGLang's adaptive schedule was made for; there on a
GPU, where speculation stops to pay at dozens of requests. Here at a few.
Command: `python -m benchmarks.runs.control_lab` (`jspec lab -o lab.json` alone)
Expected: goodput ÷ the best static K ≥ 0.97 at 1, 8, 32 and 64 requests at once. The
embedded model with prompt look-up, in its own dtype, on two cores of a server CPU. Two
readings of each, the second in the reverse order; a ratio is that of their geometric
means.
"""

import time
from typing import Annotated, Any

import typer

from benchmarks.claims import Claim, record
from jspec.server import lab
from jspec.server.lab_table import show

NAME = "control_lab"


def judge(result: dict[str, Any]) -> list[Claim]:
    """Goodput against the best static K at each load, and where each K breaks even."""
    claims = []
    for load in result["loads"]:
        rates = {name: one["tokens_per_second"] for name, one in load["read"].items()}
        static = {name: rate for name, rate in rates.items() if name.startswith("K=")}
        best = max(static, key=static.__getitem__)
        settled = load["read"]["goodput"]["settled"]
        claims.append(
            Claim(
                what=f"{load['concurrency']} at once: goodput ÷ best static K",
                value=rates["goodput"] / static[best],
                goal=0.97,
                note=f"best {best}, settled on K={settled}",
            )
        )
    for k, reach in result["break_even"].items():
        most = result["loads"][-1]["concurrency"]
        claims.append(
            Claim(
                what=f"K = {k}: requests at once up to which it gains",
                value=float(most) if reach is None else reach,
                goal=None,
                note="the most that was measured" if reach is None else "",
            )
        )
    return claims


def main(
    tokens: Annotated[int, typer.Option(help="Of each row and measurement.")] = 24,
    concurrency: Annotated[str, typer.Option(help="Requests at once.")] = "1,8,32,64",
    ks: Annotated[str, typer.Option(help="Static K beside 0.")] = "1,3,5",
    passes: Annotated[int, typer.Option(help="Readings of each.")] = 2,
    method: Annotated[str, typer.Option(help="Without weights.")] = "ngram",
) -> None:
    """Runs the lab and writes JSON and table."""
    started = time.perf_counter()

    def progress(what: str, done: int, count: int) -> None:
        print(f"{time.perf_counter() - started:.0f} s: {what} ({done}/{count})")

    result = lab.sweep(
        "smollm2-135m",
        method=method,
        ks=[int(one) for one in ks.split(",")],
        concurrency=[int(one) for one in concurrency.split(",")],
        tokens=tokens,
        passes=passes,
        progress=progress,
    )
    show(result)
    seconds = round(time.perf_counter() - started)
    record(NAME, result | {"seconds": seconds}, judge(result))


if __name__ == "__main__":
    typer.run(main)
