"""A zoo run as Markdown: a function of its JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.zoo import summary
from benchmarks.zoo.judging import judge
from benchmarks.zoo.plan import TREES
from benchmarks.zoo.summary import Cost, Line


def markdown(result: Mapping[str, Any]) -> str:
    """The whole report."""
    cells = result["cells"]
    if not cells:
        return "# The zoo\n\nNothing was measured yet.\n"
    found = summary.costs(result["costs"], tuple(TREES))
    alone = summary.lines(cells, _greedy_alone)
    parts = [
        "# The zoo",
        _about(result),
        "\n".join(f"- {claim.sentence()}" for claim in judge(result)),
        "## Greedy, batch 1, all kinds of prompts",
        _main(alone, found, _floor(result)),
        _reading(result),
        "## By kind of prompt",
        "Greedy, batch 1; each method at its fastest K.",
        _across(alone, cells, "kind", _greedy_alone),
        "## By temperature",
        "Batch 1, all kinds; each method at its fastest K of greedy text.",
        _across(alone, cells, "temperature", lambda cell: cell["batch"] == 1),
        "## By batch",
        "Greedy, all kinds; each method at its fastest K of batch 1.",
        _across(alone, cells, "batch", lambda cell: cell["temperature"] == 0),
        "## Acceptance by position",
        "Of the rounds that offered a draft at a position (in brackets, how many) the "
        "share that kept it; greedy, batch 1, the largest K of each method.",
        _positions(alone),
        "## Costs of a round",
        f"In passes of one token of the same batch, at {_context(result)}: a round, "
        "verifying K + 1 tokens without a drafter, the difference, and that by draft "
        "pass (`c`).",
        _costs(found),
    ]
    if result["refused"]:
        parts += ["## Not measured", _refusals(result["refused"])]
    return "\n\n".join(parts) + "\n"


def _greedy_alone(cell: Mapping[str, Any]) -> bool:
    return cell["batch"] == 1 and cell["temperature"] == 0


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first columns to the left, numbers to the right."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def times(value: float, interval: tuple[float, float] | None) -> str:
    """A speed-up and where its median lies."""
    if interval is None:
        return f"{value:.2f}×"
    return f"{value:.2f}× ({interval[0]:.2f}–{interval[1]:.2f})"


def _main(found: Sequence[Line], measured: Sequence[Cost], floor: float | None) -> str:
    cost = {(one.name, one.k): one for one in measured if one.batch == 1}
    rows = []
    for line in found:
        own = cost.get((line.name, line.k))
        rows.append(
            [
                f"`{line.name}`",
                str(line.k or "–"),
                _number(line.tau, ".2f"),
                times(line.speedup, line.interval),
                str(line.pairs),
                f"{line.rate:.1f} ({line.lowest:.1f}–{line.highest:.1f})",
                _number(None if floor is None else line.rate / floor, ".2f"),
                _number(None if own is None else own.drafts, ".2f"),
                _number(None if own is None else own.c, ".3f"),
                _number(line.equal, ".2f"),
            ]
        )
    heads = ["method", "K", "tau", "speed-up", "pairs", "tokens/s", "of floor"]
    return table([*heads, "drafting", "c", "same text"], rows)


def _across(
    alone: Sequence[Line],
    cells: Sequence[Mapping[str, Any]],
    axis: str,
    chosen: Any,
) -> str:
    """A column a value of an axis: speed-up and tau, at the K that is fastest alone."""
    values = list(dict.fromkeys(cell[axis] for cell in cells if chosen(cell)))
    if axis != "kind":
        values.sort()
    by_value = {
        value: {
            (line.name, line.k): line
            for line in summary.lines(
                cells, lambda cell, v=value: chosen(cell) and cell[axis] == v
            )
        }
        for value in values
    }
    rows = []
    for line in summary.best(alone):
        row = [f"`{line.name}`", str(line.k or "–")]
        for value in values:
            own = by_value[value].get((line.name, line.k))
            row.append("–" if own is None else _gain(own))
        rows.append(row)
    names = {"kind": "{}", "temperature": "T = {:g}", "batch": "batch {}"}
    return table(["method", "K", *(names[axis].format(v) for v in values)], rows)


def _gain(line: Line) -> str:
    return f"{times(line.speedup, line.interval)}, tau {_number(line.tau, '.2f')}"


def _positions(found: Sequence[Line]) -> str:
    last = [
        line
        for line in found
        if line.accepted and line.k == max(o.k for o in found if o.name == line.name)
    ]
    most = max((len(line.accepted) for line in last), default=0)
    rows = [
        [
            f"`{line.name}`",
            str(line.k),
            *(
                f"{share:.2f} ({count})"
                for share, count in zip(line.accepted, line.offered, strict=True)
            ),
            *["–"] * (most - len(line.accepted)),
        ]
        for line in last
    ]
    return table(["method", "K", *map(str, range(1, most + 1))], rows)


def _costs(measured: Sequence[Cost]) -> str:
    rows = [
        [
            f"`{one.name}`",
            str(one.k),
            str(one.batch),
            f"{one.round:.2f}",
            f"{one.verify:.2f}",
            f"{one.drafts:.2f}",
            _number(one.c, ".3f"),
        ]
        for one in measured
    ]
    heads = ["method", "K", "batch", "round", "verifying", "drafting", "c"]
    return table(heads, rows)


def _refusals(refused: Sequence[Mapping[str, Any]]) -> str:
    ks: dict[tuple[str, str], list[int]] = {}
    for line in refused:
        ks.setdefault((line["name"], line["why"]), []).append(line["k"])
    return "\n".join(
        f"- `{name}`, K = {', '.join(map(str, own))}: {why}"
        for (name, why), own in ks.items()
    )


def _bandwidths(result: Mapping[str, Any]) -> list[float]:
    return sorted(rate for line in result["costs"] for rate in line["bandwidth_gb_s"])


def _floor(result: Mapping[str, Any]) -> float | None:
    """Tokens a second if a token took no longer than to read the weights."""
    rates = _bandwidths(result)
    if not rates:
        return None
    return rates[len(rates) // 2] * 1e9 / result["starts"][-1]["weight_bytes"]


def _context(result: Mapping[str, Any]) -> str:
    contexts = sorted({line["context"] for line in result["costs"]})
    return f"{', '.join(map(str, contexts)) or 'no'} tokens of context"


def _about(result: Mapping[str, Any]) -> str:
    last = result["starts"][-1]
    machine, config = last["machine"], last["config"]
    versions = ", ".join(f"{k} {v}" for k, v in last["versions"].items())
    commits = dict.fromkeys(
        f"{(start['commit'] or 'unknown')[:12]}{'+' if start['changed'] else ''}"
        for start in result["starts"]
    )
    others = [
        used
        for cell in result["cells"]
        for used in cell["cores_used_by_others"]
        if used is not None
    ]
    rates = _bandwidths(result)
    said = [
        f"{config['target']} in {config['dtype']} on {machine['cpu']} "
        f"({', '.join(machine['features'])}), {machine['cores']} cores.",
        f"Python {machine['python']}, {versions}; commit {', '.join(commits)} (+: with "
        "changes).",
        f"{config['max_tokens']} tokens a text, up to where it ends; seed "
        f"{config['seed']}; {len(result['cells'])} cells, begun "
        f"{result['starts'][0]['started']}.",
    ]
    if rates:
        said.append(
            f"Memory reads {rates[len(rates) // 2]:.1f} GB/s ({rates[0]:.1f} to "
            f"{rates[-1]:.1f})."
        )
    if others:
        said.append(
            f"Other processes used up to {max(others):.2f} cores during a measurement."
        )
    return " ".join(said)


def _reading(result: Mapping[str, Any]) -> str:
    texts = {(c["kind"], row["id"]) for c in result["cells"] for row in c["rows"]}
    return (
        f"{len(texts)} texts in all. Speed-up: over our own plain decoding of the same "
        "text seconds before or after, the median of all pairs with its 95 % interval; "
        "`none` against itself says what noise there is. Of floor: tokens/s over those "
        "of reading the weights once a token. Drafting: of a round, in passes of one "
        "token; c: of one draft pass. transformers' tau counts its own rounds."
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
