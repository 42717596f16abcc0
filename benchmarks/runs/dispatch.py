"""Claim: the host adds little to a round.

Table: none in a paper. The shell reads round t after dispatching round t + 1, so host
work hides behind the device's; what does not hide is dispatch overhead.
Command: `python -m benchmarks.runs.dispatch`
Expected: under 5 % of a round at batch 1 on two cores of a server CPU. What the host
does while the device works counts too, so both figures are upper bounds: of the
engine's own counters, `dispatch_seconds` and `host_seconds` against those and
`wait_seconds`.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from benchmarks import claims, run

HOST = ("metrics.dispatch_seconds", "metrics.host_seconds")
WAIT, ROUNDS = "metrics.wait_seconds", "metrics.rounds"
GOAL = 0.95


def judge(result: dict[str, Any]) -> Iterator[claims.Claim]:
    """Microseconds of host time a round, and the share of a round that is device's."""
    groups: dict[tuple[str, int], list[dict[str, float]]] = {}
    for one in result["runs"]:
        place = groups.setdefault((one["contestant"], one["batch"]), [])
        place.append(one["counters"])
    for (name, batch), counters in groups.items():
        host = sum(one.get(key, 0.0) for one in counters for key in HOST)
        wait, rounds = (
            sum(one.get(key, 0.0) for one in counters) for key in (WAIT, ROUNDS)
        )
        yield claims.Claim(
            what=f"{name}, batch {batch}: host µs a round",
            value=1e6 * host / rounds if rounds else math.nan,
            goal=None,
        )
        yield claims.Claim(
            what=f"{name}, batch {batch}: share spent waiting for the device",
            value=wait / (host + wait) if host + wait else math.nan,
            goal=GOAL,
        )


def main(
    repeats: Annotated[int, typer.Option(help="Passes.")] = 2,
    batches: Annotated[str, typer.Option(help="Rows, comma-separated.")] = "1,4",
) -> None:
    """Reads the engine's counters over plain and look-up decoding."""
    config = run.Config(
        contestants=run.contestants(
            methods=("none", "ngram"), ks=(4,), dtypes=("float32", "bfloat16")
        ),
        prompts="mt_bench:4",
        batches=tuple(map(int, batches.split(","))),
        repeats=repeats,
    )
    claims.conclude("dispatch", config, judge)


if __name__ == "__main__":
    typer.run(main)
