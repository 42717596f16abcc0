"""A zoo run as one JSON object: what its journal holds of the present drafters."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.zoo.journal import Journal
from benchmarks.zoo.plan import Contestant

FORMAT = 1
KIND = "zoo"
LISTS = ("rows", "groups", "plain")
"""What a cell has of every text, or of every group of texts."""


def collect(journal: Journal, contestants: Sequence[Contestant]) -> dict[str, Any]:
    """Everything that was measured of these contestants with their present drafters."""
    digests = {one.name: one.digest for one in contestants}

    def present(what: str) -> list[dict[str, Any]]:
        order = list(digests)
        own = [
            {key: value for key, value in line.items() if key != "what"}
            for line in journal.of(what)
            if digests.get(line["name"], "none") == line["drafter"]
        ]
        return sorted(own, key=lambda line: order.index(line["name"]))

    starts = [
        {key: value for key, value in line.items() if key != "what"}
        for line in journal.of("start")
    ]
    cells = present("cell")
    measured = {(cell["name"], cell["k"]) for cell in cells}
    refused = {
        (line["name"], line["k"]): line["why"]
        for line in journal.of("refused")
        if line["name"] in digests and (line["name"], line["k"]) not in measured
    }
    return {
        "format": FORMAT,
        "kind": KIND,
        "starts": starts,
        "refused": [
            {"name": name, "k": k, "why": why} for (name, k), why in refused.items()
        ],
        "costs": present("cost"),
        "cells": cells,
    }


def save(result: Mapping[str, Any], path: Path) -> None:
    """Writes the result, one cell a line; what a cell lists is written by column."""
    body = dict(result)
    cells = ",\n  ".join(
        json.dumps(
            cell | {name: _columns(cell[name]) for name in LISTS}, separators=(",", ":")
        )
        for cell in body.pop("cells")
    )
    text = json.dumps(body, indent=1)[:-2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text},\n "cells": [\n  {cells}\n ]\n}}\n', "utf-8")


def load(path: Path) -> dict[str, Any]:
    """Reads a result.

    Raises:
      ValueError: it is none.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{path} is no result of `jspec bench zoo`") from None
    if not isinstance(result, dict) or (result.get("format"), result.get("kind")) != (
        FORMAT,
        KIND,
    ):
        raise ValueError(f"{path} is no result of `jspec bench zoo`, format {FORMAT}")
    for cell in result["cells"]:
        cell |= {name: _records(cell[name]) for name in LISTS}
    return result


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {key: [record[key] for record in records] for key in records[0]}


def _records(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
