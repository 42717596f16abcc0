"""`jspec-convert SOURCE TARGET`: others' checkpoints to jspec's format, and back."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from converters.check import difference
from converters.convert import convert, plan
from converters.export import export, exported
from converters.plans import Report
from jspec import checkpoint

__all__ = ["app", "main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Hugging Face directory or file of tensors, of a target or a drafter; "
            "GGUF file; or jspec checkpoint (to go back)."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="Directory to be made.")],
    family: Annotated[
        str | None,
        typer.Option(help="Read the source as this family, or drafting method."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float16 or float32; default: as stored."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the tensors and write nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare logits against transformers.")
    ] = False,
) -> None:
    """Converts a checkpoint to jspec's format, or a jspec checkpoint to Hugging Face's.

    Exit status: 0 done; 2 the input was wrong; 1 our fault, or --check failed.
    """
    try:
        passed = _run(source, target, family, dtype, dry_run, check)
    except ValueError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise typer.Exit(2) from None
    if not passed:
        raise typer.Exit(1)


def _run(
    source: Path,
    target: Path,
    family: str | None,
    dtype: str | None,
    dry_run: bool,
    check: bool,
) -> bool:
    back = checkpoint.is_checkpoint(source)
    if dry_run:
        _print_plan(source, family, dtype, back)
        return True
    if back and family is not None:
        raise ValueError(f"{source} is a jspec checkpoint: it says its family itself")
    if check:
        kind = (
            checkpoint.read_manifest(source)["kind"]
            if back
            else plan(source, family=family, dtype=dtype).kind
        )
        if kind == "drafter":
            raise ValueError(
                "--check compares the logits of targets; a drafter has none alone"
            )
    with _terminable(), _bar("writing" if back else "reading") as step:
        if back:
            report = export(source, target, dtype=dtype, step=step)
        else:
            report = convert(source, target, family=family, dtype=dtype, step=step)
    _print_report(report)
    if not check:
        return True
    if back:
        found = difference(source, target)
    else:
        found = difference(target, source if source.is_dir() else None)
    print(
        f"largest difference of a logit from transformers, float32: {found.worst:.2e} "
        f"(bound {found.bound:.1e}; largest logit {found.largest:.1f})"
    )
    return found.passed


def _print_report(report: Report) -> None:
    for notice in report.notices:
        print(notice, file=sys.stderr)
    print(
        f"{report.family}: {report.tensors} tensors, {report.bytes / 2**30:.2f} GiB, "
        f"{' and '.join(report.dtypes)}, none unmapped"
    )


def _print_plan(
    source: Path, family: str | None, dtype: str | None, back: bool
) -> None:
    rows: list[tuple[str, str, str, str]]
    notices: tuple[str, ...] = ()
    if back:
        rows = exported(source, dtype)
    else:
        made = plan(source, family=family, dtype=dtype)
        notices = made.notices
        rows = [
            (
                line.name,
                line.weight,
                str(line.shape),
                str(line.dtype)
                if line.tensor.stored.lower()
                in (str(line.dtype), *_SHORT[str(line.dtype)])
                else f"{line.tensor.stored} to {line.dtype}",
            )
            for line in made.lines
        ]
    table = Table("tensor", "path", "shape", "dtype", box=None)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for notice in notices:
        print(notice, file=sys.stderr)
    print(f"{len(rows)} tensors, none unmapped; nothing was written")


_SHORT = {"bfloat16": ("bf16",), "float16": ("f16",), "float32": ("f32",)}


@contextmanager
def _terminable() -> Generator[None]:
    """Being told to end is an exception, so that what is half done is removed."""

    def leave(*_: Any) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar(what: str) -> Generator[Any]:
    """A progress bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (what, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def main() -> None:
    """The command."""
    app()


if __name__ == "__main__":
    main()
