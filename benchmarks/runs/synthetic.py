"""Claim: the economics foresee the engine's speed at every K and acceptance.

Table: none in a paper; Leviathan et al. 2023 compare theorem 3.8 with walltimes of some
tasks (their table 2), where acceptance is what it happens to be. Here a coin sets it.
Command: `python -m benchmarks.runs.synthetic` (`--quick`: fewer rates and K)
Expected: tokens/s foreseen from measured costs of rounds, against tokens/s that the
engine reaches at acceptance 0.3, 0.6 and 0.9 and K = 1, 2, 4 and 7, for a chain
(EAGLE-3) and a block (DFlash): median error at most 0.05, worst at most 0.15. The
closed form, which takes a pass over K + 1 tokens for as dear as a step, is stated
beside it without a goal: on a CPU such a pass costs more. Two cores of a server CPU.

Rounds are timed alone and passes in a server whose drafts are given to it, before any
text; plain decoding's speed is measured in the same turns as each K's. A coin that was
kind for some hundred rounds is no error of the economics, so the error is also stated
at the tokens a round that it gave. Untrained drafters cost what trained ones do.
"""

import contextlib
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import drafting, spread
from benchmarks.claims import RESULTS, Claim, record
from benchmarks.report import save_figure
from jspec.control import CostTable, economics
from jspec.control.calibration import constants

