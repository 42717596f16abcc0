"""Claim: the economics say at what acceptance a block ties a chain.

Table: the first question that parallel drafting raises: one pass drafts all K tokens,
but none has seen the others, so fewer are kept. At c = 0.165, K = 3 and a chain's
acceptance of 0.7 the closed form says that 0.536 is enough; nobody measured it.
Command: `python -m benchmarks.runs.parallel_vs_chain` (`--quick`: fewer rates)
Expected: the acceptance at which DFlash (one pass) is as fast as EAGLE-3 (K passes) at
0.4, 0.6 and 0.8, K = 4: foreseen from measured costs of rounds and measured, no more
than 0.05 apart. The closed form, which knows the drafts' costs alone, is stated beside
it. Two cores of a server CPU; the interval is the bootstrap's over turns.

A coin keeps drafts at given rates (verification "synthetic"), for both methods in
turns, batch 1. The block's speed is linear in the tokens that a round emits, so between
two rates its tie is found by emitted tokens. Untrained drafters cost what trained do.
"""

import contextlib
import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import drafting, spread
from benchmarks.claims import RESULTS, Claim, record
from benchmarks.report import save_figure
from jspec.control import economics

NAME = "parallel_vs_chain"
PROMPT = "Explain in three sentences why the sky is blue."

type Turn = Mapping[str, Mapping[float, float]]
"""Tokens a second of one turn: by side, then by rate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
      chain: the method that drafts a token a pass.
      block: the method that drafts all in one.
      k: drafted tokens of both.
      chain_rates: acceptance of the chain.
      block_rates: acceptance of the block, between which ties are found.
      tokens: of one reading.
      passes: turns that count.
      repeats: timed rounds of each.
    """

    chain: str = "eagle3"
    block: str = "dflash"
    k: int = 4
    chain_rates: tuple[float, ...] = (0.4, 0.6, 0.8)
    block_rates: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    tokens: int = 256
    passes: int = 6
    repeats: int = 30


QUICK = Settings(
    chain_rates=(0.7,), block_rates=(0.2, 0.8), tokens=96, passes=3, repeats=10
)


