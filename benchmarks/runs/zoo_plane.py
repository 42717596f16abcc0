"""Claim: the plane of cost and acceptance says which method pays on this machine.

Table: the plane of speculative methods, cost across and acceptance up, whose points
nobody has published for one engine: here they are measured.
Command: `python -m benchmarks.runs.zoo_plane` (`--quick`: look-up and one trained
method; `--zoo FILE`: the points of a result of `jspec bench zoo`)
Expected: every point whose speed-up is certainly not 1 lies on the side of the
break-even curve that its measured speed-up says (share 1.0); the speed-up at the point,
tokens a round ÷ (1 + cost), is within 0.1 of the measured one in the median. Batch 1,
greedy, real prompts; intervals are the bootstrap's over turns and prompts.

The cost is what a timed round takes beyond a plain step, in steps: the drafts, and what
a pass over K + 1 tokens costs more than one over 1, which on a CPU is not nothing. It
is timed without any text, so the curve is not drawn through its own points. Acceptance
is the one at which a chain would emit the measured tokens a round.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import drafting, spread
from benchmarks.claims import RESULTS, Claim, record
from benchmarks.zoo import result, summary
from jspec import zoo
from jspec.control import economics
from jspec.control.figure import draw

NAME = "zoo_plane"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
      methods: `None`: look-up, suffixes and every shipped one.
      ks: drafted tokens.
      sets: of prompts.
      each: prompts of each set.
      longest: tokens of a prompt.
      tokens: of one reading.
      passes: turns that count.
      repeats: timed rounds of each K.
      context: at which they are timed.
    """

    methods: tuple[str, ...] | None = None
    ks: tuple[int, ...] = (2, 4)
    sets: tuple[str, ...] = ("mt_bench", "summaries", "humaneval")
    each: int = 1
    longest: int = 768
    tokens: int = 32
    passes: int = 1
    repeats: int = 10
    context: int = 256


QUICK = Settings(methods=("ngram", "eagle3"), ks=(4,))


def measure(settings: Settings, target: Any = drafting.TARGET) -> dict[str, Any]:
    """One server a method: its rounds timed, then plain and drafted text in turns."""
    began = time.perf_counter()
    methods = settings.methods
    if methods is None:
        methods = ("ngram", "suffix", *zoo.shipped().get(str(target), ()))
    read: list[dict[str, Any]] = []
    timed: dict[str, dict[str, list[float]]] = {}
    origin: dict[str, str] = {}
    most = max(settings.longest + settings.tokens, settings.context)
    with tempfile.TemporaryDirectory() as folder:
        for method in methods:
            drafter, origin[method] = drafting.drafter_of(method, target, Path(folder))
            one = drafting.serve(
                target,
                method,
                settings.ks,
                drafter=drafter,
                room=most + (settings.tokens + 2) * (max(settings.ks) + 1),
            )
            with one.server:
                times = one.time(
                    batch=1, context=settings.context, repeats=settings.repeats
                )
                timed[method] = {str(k): every for k, every in times.items()}
                prompts = drafting.questions(
                    one.server, settings.sets, settings.each, settings.longest
                )
                cells = [
                    (at, prompt, k)
                    for at, prompt in enumerate(prompts)
                    for k in (0, *settings.ks)
                ]
                for turn, (at, prompt, k) in spread.turns(cells, settings.passes):
                    found = one.read(k, [prompt], settings.tokens)
                    if turn:
                        where = {"method": method, "prompt": at, "turn": turn}
                        read.append({**where, **found})
    return {
        "settings": dataclasses.asdict(settings) | {"methods": list(methods)},
        "target": str(target),
        "drafters": origin,
        "round_ms": timed,
        "read": read,
        "seconds": round(time.perf_counter() - began),
    }


