"""What was measured, a line each: a run that is stopped loses no line but the last."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.zoo.plan import Contestant, Turn

type Key = tuple[str, str | None, int, int, int, float, str]


class Journal:
    """A JSONL file; each line says `what` it is: a start, a cell, a cost, a refusal."""

    def __init__(self, path: Path, fixed: Mapping[str, Any]) -> None:
        """Reads what is there.

        Args:
          path: the file; it need not exist.
          fixed: what earlier starts must have had too.

        Raises:
          ValueError: it was measured with other settings, or is something else.
        """
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = _read(path)
        for start in self.of("start"):
            for name, value in fixed.items():
                if start["fixed"].get(name) != value:
                    raise ValueError(
                        f"{path} was measured with {name} {start['fixed'].get(name)!r} "
                        f"and not {value!r}: choose another folder"
                    )
        self._measured = {_key(line) for line in self.of("cell")}

    def of(self, what: str) -> list[dict[str, Any]]:
        """The lines of one sort."""
        return [line for line in self.lines if line["what"] == what]

    def missing(
        self, contestant: Contestant, digest: str | None, turn: Turn, ks: Sequence[int]
    ) -> list[int]:
        """Which of these K a turn has not been measured at."""
        return [k for k in ks if key(contestant, digest, turn, k) not in self._measured]

    def add(self, what: str, **fields: Any) -> None:
        """Appends a line, on the disk before this returns."""
        line = {"what": what} | fields
        self.lines.append(line)
        if what == "cell":
            self._measured.add(_key(line))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def key(contestant: Contestant, digest: str | None, turn: Turn, k: int) -> Key:
    """What tells one cell from all others."""
    return (
        contestant.name,
        digest,
        k,
        turn.number,
        turn.batch,
        turn.temperature,
        turn.kind,
    )


def _key(line: Mapping[str, Any]) -> Key:
    return (
        line["name"],
        line["drafter"],
        line["k"],
        line["pass"],
        line["batch"],
        line["temperature"],
        line["kind"],
    )


def _read(path: Path) -> list[dict[str, Any]]:
    """Whole lines; one that was being written when the run was stopped is cut off."""
    text = path.read_text("utf-8")
    whole, _, rest = text.rpartition("\n")
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        if not all(isinstance(line, dict) and "what" in line for line in lines):
            raise ValueError
    except ValueError:
        raise ValueError(f"{path} is there and holds no zoo run") from None
    if rest:
        path.write_text(whole + "\n" if whole else "", "utf-8")
    return lines
