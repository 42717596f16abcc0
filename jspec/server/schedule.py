"""What `schedule=` may be, and the controller that it names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jspec.control import Adaptive, Controller, Schedule, formats
from jspec.control.base import natural
from jspec.control.slots import read_slots

__all__ = ["make_controller", "spell_schedule"]

ADAPTIVE = "adaptive"
"""The word for K by acceptance; everything else that is text names a file."""


def make_controller(
    schedule: Any,
    *,
    max_batch: int,
    max_model_len: int,
    max_k: int,
    batches: Sequence[int],
) -> Controller | None:
    """The controller that a schedule asks for; `None` asks for none.

    Args:
      schedule: "adaptive"; a list of 3- and 5-tuples; the path of a file of vLLM,
        SGLang or depthchart, or its content; or a controller.
      max_batch: rows that decode at most.
      max_model_len: the longest context.
      max_k: what the method drafts at most.
      batches: that have an executable.

    Raises:
      ValueError: it is none of these, or drafts more than the method.
    """
    if schedule is None:
        return None
    if isinstance(schedule, str) and schedule == ADAPTIVE:
        return Adaptive(graph_batches=batches, max_k=max_k)
    if all(hasattr(schedule, member) for member in ("palette", "k", "update")):
        return _bounded(schedule, max_k)
    content = schedule
    if isinstance(schedule, str | Path):
        if not Path(schedule).is_file():
            raise ValueError(
                f"schedule {str(schedule)!r} is neither {ADAPTIVE!r} nor a file"
            )
        content = formats.load(schedule)
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


def _bounded(controller: Controller, max_k: int) -> Controller:
    palette = tuple(natural(k, "the schedule's palette: K") for k in controller.palette)
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
