"""Whether a run says what another said: tau of the same texts, and speed-ups."""

from collections.abc import Mapping
from typing import Any

from benchmarks.zoo import summary

TAU = 0.03
"""By what part tau may differ. On one machine it is equal; elsewhere, sums rounded in
another order may turn a tie of two tokens, and the text goes on another way."""

SPEEDUP = 0.25
"""By what part a speed-up may differ: one text of each kind, measured once."""


def compare(
    here: Mapping[str, Any], there: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """A sentence for each contestant and K that both measured, and whether all agree.

    Only greedy texts at batch 1 that both have count, and of each contestant those
    with the same drafter.
    """
    ours, theirs = _rows(here), _rows(there)
    said, agree, compared = [], True, 0
    for (name, k), texts in ours.items():
        common = texts.keys() & theirs.get((name, k), {}).keys()
        if not common:
            said.append(f"{name}, K = {k}: not in the other run.")
            continue
        compared += 1
        mine, its = (
            summary.tau([rows[text] for text in sorted(common)])
            for rows in (texts, theirs[name, k])
        )
        words, fine = [], True
        if mine is not None and its is not None:
            near = abs(mine / its - 1) <= TAU
            fine &= near
            words.append(f"tau {mine:.3f} and {its:.3f}, {_word(near, TAU)}")
        fast, other = _speedup(here, name, k, common), _speedup(there, name, k, common)
        if fast is not None and other is not None:
            near = abs(fast / other - 1) <= SPEEDUP
            fine &= near
            words.append(f"{fast:.2f}× and {other:.2f}×, {_word(near, SPEEDUP)}")
        agree &= fine
        said.append(f"{name}, K = {k}: {'; '.join(words)}.")
    for name, k in sorted(theirs.keys() - ours.keys()):
        said.append(f"{name}, K = {k}: in the other run alone.")
    if not compared:
        said.append("The two runs have no text in common.")
    return said, agree and compared > 0


def _word(near: bool, part: float) -> str:
    return f"within {part:.0%}" if near else f"NOT within {part:.0%}"


def _alone(cell: Mapping[str, Any]) -> bool:
    return cell["batch"] == 1 and cell["temperature"] == 0


type Text = tuple[str, str]
"""The drafter's digest and the prompt's name: what must be the same in both."""


def _rows(result: Mapping[str, Any]) -> dict[tuple[str, int], dict[Text, Any]]:
    found: dict[tuple[str, int], dict[Text, Any]] = {}
    for cell in filter(_alone, result["cells"]):
        own = found.setdefault((cell["name"], cell["k"]), {})
        own |= {(str(cell["drafter"]), row["id"]): row for row in cell["rows"]}
    return found


def _speedup(
    result: Mapping[str, Any], name: str, k: int, common: set[Text]
) -> float | None:
    """Of the groups whose text is among these."""
    chosen = []
    for cell in filter(_alone, result["cells"]):
        if (cell["name"], cell["k"]) != (name, k):
            continue
        keep = [(str(cell["drafter"]), row["id"]) in common for row in cell["rows"]]
        part = {
            what: [one for one, kept in zip(cell[what], keep, strict=True) if kept]
            for what in ("groups", "plain", "rows", "cores_used_by_others")
        }
        chosen.append(dict(cell) | part)
    found = summary.lines(chosen)
    return found[0].speedup if found else None
