"""What measured costs say: the best K of each batch and context, and the table of them.

Beside each stands the K of the closed form (`economics`), which knows two numbers of
the machine alone: what a draft pass costs in target steps, and from how many tokens on
a step costs more. Both are read off the same measurements.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jspec.control import economics
from jspec.control.acceptance import emitted
from jspec.control.base import Size, Tree, depth
from jspec.control.costs import CostTable, Sample
from jspec.control.goodput import best_k
from jspec.control.schedule import Schedule

__all__ = ["Best", "Constants", "compare", "constants", "from_rounds", "to_schedule"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """A machine and a drafter in two numbers.

    Attributes:
      c: a draft pass, in target steps at batch 1.
      t_star: tokens from which a step costs as much as they do; infinite where no
        measured step was slowed down by its tokens.
      parallel: whether one pass drafts all K.
    """

    c: float
    t_star: float
    parallel: bool

    def cost(self, batch: int, k: int) -> float:
        """A round, in target steps at batch 1."""
        step = max(1.0, batch * (k + 1) / self.t_star)
        drafts = economics.drafting(k, self.c, parallel=self.parallel)
        return step + drafts * max(1.0, batch / self.t_star)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """One batch and context.

    Attributes:
      predicted: the best K by the closed form.
      measured: the best K by measured costs.
      gain: emitted per second at `measured`, over no drafts; derived from measured
        costs and the acceptance that is assumed.
      predicted_gain: the same at `predicted`: what following the closed form is worth.
    """

    batch: int
    context: int
    predicted: int
    measured: int
    gain: float
    predicted_gain: float


def from_rounds(
    rounds: Sequence[Sample],
    verify: Sequence[Sample],
    made: Mapping[str, Any],
    *,
    packed: Sequence[Sample] = (),
) -> CostTable:
    """The cost table of measured rounds and measured passes without a drafter.

    Drafting is what a round takes beyond the pass over a chain of K, `observe` and a
    tree's other nodes included. Where a pass alone came out slower, drafting is free.

    Args:
      rounds: `size` is K; those at 0 are passes themselves.
      verify: `size` is tokens, all rows together.
      made: see `CostTable`.
      packed: see `CostTable`.
    """

    def medians(samples: Sequence[Sample]) -> dict[tuple[int, Size, int], float]:
        times: dict[tuple[int, Size, int], list[float]] = {}
        for one in samples:
            times.setdefault((one.batch, one.drafted, one.context), []).append(one.ms)
        return {key: statistics.median(ms) for key, ms in times.items()}

    plain = [
        dataclasses.replace(one, size=one.batch) for one in rounds if one.size == 0
    ]
    passes = medians([*plain, *verify])
    drafts = [
        Sample(
            ms=max(0.0, ms - passes[batch, batch * (depth(size) + 1), context]),
            batch=batch,
            size=depth(size),
            context=context,
            nodes=size.nodes if isinstance(size, Tree) else None,
        )
        for (batch, size, context), ms in medians(rounds).items()
        if size != 0
    ]
    return CostTable(verify=[*plain, *verify], draft=drafts, packed=packed, made=made)


def constants(costs: CostTable, palette: Sequence[int], passes: str) -> Constants:
    """The two numbers of the closed form, at the shortest measured context.

    Args:
      costs: measured.
      palette: K values whose drafts were measured.
      passes: of the method: "none", "one" or "gamma".
    """
    verify = costs.samples["verify"]
    context = min(sample.context for sample in verify)
    here = [sample for sample in verify if sample.context == context]
    step = costs.verify_ms(1, 1, context)
    largest = max(here, key=lambda sample: sample.size)
    slowest = costs.verify_ms(largest.size, largest.batch, context)
    per_token = (slowest - step) / max(1, largest.size - 1)
    drafts = [k for k in palette if k > 0]
    c = [
        costs.draft_ms(1, k, context) / step / economics.invocations(passes, k)
        for k in drafts
        if economics.invocations(passes, k)
    ]
    return Constants(
        c=statistics.median(c) if c else 0.0,
        t_star=step / per_token if per_token > 0 else math.inf,
        parallel=passes == "one",
    )


def compare(
    costs: CostTable,
    rates: Sequence[float],
    palette: Sequence[int],
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    passes: str,
) -> list[Best]:
    """The best K of each measured batch and context, predicted and measured.

    Args:
      costs: measured.
      rates: acceptance of each position, as many as the largest K.
      palette: K values to choose from.
      batches: measured.
      contexts: measured.
      passes: of the method.
    """
    known = constants(costs, palette, passes)
    tokens = emitted(rates)
    found = []
    for context in contexts:
        for batch in batches:

            def rate(k: int, at: tuple[int, int] = (batch, context)) -> float:
                return tokens[k] / costs.round_ms(at[0], k, at[1])

            measured = best_k(costs, rates, palette, batch, context)
            predicted = max(
                palette, key=lambda k: (tokens[k] / known.cost(batch, k), -k)
            )
            found.append(
                Best(
                    batch=batch,
                    context=context,
                    predicted=predicted,
                    measured=measured,
                    gain=rate(measured) / rate(0),
                    predicted_gain=rate(predicted) / rate(0),
                )
            )
    return found


def to_schedule(best: Sequence[Best], *, max_model_len: int) -> Schedule:
    """The table: batches are padded to the next measured one, contexts to the nearest.

    Args:
      best: measured, by batch and context.
      max_model_len: where the last context ends.
    """
    batches = sorted({one.batch for one in best})
    contexts = sorted({one.context for one in best if one.context <= max_model_len})
    k = {(one.batch, one.context): one.measured for one in best}
    entries = []
    for before, batch in zip([0, *batches[:-1]], batches, strict=True):
        for at, context in enumerate(contexts):
            low = 0 if at == 0 else (contexts[at - 1] + context) // 2 + 1
            last = at == len(contexts) - 1
            high = max_model_len if last else (context + contexts[at + 1]) // 2
            entries.append((before + 1, batch, low, high, k[batch, context]))
    return Schedule.parse(
        entries,
        max_batch=batches[-1],
        max_model_len=max_model_len,
        max_k=max(k.values()),
    )
