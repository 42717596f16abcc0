"""Traces to replay: when requests come, how long they are, which drafts are kept."""

import dataclasses
import random
from collections.abc import Sequence

__all__ = ["Arrival", "generate"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request of a trace.

    Attributes:
      ms: when it comes.
      prompt: tokens to read.
      output: tokens to emit.
      rates: chance that the draft at each position is kept, those before it being kept;
        beyond the last, nothing is.
      drift: from contexts, ascending, on which `rates` are others: `(context, rates)`.
    """

    ms: float
    prompt: int
    output: int
    rates: tuple[float, ...]
    drift: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def rates_at(self, context: int) -> tuple[float, ...]:
        """The chances at a context."""
        rates = self.rates
        for start, other in self.drift:
            if context >= start:
                rates = other
        return rates


def generate(
    count: int,
    *,
    per_second: float,
    rates: Sequence[Sequence[float]],
    prompt: tuple[int, int] = (128, 1024),
    output: tuple[int, int] = (64, 512),
    seed: int = 0,
) -> list[Arrival]:
    """Poisson arrivals, lengths evenly between bounds, the rates of one kind each."""
    draw = random.Random(seed)
    ms = 0.0
    trace = []
    for _ in range(count):
        ms += draw.expovariate(per_second / 1000)
        trace.append(
            Arrival(
                ms=ms,
                prompt=draw.randint(*prompt),
                output=draw.randint(*output),
                rates=tuple(draw.choice(rates)),
            )
        )
    return trace
