"""Where drafting pays on a GPU: c of every method, T* and the break-even batch.

Command: `python -m benchmarks.gpu.zoo`, under 9 minutes on an H100 or H200; one JSON,
one figure a target, one table. `--rehearse` goes through all of it on a CPU, tiny.

Two targets in bfloat16: the embedded model (`--checkpoint FOLDER`, a jspec checkpoint,
if it can be had there; else random weights of its shape) and one of Llama 3 8B's shape
with random weights. What a step costs does not depend on the weights, and what is kept
is set by a coin (verification "synthetic"), so nothing here says how well a method
drafts: acceptances are assumed, costs are measured.

Measured, at every batch: a round without a drafter over 1 and over K + 1 tokens a row,
and each method's propose and observe alone, whose time over that of a step at batch 1
is `passes * c`. Then, as far as time reaches, whole rounds with the coin, as a check.
Derived: T*, the tokens at which a step turns from memory- to compute-bound, and the
batch at which E tokens of a round no longer repay it, in closed form and on the
measured costs. A job begins if the budget has room for one as slow as the slowest of
its kind so far; the JSON names what is left out, and is written again after every job.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu.break_even import conclude, figure, table

RESULTS = Path(__file__).resolve().parents[1] / "results"
FIRST = 40.0
"""Seconds that the first job is expected to take."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
      targets: keys of `benchmarks.gpu.shapes.SHAPES`.
      methods: in the order of their importance.
      k: drafted tokens.
      batches: rows, rising.
      context: tokens in the cache of each row.
      rounds: of one series.
      series: whose median counts.
      alpha: of whole rounds.
    """

    targets: tuple[str, ...] = ("llama-3-8b", "smollm2-135m")
    methods: tuple[str, ...] = (
        *("eagle3", "dflash", "draft_model", "medusa", "dspark", "p_eagle"),
        *("mlp_speculator", "eagle"),
    )
    k: int = 4
    batches: tuple[int, ...] = (1, 8, 32, 128)
    context: int = 512
    rounds: int = 16
    series: int = 5
    alpha: float = 0.7


REHEARSAL = Settings(
    targets=("tiny",),
    methods=("eagle3", "draft_model"),
    k=2,
    batches=(1, 2),
    context=16,
    rounds=2,
    series=1,
)

type Job = tuple[dict[str, Any], Callable[[], Mapping[str, float]]]
"""What is measured, and how."""


def jobs(settings: Settings, name: str, checkpoint: Path | None) -> Iterator[Job]:
    """Every job of a target: passes and drafts batch by batch, then whole rounds.

    Args:
      settings: what is measured.
      name: of the target.
      checkpoint: of the embedded model.
    """
    import jax

    from benchmarks.drafting import steady
    from benchmarks.gpu import drafts

    target = drafts.target_of(name, checkpoint if name == "smollm2-135m" else None)
    bench = drafts.Bench(
        target=target,
        batch=settings.batches[-1],
        context=settings.context,
        rounds=settings.rounds,
        series=settings.series,
    )
    rule = steady(settings.alpha, settings.k)

    def sized(batch: int) -> Any:
        return dataclasses.replace(bench, batch=batch)

    def passing(k: int, batch: int) -> Mapping[str, float]:
        return {"ms": sized(batch).passes(k, batch, rule)}

    def drafting(method: str, batch: int) -> Mapping[str, float]:
        drafter, weights = drafts.drafter_for(method, target, settings.k)
        parameters = sum(a.size for a in jax.tree.leaves(weights))
        return {
            "ms": bench.drafts(drafter, weights, batch),
            "parameters": parameters,
        }

    def whole(method: str, batch: int) -> Mapping[str, float]:
        drafter, weights = drafts.drafter_for(method, target, settings.k)
        return sized(batch).rounds_of(drafter, weights, batch, rule)

    first, *middle, last = settings.batches
    here = {"target": name}
    for batch in (first, last, *middle):
        at = {**here, "batch": batch}
        for k in (0, settings.k):
            yield {**at, "kind": "pass", "k": k}, partial(passing, k, batch)
        for method in settings.methods:
            what = {**at, "kind": "drafts", "k": settings.k, "method": method}
            yield what, partial(drafting, method, batch)
    for batch, method in itertools.product((first, last), settings.methods):
        what = {**here, "batch": batch, "kind": "round", "k": settings.k}
        yield {**what, "method": method}, partial(whole, method, batch)


def results(
    settings: Settings,
    *,
    budget: float,
    checkpoint: Path | None = None,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """All measurements, in the order of the jobs, as far as the budget goes.

    Args:
      settings: what is measured.
      budget: minutes, all included; every target has an equal share of what is left.
      checkpoint: of the embedded model.
      save: is given what is known after every job.
      clock: seconds.
    """
    import jax

    started = clock()
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "settings": dataclasses.asdict(settings),
        "weights": {
            name: "checkpoint" if checkpoint and name == "smollm2-135m" else "random"
            for name in settings.targets
        },
        "measured": [],
        "failed": [],
        "left_out": [],
    }
    for at, name in enumerate(settings.targets):
        left = started + 60 * budget - clock()
        end = clock() + left / (len(settings.targets) - at)
        longest: dict[str, float] = {}
        for what, run in jobs(settings, name, checkpoint):
            begun = clock()
            if begun + longest.get(what["kind"], FIRST) > end:
                result["left_out"].append(what)
                continue
            try:
                result["measured"].append({**what, **run()})
            except Exception as error:
                # Of compilers, the runtime or memory: the other jobs still have theirs.
                said = f"{type(error).__name__}: {str(error).strip()[-600:]}"
                result["failed"].append({**what, "error": said})
            spent = clock() - begun
            longest[what["kind"]] = max(longest.get(what["kind"], 0.0), spent)
            save(result)
    return result


def main(
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = RESULTS,
    budget: Annotated[float, typer.Option(help="Minutes that it may take.")] = 8.0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The embedded model, a jspec checkpoint.")
    ] = None,
    rehearse: Annotated[bool, typer.Option(help="Tiny, on any device.")] = False,
) -> None:
    """Measures, writes `gpu_zoo.json`, `.md` and `.svg`, prints the table.

    Ends with status 1 where a job failed.
    """
    import jax

    if not rehearse and jax.default_backend() != "gpu":
        raise typer.BadParameter("no GPU is at hand; --rehearse goes through it, tiny")
    name = "gpu_zoo_rehearsal" if rehearse else "gpu_zoo"
    out.mkdir(parents=True, exist_ok=True)

    def save(result: dict[str, Any]) -> None:
        (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")

    settings = REHEARSAL if rehearse else Settings()
    result = results(settings, budget=budget, checkpoint=checkpoint, save=save)
    result["concluded"] = conclude(result)
    save(result)
    text = table(result)
    (out / f"{name}.md").write_text(f"{text}\n")
    print(text)
    if result["concluded"]:
        figure(result["concluded"], out / f"{name}.svg")
    for one in result["failed"]:
        print(f"FAILED: {one}")
    if result["failed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
