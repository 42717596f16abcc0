"""Traces replayed against a cost table: what a controller is worth, without a model.

A trace says when requests arrive, how long their prompts and texts are, and how often
the draft at each position is kept. The engine here is the real one's skeleton: rows are
filled in order of arrival, one piece of a prompt is read between two rounds, a round
takes what the cost table says, and a controller hears of a round after the next one was
chosen. The controllers are the engine's own objects.

Whether a draft is kept is a coin of the request and of the token, not of the round:
under every controller the same tokens are easy, so differences are the controller's.
"""

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jspec.control.base import Controller, Counts, Static, Tree, spelled
from jspec.control.costs import CostTable
from jspec.control.traces import Arrival, generate

__all__ = ["Arrival", "Oracle", "Outcome", "compare", "generate", "simulate"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a replay came to.

    Attributes:
      tokens: emitted.
      ms: until the last of them.
      busy_ms: of it, the time in which something ran.
      rounds: rounds, those at K = 0 included.
      drafted: tokens drafted.
      accepted: tokens kept of them.
      rounds_at: rounds at each K.
      switches: changes of K from one round to the next.
      first_token_ms: median wait for the first token.
    """

    tokens: int
    ms: float
    busy_ms: float
    rounds: int
    drafted: int
    accepted: int
    rounds_at: dict[int, int]
    switches: int
    first_token_ms: float

    @property
    def tokens_per_second(self) -> float:
        """Over the time in which something ran.

        Below saturation this favours who is slow: more rows then share a round.
        """
        return 1000 * self.tokens / self.busy_ms if self.busy_ms else 0.0


class Oracle:
    """Knows every rate and every cost, and takes the best K of each round.

    The best of one round, not of a trace: where rows differ, drafting for the one that
    will be last may pay later, and a static K has come out 1 % ahead.
    """

    def __init__(self, palette: Sequence[int], costs: CostTable) -> None:
        """Chooses among `palette`."""
        self._palette = tuple(sorted(set(palette)))
        self._costs = costs
        self._rates: Sequence[Sequence[float]] = ()

    @property
    def palette(self) -> tuple[int, ...]:
        """What it chooses among."""
        return self._palette

    def see(self, rates: Sequence[Sequence[float]]) -> None:
        """Is shown the chances of each row."""
        self._rates = rates

    def k(self, batch: int, context: int = 0) -> int:
        """The K of most expected tokens per millisecond; of several, the smallest."""
        most = self._palette[-1]
        kept = np.zeros((len(self._rates), most))
        for row, rates in enumerate(self._rates):
            kept[row, : len(rates)] = rates[:most]
        emitted = batch + np.concatenate(
            ([0.0], kept.cumprod(axis=1).sum(axis=0).cumsum())
        )
        return max(
            self._palette,
            key=lambda k: (emitted[k] / self._costs.round_ms(batch, k, context), -k),
        )

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Has nothing to learn."""


@dataclasses.dataclass
class _Row:
    """A request in its row."""

    number: int
    arrival: Arrival
    unread: int
    emitted: int = 0

    @property
    def context(self) -> int:
        return self.arrival.prompt + self.emitted


def simulate(
    trace: Sequence[Arrival],
    controller: Controller,
    costs: CostTable,
    *,
    max_batch: int,
    prefill_chunk: int = 512,
    lag: int = 1,
    seed: int = 0,
) -> Outcome:
    """Replays a trace; the same arguments, the same outcome.

    Args:
      trace: requests by arrival.
      controller: chooses K, and learns; it is changed.
      costs: of every round; a piece of a prompt costs what verifying it would.
      max_batch: rows.
      prefill_chunk: tokens of a prompt that are read between two rounds.
      lag: rounds chosen before the controller hears of one.
      seed: of the coins.
    """
    waiting = deque(enumerate(sorted(trace, key=lambda arrival: arrival.ms)))
    sized = [size for size in controller.palette if isinstance(size, Tree)]
    if sized:
        raise ValueError(
            f"a trace says how often the drafts of a chain are kept, and nothing of "
            f"the tree (K/nodes) {spelled(sized[0])}"
        )
    rows: list[_Row] = []
    late: deque[tuple[np.ndarray, list[int]]] = deque()
    rounds_at: Counter[int] = Counter()
    first_tokens: list[float] = []
    now = busy = 0.0
    tokens = drafted = kept = switches = 0
    last = None
    while waiting or rows:
        if not rows and waiting[0][1].ms > now:
            now = waiting[0][1].ms
        while waiting and len(rows) < max_batch and waiting[0][1].ms <= now:
            number, arrival = waiting.popleft()
            rows.append(_Row(number, arrival, unread=max(0, arrival.prompt - 1)))
        reading = next((row for row in rows if row.unread), None)
        spent = 0.0
        if reading is not None:
            piece = min(reading.unread, prefill_chunk)
            done = reading.arrival.prompt - 1 - reading.unread
            spent += costs.verify_ms(piece, 1, done)
            reading.unread -= piece
        live = [row for row in rows if not row.unread]
        if live:
            lengths = sorted(row.context for row in live)
            context = lengths[(len(lengths) - 1) // 2]
            if isinstance(controller, Oracle):
                controller.see([row.arrival.rates_at(row.context) for row in live])
            k = controller.k(len(live), context)
            spent += costs.round_ms(len(live), k, context)
            accepted = [_accepted(row, k, seed) for row in live]
            late.append((_confidence(live, k), accepted))
            while len(late) > lag:
                _tell(controller, *late.popleft())
            rounds_at[k] += 1
            switches += last is not None and k != last
            last = k
            drafted += k * len(live)
            kept += sum(accepted)
            for row, count in zip(live, accepted, strict=True):
                if row.emitted == 0:
                    first_tokens.append(now + spent - row.arrival.ms)
                emitted = min(count + 1, row.arrival.output - row.emitted)
                row.emitted += emitted
                tokens += emitted
            rows = [row for row in rows if row.emitted < row.arrival.output]
        now += spent
        busy += spent
    return Outcome(
        tokens=tokens,
        ms=now,
        busy_ms=busy,
        rounds=sum(rounds_at.values()),
        drafted=drafted,
        accepted=kept,
        rounds_at=dict(sorted(rounds_at.items())),
        switches=switches,
        first_token_ms=float(np.median(first_tokens)) if first_tokens else math.nan,
    )


def compare(
    trace: Sequence[Arrival],
    controllers: Mapping[str, Callable[[], Controller]],
    costs: CostTable,
    *,
    palette: Sequence[int],
    **options: Any,
) -> dict[str, Outcome]:
    """Each controller on the same trace, after every static K and the oracle.

    Args:
      trace: requests.
      controllers: by name, how to make a fresh one.
      costs: of every round.
      palette: the K values to hold against: "K=0", … and "oracle" in the result.
      options: of `simulate`.
    """
    rivals: dict[str, Callable[[], Controller]] = {
        f"K={k}": lambda k=k: Static(k) for k in sorted(set(palette))
    }
    rivals["oracle"] = lambda: Oracle(palette, costs)
    return {
        name: simulate(trace, make(), costs, **options)
        for name, make in (rivals | dict(controllers)).items()
    }


def _confidence(rows: Sequence[_Row], k: int) -> np.ndarray:
    """What a drafter that knows the chances would say of its drafts, `[B, K]`."""
    said = np.zeros((len(rows), k))
    for line, row in zip(said, rows, strict=True):
        rates = row.arrival.rates_at(row.context)[:k]
        line[: len(rates)] = rates
    return said


def _tell(controller: Controller, confidence: np.ndarray, accepted: list[int]) -> None:
    batch, k = confidence.shape
    hear = getattr(controller, "hear", None)
    if hear is not None:
        hear(confidence, [k] * batch, accepted)
    controller.update(accepted, batch, k)


def _accepted(row: _Row, k: int, seed: int) -> int:
    """Leading drafts whose coin falls below their rate; the coin is the token's."""
    count = 0
    for rate in row.arrival.rates_at(row.context)[:k]:
        if _coin(seed, row.number, row.emitted + count) >= rate:
            break
        count += 1
    return count


def _coin(seed: int, request: int, token: int) -> float:
    """Uniform in [0, 1): splitmix64 of the three numbers (Steele et al. 2014)."""
    x = (seed * 0x9E3779B97F4A7C15 + request * 0xD1342543DE82EF95 + token) & _MASK
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) / 2**64


_MASK = 2**64 - 1
