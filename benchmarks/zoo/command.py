"""`jspec bench zoo`: measures, or only draws what was measured."""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.zoo.plan import FULL, QUICK, Config, contestants

RESULT = "zoo.json"
JOURNAL = "zoo.cells.jsonl"
REPORT = "zoo.md"


def zoo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder of journal, JSON and report.")
    ] = Path("zoo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A text of each kind; under ten minutes.")
    ] = False,
    methods: Annotated[
        str | None, typer.Option(help="Names with commas; all that can be if unset.")
    ] = None,
    k: Annotated[
        str | None, typer.Option("--k", "-k", help="Drafted tokens, with commas.")
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(help="Temperatures, with commas; 0: greedy.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(help="Kinds of prompts, with commas.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Texts at once, with commas.")
    ] = None,
    texts: Annotated[int | None, typer.Option(help="Of each kind, at batch 1.")] = None,
    passes: Annotated[
        int | None, typer.Option(help="How often everything is measured.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens a text.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after so many; the next start goes on."),
    ] = None,
    target: Annotated[
        str, typer.Option(help="Model directory, file or name.")
    ] = FULL.target,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = FULL.dtype,
    drafters: Annotated[
        Path | None,
        typer.Option(help="METHOD/ or METHOD/drafter lie here; else the shipped ones."),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure transformers beside.")] = True,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Draw OUT/zoo.json; measure nothing.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(help="A zoo.json to agree with; exit status 1 if not."),
    ] = None,
) -> None:
    """Measures every method side by side; goes on where it was stopped."""
    try:
        config = changed(
            QUICK if quick else FULL,
            target=target,
            dtype=dtype,
            kinds=_words(kinds),
            ks=_numbers(k, int),
            temperatures=_numbers(temperature, float),
            batches=_numbers(batch, int),
            texts=texts,
            passes=passes,
            max_tokens=max_tokens,
        )
        agree = _run(
            config,
            out,
            wanted=_words(methods),
            drafters=drafters,
            peers=peers,
            minutes=minutes,
            report_only=report_only,
            against=against,
        )
    except ValueError as error:
        print(f"jspec: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if not agree:
        raise typer.Exit(1)


def changed(config: Config, **fields: Any) -> Config:
    """The preset with what was asked for."""
    asked = {name: value for name, value in fields.items() if value is not None}
    return dataclasses.replace(config, **asked)


def shelf(target: str, drafters: Path | None) -> dict[str, Path]:
    """Checkpoints of drafters by method: of a folder, or those that are shipped.

    Raises:
      ValueError: the folder has none.
    """
    from jspec import zoo as shipped
    from jspec.checkpoint import is_checkpoint

    if drafters is None:
        known = shipped.shipped().get(target, ())
        found = {method: shipped.find(target, method) for method in known}
        return {method: path for method, path in found.items() if path is not None}
    places = sorted(drafters.glob("*")) if drafters.is_dir() else []
    paths = {
        place.name: path
        for place in places
        for path in (place, place / "drafter")
        if is_checkpoint(path)
    }
    if not paths:
        raise ValueError(f"{drafters} holds no METHOD/jspec.json of a drafter")
    return paths


def _run(
    config: Config,
    out: Path,
    *,
    wanted: tuple[str, ...] | None,
    drafters: Path | None,
    peers: bool,
    minutes: float | None,
    report_only: bool,
    against: Path | None,
) -> bool:
    from benchmarks.zoo import compare, result

    other = None if against is None else result.load(against)
    if report_only:
        found, whole = result.load(out / RESULT), True
    else:
        found, whole = _measure(config, out, wanted, drafters, peers, minutes)
    write(found, out)
    print(f"{out / REPORT}: {len(found['cells'])} cells.")
    if not whole:
        print("Time is over; the same command goes on.")
    if other is None:
        return True
    said, agree = compare.compare(found, other)
    print("\n".join(said))
    return agree


def _measure(
    config: Config,
    out: Path,
    wanted: tuple[str, ...] | None,
    drafters: Path | None,
    peers: bool,
    minutes: float | None,
) -> tuple[dict[str, Any], bool]:
    from benchmarks.zoo import result
    from benchmarks.zoo.journal import Journal
    from benchmarks.zoo.run import run
    from jspec.server.console import bar

    known = shelf(config.target, drafters)
    chosen = contestants(wanted, known, target=config.target, peers=peers)
    journal = Journal(out / JOURNAL, config.fixed)
    with bar("zoo", show=sys.stderr.isatty(), left=True) as progress:
        told = progress or _said()
        whole = run(config, chosen, journal, minutes=minutes, progress=told)
    return result.collect(journal, chosen), whole


def _said() -> Callable[[str, int, int], None]:
    """Where no bar can be drawn: a line a contestant."""
    began, last = time.monotonic(), ""

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        name = what.partition(",")[0]
        if name != last:
            spent = time.monotonic() - began
            print(f"{spent:.0f} s: {done}/{total} cells, {name}", file=sys.stderr)
        last = name

    return tell


def write(found: Mapping[str, Any], out: Path) -> None:
    """JSON, Markdown and figures."""
    from benchmarks.zoo import figures, judging, report, result

    claims = [claim.to_json() for claim in judging.judge(found)]
    result.save({**found, "claims": claims}, out / RESULT)
    (out / REPORT).write_text(report.markdown(found), "utf-8")
    figures.draw(found, out)


def _words(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str | None, kind: type) -> tuple[Any, ...] | None:
    words = _words(text)
    if words is None:
        return None
    try:
        return tuple(map(kind, words))
    except ValueError:
        raise ValueError(f"{text!r} should be numbers with commas between") from None