NAME = "synthetic"
FORESEEN = {
    "closed form": "steps of one cost",
    "with T*": "steps that cost more from T* tokens on",
    "measured rounds": "every round as timed",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
      methods: whose rounds.
      ks: drafted tokens.
      rates: acceptance.
      tokens: of one reading.
      passes: turns that count.
      repeats: timed rounds of each K.
    """

    methods: tuple[str, ...] = ("eagle3", "dflash")
    ks: tuple[int, ...] = (1, 2, 4, 7)
    rates: tuple[float, ...] = (0.3, 0.6, 0.9)
    tokens: int = 128
    passes: int = 3
    repeats: int = 20


QUICK = Settings(ks=(2, 4), rates=(0.6,), tokens=64, passes=2, repeats=10)
PROMPT = "Explain in three sentences why the sky is blue."


def measure(settings: Settings, target: Any = drafting.TARGET) -> dict[str, Any]:
    """Costs of rounds, then the speed of every K at every rate, in turns."""
    began = time.perf_counter()
    most = max(settings.ks)
    room = settings.tokens * (most + 2) + 128
    cells: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        origin, tables, servers = {}, {}, {}
        rule = drafting.steady(settings.rates[0], most)
        context = 64 + settings.tokens // 2
        given = drafting.serve(
            target, drafting.GIVEN, settings.ks, rule=rule, room=room
        )
        with given.server:
            passes = given.time(batch=1, context=context, repeats=settings.repeats)
        for method in settings.methods:
            drafter, origin[method] = drafting.drafter_of(method, target, folder)
            for rate in settings.rates:
                one = drafting.serve(
                    target,
                    method,
                    settings.ks,
                    drafter=drafter,
                    rule=drafting.steady(rate, most),
                    room=room,
                )
                servers[method, rate] = stack.enter_context(one.server), one
                if method not in tables:
                    rounds = one.time(
                        batch=1, context=context, repeats=settings.repeats
                    )
                    tables[method] = drafting.costs(rounds, passes, context=context)
        for turn, (key, (_, one)) in spread.turns(
            list(servers.items()), settings.passes
        ):
            for k in (0, *settings.ks):
                found = one.read(k, [PROMPT], settings.tokens)
                if turn:
                    cells.setdefault((*key, k), []).append(found)
    return {
        "settings": dataclasses.asdict(settings),
        "target": str(target),
        "drafters": origin,
        "costs": {name: table.to_json() for name, table in tables.items()},
        "cells": [
            {"method": method, "rate": rate, "k": k, "read": read}
            for (method, rate, k), read in cells.items()
        ],
        "seconds": round(time.perf_counter() - began),
    }


def foresee(costs: CostTable, method: str, ks: Sequence[int]) -> dict[str, Any]:
    """By name, what a K costs in target steps."""
    passes = drafting.about(method).passes
    known = constants(costs, ks, passes)
    context = costs.samples["verify"][0].context
    step = costs.round_ms(1, 0, context)
    return {
        "closed form": lambda k: 1 + economics.drafting(k, known.c, known.parallel),
        "with T*": lambda k: known.cost(1, k),
        "measured rounds": lambda k: costs.round_ms(1, k, context) / step,
    }


def errors(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of every cell with drafts and every way to foresee it."""
    plain = {
        (cell["method"], cell["rate"]): _median(cell["read"], "tokens_per_second")
        for cell in result["cells"]
        if cell["k"] == 0
    }
    for method, costs in result["costs"].items():
        ways = foresee(CostTable.from_json(costs), method, result["settings"]["ks"])
        for cell in result["cells"]:
            if cell["method"] != method or not cell["k"]:
                continue
            k, rate, read = cell["k"], cell["rate"], cell["read"]
            own = _median(read, "tokens_per_second") / plain[method, rate]
            given = sum(one["tau"] * one["rounds"] for one in read)
            given /= sum(one["rounds"] for one in read)
            for way, cost in ways.items():
                foreseen = economics.emitted(rate, k) / cost(k)
                yield {
                    "way": way,
                    "method": method,
                    "rate": rate,
                    "k": k,
                    "measured": own,
                    "foreseen": foreseen,
                    "error": abs(foreseen / own - 1),
                    "error_given_tau": abs(given / cost(k) / own - 1),
                }


def judge(found: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """One minus the median and the worst error of each way."""
    for way in FORESEEN:
        its = [one for one in found if one["way"] == way]
        for field, where in (("error", ""), ("error_given_tau", ", given its tau")):
            every = [one[field] for one in its]
            worst = max(its, key=lambda one: one[field])
            goals = (0.95, 0.85) if way == "measured rounds" else (None, None)
            middle = statistics.median(every)
            yield Claim(
                what=f"speed-up foreseen by {way}{where}: 1 - median error",
                value=1 - middle,
                goal=goals[0],
                note=f"{len(its)} cells",
            )
            yield Claim(
                what=f"speed-up foreseen by {way}{where}: 1 - worst error",
                value=1 - worst[field],
                goal=goals[1],
                note=f"{worst['method']}, K={worst['k']}, rate {worst['rate']:g}",
            )


def table(found: Sequence[dict[str, Any]]) -> str:
    """Every cell: measured, and foreseen in each way."""
    lines = [
        "| method | rate | K | speed-up | " + " | ".join(FORESEEN) + " |",
        "|---" * (4 + len(FORESEEN)) + "|",
    ]
    cells = dict.fromkeys((one["method"], one["rate"], one["k"]) for one in found)
    for method, rate, k in cells:
        its = {
            one["way"]: one
            for one in found
            if (one["method"], one["rate"], one["k"]) == (method, rate, k)
        }
        own = next(iter(its.values()))["measured"]
        foreseen = " | ".join(f"{its[way]['foreseen']:.2f}" for way in FORESEEN)
        lines.append(f"| {method} | {rate:g} | {k} | {own:.2f} | {foreseen} |")
    return "\n".join(lines)


def figure(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Foreseen against measured: on the diagonal they agree."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(5.2, 4.8), layout="constrained")
    axes = drawing.add_subplot()
    for way, mark in zip(FORESEEN, "x+o", strict=True):
        for color, method in enumerate(dict.fromkeys(one["method"] for one in found)):
            its = [o for o in found if o["way"] == way and o["method"] == method]
            axes.plot(
                [one["foreseen"] for one in its],
                [one["measured"] for one in its],
                mark,
                color=f"C{color}",
                fillstyle="none",
                label=f"{method}, {way}",
            )
    ends = [0, 1.05 * max(max(o["foreseen"], o["measured"]) for o in found)]
    axes.plot(ends, ends, color="0.7")
    axes.set(xlabel="speed-up foreseen", ylabel="speed-up measured")
    axes.legend(fontsize=7)
    save_figure(drawing, path)


def main(
    quick: Annotated[bool, typer.Option(help="Fewer rates, K and turns.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
) -> None:
    """Measures, writes JSON, table and figure, prints the claims."""
    result = measure(QUICK if quick else Settings())
    found = result["foreseen"] = list(errors(result))
    record(
        f"{NAME}_quick" if quick else NAME,
        result,
        judge(found),
        draw=lambda path: figure(found, path),
        table=table(found),
        results=out,
    )


def _median(read: Sequence[dict[str, Any]], field: str) -> float:
    return statistics.median(one[field] for one in read)


if __name__ == "__main__":
    typer.run(main)
