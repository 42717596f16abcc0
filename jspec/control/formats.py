"""Schedules of vLLM, SGLang and depthchart, read and written.

vllm: `{"num_speculative_tokens_per_batch_size": [[1, 64, 3], …]}`, by batch; and by
context with the 5-tuples of the RFC. sglang: `{"1": {"candidate_steps": [3]}, …}`, by
batch alone. depthchart: `{"k_palette": […], "schedule_2d": [{"bs_lo": 1, …}]}`, by
both, with the same contexts for every batch.
"""

import importlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jspec.control.base import natural
from jspec.control.schedule import Schedule
from jspec.control.slots import read_slots, route

__all__ = [
    "Form",
    "from_depthchart",
    "from_sglang",
    "load",
    "read",
    "save",
    "to_depthchart",
    "to_sglang",
    "to_vllm",
]

type Form = Literal["vllm", "sglang", "depthchart"]

VLLM = (
    "speculative_token_schedule",
    "num_speculative_tokens_per_batch_size",
)
CELL = ("bs_lo", "bs_hi", "ctx_lo", "ctx_hi", "k")


def load(path: str | Path) -> Any:
    """The content of a JSON file, or of a YAML file where PyYAML is installed."""
    path = Path(path)
    text = path.read_text("utf-8")
    if path.suffix in (".yaml", ".yml"):
        try:
            yaml = importlib.import_module("yaml")
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{path.name} is YAML, which needs PyYAML: pip install 'jspec[bench]', "
                "or write it as JSON"
            ) from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{path.name} is not YAML: {error}") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error


def read(
    content: Any,
    *,
    max_batch: int,
    max_model_len: int,
    max_k: int,
    graph_batches: Sequence[int] | None = None,
) -> Schedule:
    """A schedule in any of the forms, told apart by their keys.

    Args:
      content: what `load` returned: a list of entries, or a mapping.
      max_batch: what the engine decodes at most.
      max_model_len: the longest context.
      max_k: the largest K it may name.
      graph_batches: batches that have an executable; SGLang's slots are looked up after
        padding to the next of them. `None`: every batch.
    """
    limits = {"max_batch": max_batch, "max_model_len": max_model_len, "max_k": max_k}
    if not isinstance(content, Mapping):
        return Schedule.parse(content, **limits)
    found = [key for key in VLLM if content.get(key) is not None]
    if len(found) > 1:
        raise ValueError(f"{found[0]} and {found[1]} are two names of one schedule")
    if found:
        return Schedule.parse(content[found[0]], **limits)
    if "schedule_2d" in content:
        return from_depthchart(content, **limits)
    if any(str(key).isdigit() for key in content):
        return from_sglang(content, graph_batches=graph_batches, **limits)
    raise ValueError(
        f"a schedule has the key {VLLM[1]} (vLLM), schedule_2d (depthchart) or batch "
        f"sizes (SGLang); this one has {', '.join(map(str, content)) or 'none'}"
    )


def save(
    schedule: Schedule, path: str | Path, form: Form, *, context: int | None = None
) -> None:
    """Writes one of the forms as JSON; depthchart's as YAML where the name says so."""
    path = Path(path)
    if form == "vllm":
        content = to_vllm(schedule, context=context)
    elif form == "sglang":
        content = to_sglang(schedule, context=context)
    elif form == "depthchart":
        content = to_depthchart(schedule)
    else:
        raise ValueError(f"{form!r} is not one of vllm, sglang, depthchart")
    # JSON is YAML too.
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def to_vllm(schedule: Schedule, *, context: int | None = None) -> dict[str, Any]:
    """vLLM's field; 3-tuples alone where contexts agree or one is chosen.

    vLLM 0.33 reads 3-tuples; 5-tuples are the RFC's.
    """
    if context is not None:
        schedule = _at(schedule, context)
    return {VLLM[1]: [list(entry) for entry in schedule.entries()]}


def to_sglang(schedule: Schedule, *, context: int | None = None) -> dict[str, Any]:
    """SGLang's adaptive file, each slot with a single candidate.

    A slot begins where a band begins. SGLang pads a batch to the next captured graph
    before it looks for the slot, so a band's last batches move to the next slot unless
    a graph ends where the band does.
    """
    if context is not None:
        schedule = _at(schedule, context)
    entries = schedule.entries()
    for entry in entries:
        if len(entry) == 5:
            raise ValueError(
                f"entry {list(entry)} depends on the context, which SGLang's file "
                "cannot say; choose a context to write"
            )
    return {str(low): {"candidate_steps": [k]} for low, _, k in entries}


