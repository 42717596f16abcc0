"""K from what was accepted: SGLang's loop to the letter, and ours without its cycles.

SGLang (0.5.23, `adaptive_spec_params.py`) keeps a mean accepted length per batch slot
and moves K along the slot's candidates. Two of its habits never end: a slot whose
drafts are all rejected alternates between 0 and the next candidate, and a ceiling takes
back every rise it did not forbid. It also sees neither cost nor which position failed.

Ours differs in three ways. A rise that is taken back doubles the wait before the next
one, probing from 0 included. The ceiling binds rises too. And with measured costs the
thresholds are replaced by expected tokens per millisecond.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jspec.control.base import Counts, natural
from jspec.control.formats import load
from jspec.control.slots import SGLANG_DEFAULT, Slot, read_slots, route

__all__ = ["Adaptive"]

LONGEST_WAIT = 64
"""Decisions between two rises that failed, at most: probes take 1/65 of the rounds."""

SETTLED = 8
"""Decisions after which a rise counts as right."""

MARGIN = 0.02
"""What a change of K must promise, as a share of the rate; taking back a rise: none."""

MEMORY = 50
"""Rounds after which evidence about a position weighs 1/e."""

HOPE = 0.9
"""Acceptance of the first position before there is evidence."""

HOPE_WEIGHT = 1.0
"""Trials that the hope, or the position before, stands for."""


@dataclasses.dataclass
class _State:
    """What a slot remembers.

    Attributes:
      ema: mean accepted length at the current K.
      count: rounds seen.
      waits: decisions before a rise, by the K that it leaves.
      still: decisions since the last change.
      left: the K that the last change left, if it was a rise and has not settled yet.
      kept: recent acceptances of each position, counting only rows that reached it.
      tried: recent rows that reached each position.
    """

    k: int
    ema: float
    count: int = 0
    waits: dict[int, int] = dataclasses.field(default_factory=dict)
    still: int = 0
    left: int | None = None
    kept: list[float] = dataclasses.field(default_factory=list)
    tried: list[float] = dataclasses.field(default_factory=list)


class Adaptive:
    """Chooses K per batch slot from accepted lengths, whatever the method."""

    def __init__(
        self,
        config: Mapping[Any, Any] | str | Path | None = None,
        *,
        graph_batches: Sequence[int],
        initial: int | None = None,
        compat: Literal["sglang"] | None = None,
        cost: Callable[[int, int, int], float] | None = None,
        max_k: int | None = None,
    ) -> None:
        """Begins every slot in the middle of its candidates, or at `initial`.

        Args:
          config: SGLang's adaptive configuration or the path of its JSON file; `None`:
            SGLang's default, and with `cost`, every K up to `max_k` in one slot.
          graph_batches: batches that have an executable.
          initial: K of every slot that lists it; `None`: the middle of all candidates.
          compat: "sglang": its traces, cycles included.
          cost: milliseconds of a round from (batch, K, context); see `CostTable`.
          max_k: the largest K to choose.
        """
        if compat not in (None, "sglang"):
            raise ValueError(f"compat {compat!r} is not 'sglang'")
        if compat and cost:
            raise ValueError("compat='sglang' knows no cost; leave one of them out")
        if not graph_batches:
            raise ValueError("graph_batches is empty")
        if config is None and cost is not None:
            most = 7 if max_k is None else natural(max_k, "max_k")
            config = {"1": {"candidate_steps": list(range(most + 1))}}
        if config is None:
            config = SGLANG_DEFAULT
        elif not isinstance(config, Mapping):
            config = load(config)
        if not isinstance(config, Mapping):
            raise ValueError("an adaptive configuration maps batch sizes to slots")
        self._slots = {
            low: _within(low, slot, max_k) for low, slot in read_slots(config).items()
        }
        self._graphs = sorted(natural(size, "graph batch", 1) for size in graph_batches)
        self._exact = compat == "sglang"
        self._cost = cost
        union = self.palette
        if initial is None:
            initial = union[len(union) // 2]
        elif initial not in union:
            raise ValueError(f"initial {initial} is not one of {list(union)}")
        self._states = {}
        for low, slot in self._slots.items():
            steps = slot.candidates
            first = initial if initial in steps else steps[len(steps) // 2]
            self._states[low] = _State(k=first, ema=float(first - 1))
        self._context = 0

    @property
    def palette(self) -> tuple[int, ...]:
        """Every candidate of some slot, ascending."""
        return tuple(
            sorted({k for slot in self._slots.values() for k in slot.candidates})
        )

    def k(self, batch: int, context: int = 0) -> int:
        """The current K of the batch's slot."""
        self._context = context
        return self._states[self._route(batch)].k

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Learns from a round; decides every `update_interval`th after the warm-up.

        Args:
          accepted: accepted drafts of each row; empty: nothing happened.
          batch: rows that decoded, for routing.
          drafted: K of that round; `None`: the slot's current K, as SGLang assumes.
        """
        if len(accepted) == 0:
            return
        low = self._route(batch)
        slot, state = self._slots[low], self._states[low]
        own = state.k if drafted is None or self._exact else drafted
        if own > 0 and own == state.k:
            mean = float(sum(accepted)) / len(accepted)
            weight = slot.ema_alpha
            state.ema = (1 - weight) * state.ema + weight * mean
        _count(state, accepted, own)
        state.count += 1
        beyond = state.count - slot.warmup_batches
        if beyond <= 0 or beyond % slot.update_interval:
            return
        if self._exact:
            _decide_as_sglang(slot, state)
        else:
            self._decide(slot, state, batch)

    def _route(self, batch: int) -> int:
        return route(batch, self._graphs, list(self._slots))

    def _decide(self, slot: Slot, state: _State, batch: int) -> None:
        state.still += 1
        if state.left is not None and state.still >= SETTLED:
            state.waits[state.left] = max(1, state.waits.get(state.left, 1) // 2)
            state.left = None
        if self._cost is None:
            wanted = _by_thresholds(slot, state.k, state.ema, rises_capped=True)
        else:
            costs = {k: self._cost(batch, k, self._context) for k in slot.candidates}
            wanted = _most_productive(state, costs)
        if wanted > state.k:
            if state.still < state.waits.get(state.k, 1):
                return
            if state.k == 0:
                # The cheapest probe, judged by itself.
                wanted = _next(slot, 0)
                state.ema = float(wanted - 1)
            state.left = state.k
        elif wanted < state.k:
            if state.left is not None:
                wait = 2 * state.waits.get(state.left, 1)
                state.waits[state.left] = min(wait, LONGEST_WAIT)
            state.left = None
        else:
            return
        state.k, state.still = wanted, 0


def _most_productive(state: _State, costs: Mapping[int, float]) -> int:
    """The K of most emitted tokens per millisecond, unless the gain is not worth it."""
    rates = {}
    for k, cost in costs.items():
        emitted = reach = 1.0
        for rate in _acceptance(state, k):
            reach *= rate
            emitted += reach
        rates[k] = emitted / cost
    best = max(rates, key=lambda k: (rates[k], -k))
    on_trial = state.left is not None and best < state.k
    margin = 0.0 if on_trial else MARGIN
    return best if rates[best] > (1 + margin) * rates[state.k] else state.k


def _acceptance(state: _State, k: int) -> list[float]:
    """Of each position, given the ones before; without evidence, that of the last."""
    rates: list[float] = []
    before = HOPE
    for position in range(k):
        kept = tried = 0.0
        if position < len(state.tried):
            kept, tried = state.kept[position], state.tried[position]
        before = (kept + HOPE_WEIGHT * before) / (tried + HOPE_WEIGHT)
        rates.append(before)
    return rates


def _count(state: _State, accepted: Counts, drafted: int) -> None:
    """Lets old evidence fade, at K = 0 too, and adds that of a round."""
    fade = math.exp(-1 / MEMORY)
    missing = drafted - len(state.tried)
    state.kept = [fade * kept for kept in state.kept] + [0.0] * missing
    state.tried = [fade * tried for tried in state.tried] + [0.0] * missing
    for row in accepted:
        for position in range(min(row + 1, drafted)):
            state.tried[position] += 1
            state.kept[position] += position < row


def _within(low: int, slot: Slot, max_k: int | None) -> Slot:
    if max_k is None:
        return slot
    candidates = tuple(k for k in slot.candidates if k <= max_k)
    if not candidates:
        raise ValueError(
            f"slot {low}: every candidate of {list(slot.candidates)} exceeds {max_k}"
        )
    return dataclasses.replace(slot, candidates=candidates)


def _fall(slot: Slot, k: int, ema: float) -> int:
    """Down while the mean accepted length is near what a lower candidate yields."""
    steps = slot.candidates
    at = steps.index(k)
    while at > 0:
        lower = steps[at - 1]
        threshold = (0.5 if lower == 0 else lower - 0.5) + slot.down_hysteresis
        if ema > threshold:
            break
        at -= 1
    return steps[at]


def _rise(slot: Slot, k: int, ema: float) -> int:
    """Up while nearly everything was accepted: one step beyond what was seen."""
    steps = slot.candidates
    at = steps.index(k)
    while at < len(steps) - 1 and ema > steps[at] - 0.5 + slot.up_hysteresis:
        at += 1
    return steps[at]


def _under_ceiling(slot: Slot, k: int, ema: float) -> int:
    if slot.ceiling_coeff <= 0:
        return k
    ceiling = max(1, math.ceil(ema * slot.ceiling_coeff))
    allowed = [step for step in slot.candidates if step <= min(ceiling, k)]
    return allowed[-1] if allowed else slot.candidates[0]


def _next(slot: Slot, k: int) -> int:
    return next((step for step in slot.candidates if step > k), k)


def _by_thresholds(slot: Slot, k: int, ema: float, *, rises_capped: bool) -> int:
    if k == 0:
        return _next(slot, 0)
    wanted = _fall(slot, k, ema)
    if wanted == k:
        wanted = _rise(slot, k, ema)
    if wanted > k and not rises_capped:
        return wanted
    return _under_ceiling(slot, wanted, ema)


def _decide_as_sglang(slot: Slot, state: _State) -> None:
    wanted = _by_thresholds(slot, state.k, state.ema, rises_capped=False)
    if state.k == 0 and wanted > 0 and state.ema < 0:
        state.ema = float(wanted - 1)
    state.k = wanted
