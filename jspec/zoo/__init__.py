"""Drafters that are shipped: a folder a target, in it a folder a method with its card.

`jspec train` makes what belongs there: the checkpoint in `drafter`, and `card.json`,
both moved to `<target>/<method>/`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jspec.checkpoint import is_checkpoint

__all__ = ["FOLDER", "card", "find", "shipped"]

FOLDER = Path(__file__).parent
CARD = "card.json"


def shipped() -> dict[str, tuple[str, ...]]:
    """The methods that have a drafter, by the name of their target."""
    found: dict[str, tuple[str, ...]] = {}
    for target in sorted(FOLDER.iterdir()):
        if target.is_dir():
            methods = (each for each in target.iterdir() if is_checkpoint(each))
            names = tuple(sorted(each.name for each in methods))
            found |= {target.name: names} if names else {}
    return found


def find(target: Any, method: Any) -> Path | None:
    """The checkpoint of a method's drafter for a target named so; `None`: no such."""
    if target not in (known := shipped()) or method not in known[target]:
        return None
    return FOLDER / target / method


def card(target: str, method: str) -> Mapping[str, Any]:
    """What is said of a shipped drafter: how it was made, and what it is worth.

    Raises:
      ValueError: there is none.
    """
    path = find(target, method)
    if path is None:
        raise ValueError(
            f"no drafter of method {method!r} for {target!r} is shipped; there are "
            f"{shipped() or 'none'}"
        )
    return json.loads((path / CARD).read_text("utf-8"))
