"""What every command shows on a terminal: one line for a wrong input, one bar."""

import contextlib
from collections.abc import Generator
from typing import Any

__all__ = ["TARGET", "bar", "errors"]

TARGET = "smollm2-135m"
"""The model that a command takes where none is named."""


@contextlib.contextmanager
def errors() -> Generator[None]:
    """Wrong input: one line on stderr, exit status 2."""
    import typer  # servers show bars, and need no commands

    try:
        yield
    except ValueError as error:
        typer.echo(f"jspec: {error}", err=True)
        raise typer.Exit(2) from error


@contextlib.contextmanager
def bar(what: str, *, show: bool, left: bool = False) -> Generator[Any]:
    """A bar on stderr, moved by calls of `(name, done, total)`; `None` if not shown.

    Args:
      what: stands before the bar.
      show: whether there is anyone to look.
      left: whether it says how long is left; else how long it took.
    """
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[name]}"),
        TimeRemainingColumn() if left else TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        task = shown.add_task("", total=None, name="")

        def progress(name: str, done: int, total: int) -> None:
            shown.update(task, completed=done, total=total, name=name)

        yield progress
