"""What `schedule=` may be, and the controller that it names."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jspec.control import Adaptive, Controller, CostTable, Goodput, Schedule, formats
from jspec.control.base import Tree, depth, natural, spelled
from jspec.control.slots import read_slots

__all__ = ["fingerprint", "make_controller", "spell_schedule"]

ADAPTIVE = "adaptive"
"""The word for K by acceptance alone."""

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "table": "the best K by batch and context",
        ADAPTIVE: "K by acceptance and costs, one for all loads",
        "goodput": "K by acceptance and costs, by load",
        "budget": "K by what the drafter says of its drafts, and costs",
    }
)
"""What may be made of a file of `jspec calibrate`: `KIND:PATH`; alone: "goodput"."""


def make_controller(
    schedule: Any,
    *,
    max_batch: int,
    max_model_len: int,
    max_k: int,
    batches: Sequence[int],
    served: Mapping[str, Any] | None = None,
) -> Controller | None:
    """The controller that a schedule asks for; `None` asks for none.

    Args:
      schedule: "adaptive"; a list of 3- and 5-tuples; the path of a file of vLLM,
        SGLang, depthchart or `jspec calibrate`, or its content; "KIND:PATH" with one
        of `KINDS` and a file of the last sort; or a controller.
      max_batch: rows that decode at most.
      max_model_len: the longest context.
      max_k: what the method drafts at most.
      batches: that have an executable.
      served: what costs must have been measured for: entries of the file's `made`.

    Raises:
      ValueError: it is none of these, drafts more than the method, or was measured for
        something else.
    """
    if schedule is None:
        return None
    if isinstance(schedule, str) and schedule == ADAPTIVE:
        return Adaptive(graph_batches=batches, max_k=max_k)
    if all(hasattr(schedule, member) for member in ("palette", "k", "update")):
        return _bounded(schedule, max_k)
    kind, content = _content(schedule)
    if kind is not None:
        costs = _costs(content, served or {})
        trees = [size for size in costs.drafted if isinstance(size, Tree)]
        if trees and kind != "goodput":
            raise ValueError(
                f"the costs are of trees (K/nodes {spelled(trees[0])}), and of the "
                f"controllers goodput:PATH alone chooses trees, not {kind!r}"
            )
        if kind == ADAPTIVE:
            return Adaptive(graph_batches=batches, cost=costs.round_ms, max_k=max_k)
        if kind != "table":
            return Goodput(costs, max_k=max_k, confident=kind == "budget")
        content = content["schedule"]
    if isinstance(content, Mapping) and _leaves_choice(content):
        return _bounded(Adaptive(content, graph_batches=batches), max_k)
    if not isinstance(content, list | tuple | Mapping):
        raise ValueError(
            f"schedule= is {ADAPTIVE!r}, a list of entries, a file or a controller, "
            f"not {schedule!r}"
        )
    return formats.read(
        content,
        max_batch=max_batch,
        max_model_len=max_model_len,
        max_k=max_k,
        graph_batches=batches,
    )


def spell_schedule(schedule: Any, controller: Controller | None) -> Any:
    """A schedule as settings show it: text, or a table's entries; all of it JSON."""
    if controller is None or isinstance(schedule, str):
        return schedule
    if isinstance(controller, Schedule):
        return [list(entry) for entry in controller.entries()]
    return str(schedule) if isinstance(schedule, Path) else type(controller).__name__


def fingerprint(checkpoint: Path | None) -> str | None:
    """Tells checkpoints apart: a digest of the manifest and of the files' sizes."""
    if checkpoint is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    digest.update((checkpoint / "jspec.json").read_bytes())
    for file in sorted((checkpoint / "weights").rglob("*")):
        if file.is_file():
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    return digest.hexdigest()


def _content(schedule: Any) -> tuple[str | None, Any]:
    """The kind, where costs are to be used, and what the schedule says or its file."""
    kind = None
    if isinstance(schedule, str):
        word, mark, rest = schedule.partition(":")
        if word in KINDS:
            kind = word
            if not (mark and rest):
                raise ValueError(
                    f"schedule {schedule!r} needs measured costs: measure them with "
                    f"`jspec calibrate -o costs.json`, then ask for {word}:costs.json"
                )
            schedule = rest
    content = schedule
    if isinstance(schedule, str | Path):
        if not Path(schedule).is_file():
            raise ValueError(
                f"schedule {str(schedule)!r} is neither {ADAPTIVE!r} nor a file"
            )
        content = formats.load(schedule)
    measured = isinstance(content, Mapping) and "verify" in content
    if kind is not None and not measured:
        raise ValueError(
            f"schedule {kind!r} needs a file of jspec calibrate; {schedule} has no "
            "measured costs"
        )
    return (kind or "goodput" if measured else None), content


def _costs(content: Mapping[str, Any], served: Mapping[str, Any]) -> CostTable:
    """The cost table of a file of `jspec calibrate`, if it is whole and fits."""
    if content.get("complete") is False:
        raise ValueError(
            "the calibration was interrupted; the same jspec calibrate command goes on "
            "with it"
        )
    costs = CostTable.from_json(content)
    for name, value in served.items():
        if name in costs.made and costs.made[name] != value:
            raise ValueError(
                f"the costs were measured for another {name}: {costs.made[name]!r}, "
                f"and this is {value!r}; measure again (jspec calibrate)"
            )
    return costs


def _bounded(controller: Controller, max_k: int) -> Controller:
    what = "the schedule's palette: K"
    palette = tuple(natural(depth(size), what) for size in controller.palette)
    if not palette:
        raise ValueError("the schedule's palette is empty; it needs a K")
    if max(palette) > max_k:
        raise ValueError(
            f"the schedule's K {max(palette)} exceeds num_speculative_tokens, {max_k}"
        )
    return controller


def _leaves_choice(content: Mapping[Any, Any]) -> bool:
    """Whether it is a file of SGLang, with several candidates in some slot."""
    if not any(str(key).isdigit() for key in content):
        return False
    return any(len(slot.candidates) > 1 for slot in read_slots(content).values())
