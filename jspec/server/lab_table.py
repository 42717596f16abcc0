"""The lab's result as a table: a line a controller, a column a load."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show"]


def show(result: Mapping[str, Any]) -> None:
    """Prints the sweep: a line a controller, a column a load."""
    loads = result["loads"]
    table = Table("tokens/s (K it settled on)", box=None, padding=(0, 2, 0, 0))
    for load in loads:
        table.add_column(f"{load['concurrency']} at once", justify="right")
    for name in loads[0]["read"]:
        cells = []
        for load in loads:
            static = {
                who: one["tokens_per_second"]
                for who, one in load["read"].items()
                if who.startswith("K=")
            }
            best, own = max(static, key=static.__getitem__), load["read"][name]
            rate = own["tokens_per_second"]
            if name in static:
                cells.append(f"{rate:.1f}" + (" best" if name == best else ""))
            else:
                right = "" if f"K={own['settled']}" == best else "not best, "
                share = rate / static[best]
                cells.append(f"{rate:.1f} (K={own['settled']}, {right}{share:.2f})")
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    for k, reach in result["break_even"].items():
        until = "at every load" if reach is None else f"up to {reach:.0f} at once"
        console.print(
            f"K = {k} gains {until}" if reach != 0 else f"K = {k} never gains"
        )