def measure(settings: Settings, target: Any = drafting.TARGET) -> dict[str, Any]:
    """Costs of rounds, then both methods at their rates in turns."""
    began = time.perf_counter()
    k = settings.k
    room = settings.tokens * (k + 2) + 128
    context = 64 + settings.tokens // 2
    asked = [("chain", settings.chain, rate) for rate in settings.chain_rates]
    asked += [("block", settings.block, rate) for rate in settings.block_rates]
    read: list[dict[str, Any]] = []
    costs: dict[str, dict[int, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        origin: dict[str, str] = {}
        servers = []
        given = drafting.serve(
            target,
            drafting.GIVEN,
            [k],
            rule=drafting.steady(settings.chain_rates[0], k),
            room=room,
        )
        with given.server:
            costs["pass"] = given.time(
                batch=1, context=context, repeats=settings.repeats
            )
        for side, method, rate in asked:
            drafter, origin[method] = drafting.drafter_of(method, target, folder)
            one = drafting.serve(
                target,
                method,
                [k],
                drafter=drafter,
                rule=drafting.steady(rate, k),
                room=room,
            )
            servers.append((side, rate, one))
            stack.enter_context(one.server)
            if side not in costs:
                costs[side] = one.time(
                    batch=1, context=context, repeats=settings.repeats
                )
        for turn, (side, rate, one) in spread.turns(servers, settings.passes):
            found = one.read(k, [PROMPT], settings.tokens)
            if turn:
                read.append({"turn": turn, "side": side, "rate": rate, **found})
    return {
        "settings": dataclasses.asdict(settings),
        "target": str(target),
        "drafters": origin,
        "costs": {
            name: {str(at): ms for at, ms in c.items()} for name, c in costs.items()
        },
        "read": read,
        "seconds": round(time.perf_counter() - began),
    }


def ties(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each acceptance of the chain: the block's that ties it, foreseen and measured.

    Returns:
      `rate` of the chain; `closed_form`, `foreseen` and `measured` of the block, NaN
      where no acceptance ties or none between the measured ones; `low` and `high` of
      the measured one.
    """
    settings = result["settings"]
    k = settings["k"]
    round_ms = {
        side: statistics.median(times[str(k)])
        for side, times in result["costs"].items()
    }
    step = statistics.median(result["costs"]["pass"]["0"])
    drafts = {
        side: max(0.0, round_ms[side] - round_ms["pass"]) / step
        for side in ("chain", "block")
    }
    turns = list(_turns(result["read"]))
    found = []
    for rate in settings["chain_rates"]:
        emitted = economics.emitted(rate, k)
        low, high = spread.interval(turns, lambda its, rate=rate: tie(its, rate, k))
        found.append(
            {
                "rate": rate,
                "closed_form": _alpha(
                    emitted * (1 + drafts["block"]) / (1 + drafts["chain"]), k
                ),
                "foreseen": _alpha(emitted * round_ms["block"] / round_ms["chain"], k),
                "measured": tie(turns, rate, k),
                "low": low,
                "high": high,
            }
        )
    return found


def tie(turns: Sequence[Turn], rate: float, k: int) -> float:
    """The block's acceptance that is as fast as the chain's `rate`, by medians."""
    speed = {
        side: {
            at: statistics.median(turn[side][at] for turn in turns)
            for at in sorted(turns[0][side])
        }
        for side in ("chain", "block")
    }
    block = speed["block"]
    tokens = [economics.emitted(at, k) for at in block]
    return _alpha(
        spread.crossing(speed["chain"][rate], tokens, list(block.values())), k
    )


def judge(found: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """One minus the distance of what was foreseen from what was measured."""
    for one in found:
        for way, goal in (("foreseen", 0.95), ("closed_form", None)):
            said = "from measured rounds" if way == "foreseen" else "by the closed form"
            yield Claim(
                what=f"tie of a chain at {one['rate']:g}, {said}: 1 - distance",
                value=1 - abs(one[way] - one["measured"]),
                goal=goal,
                note=f"{one[way]:.3f}; measured {one['measured']:.3f}, 95 % within "
                f"{one['low']:.3f} to {one['high']:.3f}",
            )


def table(found: Sequence[dict[str, Any]]) -> str:
    """A line a chain."""
    lines = [
        "| the chain | the block ties at, measured | foreseen | closed form |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {one['rate']:g} | {one['measured']:.3f} ({one['low']:.3f} to "
        f"{one['high']:.3f}) | {one['foreseen']:.3f} | {one['closed_form']:.3f} |"
        for one in found
    ]
    return "\n".join(lines)


def figure(result: dict[str, Any], path: Path) -> None:
    """Speed over acceptance of both, and every tie."""
    from matplotlib.figure import Figure

    settings = result["settings"]
    turns = list(_turns(result["read"]))
    drawing = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = drawing.add_subplot()
    for color, side in enumerate(("chain", "block")):
        rates = sorted(turns[0][side])
        every = [[turn[side][rate] for turn in turns] for rate in rates]
        axes.plot(
            rates,
            [statistics.median(one) for one in every],
            "o-",
            color=f"C{color}",
            label=f"{settings[side]}, a {side}",
        )
        axes.vlines(rates, list(map(min, every)), list(map(max, every)), f"C{color}")
    for one in result["ties"]:
        speed = statistics.median(turn["chain"][one["rate"]] for turn in turns)
        axes.plot(
            [one["measured"], one["rate"]], [speed, speed], "--", color="0.6", zorder=0
        )
    axes.set(
        xlim=(0, 1),
        xlabel="acceptance α",
        ylabel="tokens/s",
        title=f"K = {settings['k']}, batch 1: dashes lead from a chain to its tie",
    )
    axes.legend()
    save_figure(drawing, path)


def main(
    quick: Annotated[bool, typer.Option(help="Fewer rates and turns.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
) -> None:
    """Measures, writes JSON, table and figure, prints the claims."""
    result = measure(QUICK if quick else Settings())
    found = result["ties"] = ties(result)
    record(
        f"{NAME}_quick" if quick else NAME,
        result,
        judge(found),
        draw=lambda path: figure(result, path),
        table=table(found),
        results=out,
    )


def _turns(read: Sequence[Mapping[str, Any]]) -> Iterator[Turn]:
    for turn in sorted({one["turn"] for one in read}):
        speed: dict[str, dict[float, float]] = {"chain": {}, "block": {}}
        for one in read:
            if one["turn"] == turn:
                speed[one["side"]][one["rate"]] = one["tokens_per_second"]
        yield speed


def _alpha(emitted: float, k: int) -> float:
    """The acceptance of so many emitted tokens; NaN: no round emits so many."""
    if math.isnan(emitted):
        return math.nan
    alpha = economics.alpha_for(emitted, k, 0.0)
    return math.nan if alpha is None else alpha


if __name__ == "__main__":
    typer.run(main)
