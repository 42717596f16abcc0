"""A result as a Markdown table and as a figure: functions of its JSON alone."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.run import summarise


def load(path: Path) -> dict[str, Any]:
    """Reads a result."""
    result = json.loads(path.read_text())
    if result.get("format") != 1:
        raise ValueError(f"{path} is not a result of benchmarks.run, format 1.")
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown: one line a contestant and dtype, one column a batch."""
    lines = summarise(result)
    batches = sorted({line["batch"] for line in lines})
    cells = {(line["contestant"], line["batch"]): line for line in lines}
    names = list(dict.fromkeys(line["contestant"] for line in lines))
    heads = [
        "engine",
        "method",
        "dtype",
        *(f"batch {batch}, tokens/s" for batch in batches),
        "share of floor",
        "tau",
        "same text",
    ]
    rows = [heads, ["---"] * 3 + ["---:"] * (len(heads) - 3)]
    for name in names:
        own = [cells[name, b] for b in batches if (name, b) in cells]
        first = own[0]
        method = f"{first['method']}, K = {first['k']}" if first["k"] else "plain"
        rows.append(
            [
                first["engine"],
                method,
                first["dtype"],
                *(_rate(cells.get((name, batch))) for batch in batches),
                _number(first["floor_share"], ".2f"),
                _number(first["tau"], ".2f"),
                ", ".join(_number(line["equal"], ".2f") for line in own),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def notes(result: dict[str, Any]) -> str:
    """What the table's reader must know: machine, prompts, spread, refusals."""
    config, machine = result["config"], result["machine"]
    bandwidth = sorted(result["bandwidth_gb_s"])
    tokens = sorted(prompt["tokens"] for prompt in result["prompts"])
    busy = [
        run["cores_used_by_others"]
        for run in result["runs"]
        if run["cores_used_by_others"] is not None
    ]
    lines = summarise(result)
    passes = _span([line["passes"] for line in lines])
    disturbed = [line["disturbed"] for line in lines if line["disturbed"]]
    sentences = [
        f"{machine['cpu']} ({', '.join(machine['features'])}), {config['threads']} of "
        f"{machine['cores']} cores; {len(tokens)} prompts ({config['prompts']}) of "
        f"{tokens[0]} to {tokens[-1]} tokens, {config['max_tokens']} tokens each, "
        "greedy.",
        f"Medians of {passes} interleaved passes, lowest and highest in "
        "brackets; from the moment every row has a token to the last token.",
    ]
    if bandwidth:
        sentences.append(
            f"Memory reads {bandwidth[len(bandwidth) // 2]:.1f} GB/s "
            f"({bandwidth[0]:.1f} to {bandwidth[-1]:.1f})."
        )
    if busy:
        sentences.append(
            "Other processes used up to "
            f"{max(busy):.2f} cores while an engine was measured."
        )
    if disturbed:
        sentences.append(
            f"{sum(disturbed)} passes of {len(disturbed)} lines were disturbed (more "
            f"than {config['others']} cores); they count where a line has no others."
        )
    sentences += [f"Refused: {what}: {why}" for what, why in result["refused"].items()]
    return "\n".join(sentences)


def _span(counts: list[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"


def markdown(result: dict[str, Any]) -> str:
    """The table and its notes."""
    return f"{table(result)}\n\n{notes(result)}\n"


def figure(result: dict[str, Any], path: Path) -> list[Path]:
    """Draws tokens/s over batch, one panel a dtype, to SVG and PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = summarise(result)
    dtypes = list(dict.fromkeys(line["dtype"] for line in lines))
    figure, panels = pyplot.subplots(
        1, len(dtypes), figsize=(5.2 * len(dtypes), 4.2), squeeze=False, sharey=True
    )
    colours = {
        engine: f"C{i}"
        for i, engine in enumerate(dict.fromkeys(line["engine"] for line in lines))
    }
    marks = dict(
        zip(
            dict.fromkeys((line["method"], line["k"]) for line in lines),
            "os^Dv<>Pph*",
            strict=False,
        )
    )
    for panel, dtype in zip(panels[0], dtypes, strict=True):
        here = [line for line in lines if line["dtype"] == dtype]
        for name in dict.fromkeys(line["contestant"] for line in here):
            own = sorted(
                (line for line in here if line["contestant"] == name),
                key=lambda line: line["batch"],
            )
            middle = [line["tokens_per_second"] for line in own]
            label = own[0]["engine"] + (
                f", {own[0]['method']} K = {own[0]['k']}" if own[0]["k"] else ""
            )
            panel.errorbar(
                [line["batch"] for line in own],
                middle,
                yerr=[
                    [m - line["lowest"] for m, line in zip(middle, own, strict=True)],
                    [line["highest"] - m for m, line in zip(middle, own, strict=True)],
                ],
                color=colours[own[0]["engine"]],
                marker=marks.get((own[0]["method"], own[0]["k"]), "o"),
                linestyle="--" if own[0]["k"] else "-",
                capsize=2,
                label=label,
            )
        floor = _floor(result, dtype)
        if floor:
            panel.axhline(floor, color="0.7", linewidth=0.8)
            panel.annotate("floor, batch 1", (1, floor), color="0.5", fontsize=8)
        batches = sorted({line["batch"] for line in here})
        panel.set_xscale("log", base=2)
        panel.set_xticks(batches, [str(batch) for batch in batches])
        panel.set_xlabel("batch")
        panel.set_title(dtype)
        panel.legend(fontsize=8)
    panels[0][0].set_ylabel("decoded tokens/s, greedy")
    panels[0][0].set_ylim(bottom=0)
    figure.tight_layout()
    written = [path.with_suffix(suffix) for suffix in (".svg", ".png")]
    for file in written:
        save_figure(figure, file)
    pyplot.close(figure)
    return written


def ratio(
    result: dict[str, Any],
    ours: str,
    theirs: Iterable[str],
    *,
    batch: int,
) -> tuple[float, str]:
    """Our median over that of the best of them, and its name."""
    rates = {
        line["contestant"]: line["tokens_per_second"]
        for line in summarise(result)
        if line["batch"] == batch
    }
    known = [name for name in theirs if name in rates]
    if ours not in rates or not known:
        return math.nan, "nobody"
    best = max(known, key=rates.__getitem__)
    return rates[ours] / rates[best], best


def _floor(result: dict[str, Any], dtype: str) -> float | None:
    size, rates = result["model"]["step_bytes"].get(dtype), result["bandwidth_gb_s"]
    if not size or not rates:
        return None
    return sorted(rates)[len(rates) // 2] * 1e9 / size


def _rate(line: dict[str, Any] | None) -> str:
    if line is None:
        return "–"
    middle, low, high = (line[k] for k in ("tokens_per_second", "lowest", "highest"))
    return f"{middle:.1f} ({low:.1f}–{high:.1f})"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure; the same figure is the same file, for no date stands in it."""
    dated = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=dated)