def from_sglang(
    content: Mapping[Any, Any],
    *,
    max_batch: int,
    max_model_len: int,
    max_k: int,
    graph_batches: Sequence[int] | None = None,
) -> Schedule:
    """A file of SGLang whose slots leave no choice."""
    slots = read_slots(content)
    for low, slot in slots.items():
        if len(slot.candidates) > 1:
            raise ValueError(
                f"slot {low} leaves a choice of {list(slot.candidates)}: that is a "
                "configuration of jspec.control.Adaptive and no table"
            )
    graphs = graph_batches or range(1, max_batch + 1)
    entries = []
    for low, batches in itertools.groupby(
        range(1, max_batch + 1), key=lambda batch: route(batch, graphs, list(slots))
    ):
        band = list(batches)
        entries.append((band[0], band[-1], slots[low].candidates[0]))
    return Schedule.parse(
        entries, max_batch=max_batch, max_model_len=max_model_len, max_k=max_k
    )


def to_depthchart(schedule: Schedule) -> dict[str, Any]:
    """depthchart's table: bounds from 1, one grid, a 0 in the palette."""
    grid = schedule.grid()
    if len({cell[2] for cell in grid}) > 1 and grid[0][3] == 0:
        # Context 0 has a column of its own; depthchart counts from 1.
        grid = [cell for cell in grid if cell[3] > 0]
    rows = [
        dict(zip(CELL, (low, high, max(start, 1), end, k), strict=True))
        for low, high, start, end, k in grid
    ]
    return {
        "k_palette": sorted({0, *(row["k"] for row in rows)}),
        "schedule_2d": rows,
    }


def from_depthchart(
    content: Mapping[Any, Any], *, max_batch: int, max_model_len: int, max_k: int
) -> Schedule:
    """depthchart's table, by its own rules; beyond its bounds the last cells go on."""
    palette = content.get("k_palette")
    rows = content.get("schedule_2d")
    if not isinstance(palette, list | tuple) or not palette:
        raise ValueError("k_palette is missing or empty")
    palette = [natural(k, "k_palette: K") for k in palette]
    if 0 not in palette:
        raise ValueError(f"k_palette {palette} lacks 0, which overload needs")
    if not isinstance(rows, list | tuple) or not rows:
        raise ValueError("schedule_2d is missing or empty")
    cells = [_depthchart_cell(row, palette) for row in rows]
    batches = sorted({cell[:2] for cell in cells})
    contexts = sorted({cell[2:4] for cell in cells})
    for what, bounds in (("batch", batches), ("context", contexts)):
        if bounds[0][0] != 1:
            raise ValueError(
                f"schedule_2d begins at {what} {bounds[0][0]} instead of 1"
            )
        for one, other in itertools.pairwise(bounds):
            if other[0] != one[1] + 1:
                raise ValueError(
                    f"schedule_2d: the {what} ranges {list(one)} and {list(other)} do "
                    "not meet; each begins one after the last, alike in every row"
                )
    count: dict[tuple[int, ...], int] = {}
    for cell in cells:
        count[cell[:4]] = count.get(cell[:4], 0) + 1
    for corner in itertools.product(batches, contexts):
        bounds = (*corner[0], *corner[1])
        if count.get(bounds, 0) != 1:
            raise ValueError(
                f"schedule_2d has {count.get(bounds, 0)} cells for batches {bounds[0]} "
                f"to {bounds[1]} and contexts {bounds[2]} to {bounds[3]} instead of one"
            )
    last = contexts[-1][1]
    entries = [
        (
            low,
            high,
            0 if start == 1 else start,
            max(end, max_model_len) if end == last else end,
            k,
        )
        for low, high, start, end, k in cells
    ]
    return Schedule.parse(
        entries, max_batch=max_batch, max_model_len=max_model_len, max_k=max_k
    )


def _depthchart_cell(row: Any, palette: list[int]) -> tuple[int, int, int, int, int]:
    if not isinstance(row, Mapping) or set(row) != set(CELL):
        raise ValueError(f"schedule_2d: {row!r} is not a mapping of {', '.join(CELL)}")
    low, high, start, end = (
        natural(row[name], f"schedule_2d: {name}", 1) for name in CELL[:4]
    )
    k = natural(row["k"], "schedule_2d: k")
    if k not in palette:
        raise ValueError(
            f"schedule_2d: {dict(row)} has a k outside k_palette, {palette}"
        )
    if low > high or start > end:
        raise ValueError(f"schedule_2d: {dict(row)} has a low above its high")
    return low, high, start, end, k


def _at(schedule: Schedule, context: int) -> Schedule:
    """The same table, as if every context were this one."""
    entries = [
        (batch, batch, schedule.k(batch, context))
        for batch in range(1, schedule.max_batch + 1)
    ]
    return Schedule.parse(
        entries,
        max_batch=schedule.max_batch,
        max_model_len=schedule.max_model_len,
        max_k=max(schedule.palette),
    )
