"""`jspec calibrate` and `jspec lab`: what rounds cost here, and which K follows."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jspec.server.console import TARGET, bar, errors

__all__ = ["calibrate", "lab"]

type Target = Annotated[str, typer.Option(help="Model directory, file or name.")]
type Drafter = Annotated[str | None, typer.Option(help="The drafter's weights.")]
type Options = Annotated[
    list[str] | None,
    typer.Option(help="A field of the method, `tree_width=4`; may be repeated."),
]
type Dtype = Annotated[
    str | None, typer.Option(help="float32 or bfloat16; the checkpoint's if unset.")
]


def calibrate(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where costs and schedule go, JSON.")
    ],
    target: Target = TARGET,
    method: Annotated[str, typer.Option(help="See `jspec methods`.")] = "auto",
    drafter: Drafter = None,
    draft_sampling: Annotated[
        str, typer.Option(help="auto, greedy or probabilistic drafts.")
    ] = "auto",
    option: Options = None,
    verification: Annotated[
        str, typer.Option(help="Which drafts are kept; `typical:epsilon=0.1`, say.")
    ] = "standard",
    dtype: Dtype = None,
    k: Annotated[
        list[int] | None,
        typer.Option("-k", help="Drafted tokens; may repeat. 1, 2, 4, 8 if unset."),
    ] = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(help="Nodes of trees, the anchor included; may repeat."),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(help="Every power of two up to it is measured.")
    ] = 8,
    context: Annotated[
        list[int] | None,
        typer.Option(help="Tokens a row holds; may repeat. 128, 1024, 4096 if unset."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed rounds of each.")] = 5,
    kv_pages: Annotated[int | None, typer.Option(help="Pages of the cache.")] = None,
    alpha: Annotated[
        list[float] | None,
        typer.Option(help="Acceptance that the schedule assumes, by position."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Where the maps go; beside the JSON if unset.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Measures rounds by batch, context and K; writes costs, schedule and maps."""
    with errors():
        from jspec.control.figure import draw_best
        from jspec.server import calibrate as measuring

        if output.suffix != ".json":
            raise ValueError(f"-o {output} should end in .json")
        if nodes and (alpha or figure):
            raise ValueError(
                "--alpha and --figure belong to a schedule of K; of trees (--nodes) "
                "none is made before their acceptance is known"
            )
        grid = measuring.Grid(
            max_batch=max_batch,
            ks=tuple(sorted(k or (1, 2, 4, 8))),
            contexts=tuple(sorted(context or (128, 1024, 4096))),
            repeats=repeats,
            kv_pages=kv_pages,
            nodes=tuple(sorted(nodes or ())),
        )
        with bar("measuring", show=sys.stderr.isatty(), left=True) as progress:
            found = measuring.calibrate(
                output,
                target,
                method=method,
                drafter=drafter,
                draft_sampling=draft_sampling,
                method_options=parse_options(option),
                verification=verification,
                dtype=dtype,
                grid=grid,
                alpha=alpha or [0.7],
                progress=progress,
            )
        written = measuring.export(found, output)
        if found.best:
            picture = figure or output.with_suffix(".png")
            name = found.costs.made["method"]
            title = f"{target}, {name}, acceptance {found.rates[0]:g}"
            draw_best(picture, found.best, title=title)
            written.append(picture)
    if as_json:
        found_json = found.best or found.costs.samples["draft"]
        typer.echo(json.dumps([dataclasses.asdict(one) for one in found_json]))
        return
    if found.best:
        _print_best(found)
    else:
        _print_trees(found)
    for path in (output, *written):
        typer.echo(f"wrote {path}")


def lab(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the result goes, JSON.")
    ],
    target: Target = TARGET,
    method: Annotated[str, typer.Option(help="See `jspec methods`.")] = "auto",
    drafter: Drafter = None,
    option: Options = None,
    dtype: Dtype = None,
    k: Annotated[
        list[int] | None,
        typer.Option("-k", help="Drafted tokens; may repeat. 1, 3, 5 if unset."),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(help="Requests at once; may repeat. 1, 8, 32, 64 if unset."),
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="Tokens of each row and measurement.")
    ] = 24,
) -> None:
    """Sweeps concurrency: the K each controller settles on, and whether it was best."""
    with errors():
        from jspec.server import lab as laboratory
        from jspec.server.lab_table import show

        with bar("measuring", show=sys.stderr.isatty(), left=True) as progress:
            result = laboratory.sweep(
                target,
                method=method,
                drafter=drafter,
                method_options=parse_options(option),
                dtype=dtype,
                ks=tuple(sorted(k or (1, 3, 5))),
                concurrency=tuple(sorted(concurrency or (1, 8, 32, 64))),
                tokens=tokens,
                progress=progress,
            )
        output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    show(result)
    typer.echo(f"wrote {output}")


def parse_options(given: list[str] | None) -> dict[str, Any] | None:
    """`NAME=VALUE` each; a value is JSON, or else text."""
    if not given:
        return None
    options: dict[str, Any] = {}
    for pair in given:
        name, mark, value = pair.partition("=")
        if not (name and mark):
            raise ValueError(f"--option takes NAME=VALUE, not {pair!r}")
        if name in options:
            raise ValueError(f"--option {name} is given twice")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _print_best(found: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    known = found.costs.made["closed_form"]
    reach = "none" if known["t_star"] is None else f"{known['t_star']:.1f} tokens"
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        caption=f"acceptance {', '.join(f'{rate:g}' for rate in found.rates)} is "
        f"assumed; closed form: c = {known['c']:.3f}, T* = {reach}. gain: over K = 0, "
        "from measured costs.",
    )
    for column in ("context", "batch", "K, closed form", "K, measured", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found.best:
        table.add_row(
            str(one.context),
            str(one.batch),
            f"{one.predicted} ({one.predicted_gain:.2f}×)",
            str(one.measured),
            f"{one.gain:.2f}×",
        )
    Console().print(table)
    for batch, context in found.left_out:
        typer.echo(f"left out, for want of pages: batch {batch} at context {context}")


def _print_trees(found: Any) -> None:
    """What each tree must bring: its round in rounds without drafts."""
    from rich.console import Console
    from rich.table import Table

    from jspec.control.base import spelled

    costs = found.costs
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        caption="K/nodes: a round in rounds without drafts, so the tokens from which "
        "it gains. goodput:PATH learns what each brings.",
    )
    for column in ("context", "batch", *map(spelled, costs.drafted)):
        table.add_column(column, justify="right", no_wrap=True)
    points = {(one.context, one.batch) for one in costs.samples["verify"]}
    for context, batch in sorted(points):
        plain = costs.round_ms(batch, 0, context)
        shares = (
            costs.round_ms(batch, size, context) / plain for size in costs.drafted
        )
        table.add_row(str(context), str(batch), *(f"{share:.2f}" for share in shares))
    Console().print(table)
    for batch, context in found.left_out:
        typer.echo(f"left out, for want of pages: batch {batch} at context {context}")