def points(made: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Of every method and K: where it lies, and how fast it is.

    Returns:
      `cost` beyond a plain step and `alpha`; `tau`; `speedup` with `low` and `high`.
    """
    read = made["read"]
    for method in dict.fromkeys(one["method"] for one in read):
        its = [one for one in read if one["method"] == method]
        origin = made["drafters"][method]
        timed = {
            int(k): statistics.median(every)
            for k, every in made["round_ms"][method].items()
        }
        for k in sorted({one["k"] for one in its} - {0}):
            pairs = []
            for turn, prompt in dict.fromkeys((o["turn"], o["prompt"]) for o in its):
                both = {
                    o["k"]: o for o in its if (o["turn"], o["prompt"]) == (turn, prompt)
                }
                pairs.append((both[0], both[k]))
            rounds = sum(drafted["rounds"] for _, drafted in pairs)
            low, high = spread.interval(pairs, _speedup)
            yield {
                "method": method if origin != "untrained" else f"{method}, untrained",
                "k": k,
                "cost": timed[k] / timed[0] - 1,
                "tau": sum(d["tau"] * d["rounds"] for _, d in pairs) / rounds,
                "speedup": _speedup(pairs),
                "low": low,
                "high": high,
            }


def of_zoo(path: Path) -> list[dict[str, Any]]:
    """The points of a zoo run at batch 1, greedy, whose rounds were timed.

    Raises:
      ValueError: the file holds no such run, or no such point.
    """
    whole = result.load(path)
    timed = {
        (one.name, one.k): one.round - 1
        for one in summary.costs(whole["costs"], ())
        if one.batch == 1
    }
    alone = summary.lines(
        whole["cells"], lambda cell: cell["batch"] == 1 and cell["temperature"] == 0
    )
    found = [
        {
            "method": one.name,
            "k": one.k,
            "cost": timed[one.name, one.k],
            "tau": one.tau,
            "speedup": one.speedup,
            "low": (one.interval or (one.speedup,))[0],
            "high": (one.interval or (one.speedup,))[-1],
        }
        for one in alone
        if (one.name, one.k) in timed and one.tau is not None
    ]
    if not found:
        raise ValueError(
            f"{path} has no greedy cell of batch 1 whose rounds were timed"
        )
    return found


def placed(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With each point's acceptance and the speed-up that the plane says."""
    return [
        {
            **one,
            "alpha": economics.alpha_for(min(one["tau"], one["k"] + 1.0), one["k"], 0),
            "foreseen": one["tau"] / (1 + max(0.0, one["cost"])),
        }
        for one in found
    ]


def judge(found: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    """The side of the curve, the speed-up, and the best of all."""
    sure = [one for one in found if not one["low"] <= 1 <= one["high"]]
    right = [(one["foreseen"] > 1) == (one["speedup"] > 1) for one in sure]
    yield Claim(
        what="share of points on the side of break-even that was measured",
        value=sum(right) / len(right) if right else float("nan"),
        goal=1.0,
        note=f"{len(right)} of {len(found)} points are certainly not at 1",
    )
    apart = [abs(one["foreseen"] / one["speedup"] - 1) for one in found]
    yield Claim(
        what="speed-up by the plane: 1 - median error",
        value=1 - statistics.median(apart),
        goal=0.9,
        note=f"worst {max(apart):.2f}",
    )
    best = max(found, key=lambda one: one["speedup"])
    yield Claim(
        what="best speed-up over plain decoding",
        value=best["speedup"],
        goal=None,
        note=f"{best['method']}, K={best['k']}, 95 % within {best['low']:.2f} to "
        f"{best['high']:.2f}",
    )


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """A line a point."""
    lines = [
        "| method | K | cost (steps) | τ | α | speed-up | by the plane |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['method']} | {one['k']} | {one['cost']:.2f} | {one['tau']:.2f} | "
        f"{one['alpha']:.2f} | {one['speedup']:.2f} ({one['low']:.2f} to "
        f"{one['high']:.2f}) | {one['foreseen']:.2f} |"
        for one in found
    ]
    return "\n".join(lines)


def figures(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One plane a K, as PNG and SVG: `PATH_kK`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for k in sorted({one["k"] for one in found}):
        its = [
            (
                f"{one['method']} {one['speedup']:.2f}×",
                max(0.0, one["cost"]),
                one["alpha"],
            )
            for one in found
            if one["k"] == k
        ]
        for suffix in (".svg", ".png"):
            draw(path.with_name(f"{path.name}_k{k}{suffix}"), k=k, points=its)


def main(
    quick: Annotated[bool, typer.Option(help="Two methods and one K.")] = False,
    methods: Annotated[str | None, typer.Option(help="With commas between.")] = None,
    given: Annotated[
        Path | None, typer.Option("--zoo", help="A result of `jspec bench zoo`.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
) -> None:
    """Measures or reads points, writes JSON, table and figures, prints the claims."""
    settings = QUICK if quick else Settings()
    if methods is not None:
        settings = dataclasses.replace(settings, methods=tuple(methods.split(",")))
    try:
        if given is None:
            made = measure(settings)
            found = placed(list(points(made)))
        else:
            made, found = {"points_of": given.name}, placed(of_zoo(given))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    name = f"{NAME}_quick" if quick else NAME
    made = {**made, "points": found}
    record(name, made, judge(found), table=table(found), results=out)
    figures(found, out / name)


def _speedup(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float:
    """Of all the time that plain decoding took over all that drafting did."""
    plain, drafted = (
        sum(1 / one[side]["tokens_per_second"] for one in pairs) for side in (0, 1)
    )
    return plain / drafted


if __name__ == "__main__":
    typer.run(main)
