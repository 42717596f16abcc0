"""SGLang's adaptive configuration: candidates by batch slot, as its file spells them.

Read from sglang 0.5.23 (`adaptive_spec_params.py`): defaults, merging and routing are
its own; booleans, which it takes for integers, are refused.
"""

import bisect
import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jspec.control.base import natural

__all__ = ["SGLANG_DEFAULT", "Slot", "read_slots", "route"]

SGLANG_DEFAULT: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "1": {"candidate_steps": [1, 3, 5, 7], "down_hysteresis": -0.25},
        "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
        "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
        "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """What one range of batches may draft, and how fast it changes its mind.

    Attributes:
      candidates: the K values it may choose, ascending.
      ema_alpha: weight of the newest round in the mean accepted length.
      update_interval: rounds from one decision to the next.
      warmup_batches: rounds before the first interval begins.
      down_hysteresis: added to every threshold below which K falls.
      up_hysteresis: added to every threshold above which K rises.
      ceiling_coeff: K is at most this times the accepted length, rounded up; 0: off.
    """

    candidates: tuple[int, ...]
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0


def read_slots(config: Mapping[Any, Any]) -> dict[int, Slot]:
    """The slots by their first batch, ascending; other keys are defaults of all."""
    slots = {key: value for key, value in config.items() if str(key).isdigit()}
    shared = {key: value for key, value in config.items() if key not in slots}
    if not slots:
        raise ValueError("the adaptive configuration has no batch size among its keys")
    read = {}
    for key, own in slots.items():
        if not isinstance(own, Mapping):
            raise ValueError(f"slot {key}: {own!r} is not a mapping")
        if int(key) in read:
            raise ValueError(f"slot {int(key)} is there twice")
        read[int(key)] = _slot(key, {**shared, **own})
    return dict(sorted(read.items()))


def route(batch: int, graph_batches: Sequence[int], slots: Sequence[int]) -> int:
    """The slot of a batch: padded up to the next graph, the last that began by then.

    A batch above the largest graph stays as it is; below every slot, the first has it.

    Args:
      batch: rows that decode.
      graph_batches: batches that have an executable, ascending.
      slots: where slots begin, ascending.
    """
    ahead = bisect.bisect_left(graph_batches, batch)
    padded = graph_batches[ahead] if ahead < len(graph_batches) else batch
    return slots[max(0, bisect.bisect_right(slots, padded) - 1)]


def _slot(key: Any, fields: dict[str, Any]) -> Slot:
    steps = fields.pop("candidate_steps", None)
    if not isinstance(steps, list | tuple) or not steps:
        raise ValueError(f"slot {key}: candidate_steps is not a list of some integers")
    candidates = tuple(
        sorted({natural(step, f"slot {key}: candidate step") for step in steps})
    )
    known = [field.name for field in dataclasses.fields(Slot)][1:]
    for name, value in fields.items():
        if name not in known:
            raise ValueError(
                f"slot {key}: {name!r} is not one of candidate_steps, "
                f"{', '.join(known)}"
            )
        if name in ("update_interval", "warmup_batches"):
            natural(value, f"slot {key}: {name}", int(name == "update_interval"))
        elif (
            isinstance(value, bool)
            or not isinstance(value, numbers.Real)
            or not math.isfinite(value)
        ):
            raise ValueError(f"slot {key}: {name} {value!r} is not a number")
    slot = Slot(candidates=candidates, **fields)
    if not 0 < slot.ema_alpha <= 1:
        raise ValueError(f"slot {key}: ema_alpha {slot.ema_alpha} is outside (0, 1]")
    if slot.ceiling_coeff < 0:
        raise ValueError(f"slot {key}: ceiling_coeff {slot.ceiling_coeff} is below 0")
    return slot
