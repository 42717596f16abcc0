"""`python -m benchmarks`: a run from the command line."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from benchmarks import report, run, weights
from benchmarks.peers.setup import HOME
from benchmarks.zoo.command import zoo

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(zoo)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    methods: Annotated[
        str, typer.Option(help="jspec's: none,ngram; empty for peers alone.")
    ] = "none,ngram",
    k: Annotated[str, typer.Option("--k", "-k", help="Drafted tokens a round.")] = "4",
    schedule: Annotated[
        str | None, typer.Option(help="jspec's K by load: a file, or `adaptive`.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1",
    dtype: Annotated[str, typer.Option(help="float32,bfloat16")] = "float32",
    prompts: Annotated[str, typer.Option(help="NAME:COUNT,…")] = "summaries:4",
    peers: Annotated[str, typer.Option(help="ENGINE[:METHOD[:K]][@DTYPE],…")] = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens a prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved passes.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads an engine.")] = 2,
    attempts: Annotated[
        int, typer.Option(help="Tries at a measurement that others disturb.")
    ] = 1,
    settle: Annotated[
        float, typer.Option(help="Most seconds to wait for idle cores.")
    ] = 5.0,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts.")] = 0,
    gguf: Annotated[
        Path | None, typer.Option(help="Weights; the embedded model's when missing.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Where the result goes.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Where the figure goes, SVG and PNG.")
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Where workers' logs go.")] = None,
) -> None:
    """Measures jspec and its peers on the same weights and prompts, interleaved."""
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if _given(context, name)]
        if given:
            words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            print(f"{words} stands before zoo: zoo has its own", file=sys.stderr)
            raise typer.Exit(2)
        return
    try:
        config = run.Config(
            contestants=run.contestants(
                methods=_words(methods),
                ks=_numbers(k),
                dtypes=_words(dtype),
                peers=_words(peers),
            ),
            prompts=prompts,
            batches=tuple(_numbers(batch)),
            max_tokens=max_tokens,
            repeats=repeats,
            threads=threads,
            attempts=attempts,
            settle_seconds=settle,
            seed=seed,
        )
        model = weights.prepare(
            gguf or weights.embedded(HOME / "models"), HOME / "models"
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    console = Console(stderr=True)
    console.print(config)

    def keep(result: dict[str, Any]) -> None:
        if json:
            run.save(result, json)

    if schedule is not None and Path(schedule).is_file():
        schedule = str(Path(schedule).resolve())
    result = run.bench(
        config,
        model,
        options=None if schedule is None else {"schedule": schedule},
        progress=console.is_terminal,
        logs=logs,
        keep=keep,
    )
    if figure:
        report.figure(result, figure)
    text = report.markdown(result)
    out = Console()
    if out.is_terminal:
        out.print(Markdown(text))
    else:
        print(text)


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    words = _words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f"{text!r} should be whole numbers with commas between.")
    return [int(word) for word in words]


if __name__ == "__main__":
    app()
