"""A table, corrected by acceptance and overruled under pressure (depthchart).

The order of depthchart's `decide`: smooth the batch, find the tier, stay in it until
another one is asked for often enough in a row, look K up, demote it while acceptance is
low, and draft nothing under overload. Ours adds an acceptance above which a demotion
ends, waits longer after every recovery that failed, and probes where the demotion
itself stopped the signal. `Corrected.reference` has none of the three.
"""

import dataclasses
from collections.abc import Sequence

from jspec.control.base import Counts
from jspec.control.schedule import Schedule

__all__ = ["Corrected", "Correction", "Overload"]


@dataclasses.dataclass(kw_only=True)
class Correction:
    """Whether acceptance is too low for the table's K.

    The first observed round sets the mean; afterwards every `interval`th round moves
    it, by that round alone. Rounds without drafts show nothing.

    Attributes:
      demote_below: mean share of accepted drafts below which K is demoted.
      recover_at: share from which the demotion ends.
      alpha: weight of the newest observation.
      interval: observed rounds from one observation that counts to the next.
      warm_at: observed rounds before the first demotion.
      longest_wait: observations that count before a recovery, at most: the wait doubles
        each time a recovery failed.
      probe_after: decisions at K = 0 after which a demotion to 0 is tried out, doubling
        likewise; `None`: never.
    """

    demote_below: float = 0.55
    recover_at: float = 0.75
    alpha: float = 0.2
    interval: int = 5
    warm_at: int = 10
    longest_wait: int = 64
    probe_after: int | None = 64
    demoted: bool = dataclasses.field(default=False, init=False)
    _mean: float | None = dataclasses.field(default=None, init=False)
    _observed: int = dataclasses.field(default=0, init=False)
    _wait: int = dataclasses.field(init=False)
    _since: int = dataclasses.field(default=0, init=False)
    _parked: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        self._wait = min(1, self.longest_wait)

    def observe(self, accepted: Counts, drafted: int) -> None:
        """Learns from a round in which each row had `drafted` drafts."""
        if len(accepted) == 0 or drafted <= 0:
            return
        share = float(sum(accepted)) / len(accepted) / drafted
        self._observed += 1
        if self._mean is None:
            self._mean = share
        elif self._observed % self.interval == 0:
            self._mean = self.alpha * share + (1 - self.alpha) * self._mean
            self._since += 1
        if self._observed < self.warm_at:
            return
        if not self.demoted and self._mean < self.demote_below:
            self.demoted = True
            self._since = self._parked = 0
        elif (
            self.demoted and self._mean >= self.recover_at and self._since >= self._wait
        ):
            self._recover()

    def correct(self, k: int, palette: Sequence[int]) -> int:
        """The table's K, or the next lower one of the palette."""
        if not self.demoted or k == 0:
            return k
        lower = max((other for other in palette if other < k), default=0)
        if lower == 0 and self.probe_after is not None:
            self._parked += 1
            if self._parked >= self.probe_after * self._wait:
                self._observed, self._mean = 0, None
                self._recover()
                return k
        return lower

    def _recover(self) -> None:
        self.demoted = False
        self._wait = min(2 * self._wait, self.longest_wait)


@dataclasses.dataclass(kw_only=True)
class Overload:
    """Whether the engine is under pressure. The latest observation decides.

    Attributes:
      kv_usage_above: percent of the pages in use.
      preempting_for: observations in a row in which preemptions rose.
      queue_above: waiting requests; `None`: however many.
    """

    kv_usage_above: float = 90.0
    preempting_for: int = 3
    queue_above: int | None = None
    _kv_usage: float = dataclasses.field(default=0.0, init=False)
    _queue: int = dataclasses.field(default=0, init=False)
    _rises: int = dataclasses.field(default=0, init=False)

    def observe(self, *, kv_usage: float, preempted: int, queue: int) -> None:
        """Notes the pages in use (percent), new preemptions, and waiting requests."""
        self._kv_usage, self._queue = kv_usage, queue
        self._rises = self._rises + 1 if preempted > 0 else 0

    @property
    def present(self) -> bool:
        """Whether drafting should stop."""
        return (
            self._kv_usage > self.kv_usage_above
            or self._rises >= self.preempting_for
            or (self.queue_above is not None and self._queue > self.queue_above)
        )


class Corrected:
    """A schedule behind a smoothed batch, a dwell, a correction and an overload rule.

    The context is not smoothed. The first decision adopts its tier; another tier must
    be asked for `dwell` times in a row, so a load that alternates never switches.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        correction: Correction | None = None,
        overload: Overload | None = None,
        smoothing: float = 0.3,
        dwell: int = 5,
    ) -> None:
        """Wraps the table.

        Args:
          schedule: the table.
          correction: the rule for low acceptance.
          overload: the rule for pressure, told through its `observe`.
          smoothing: weight of the newest batch.
          dwell: decisions in a row that a change of tier takes.
        """
        self.schedule = schedule
        self.correction = correction or Correction()
        self.overload = overload or Overload()
        self._smoothing = smoothing
        self._dwell = dwell
        self._batch: float | None = None
        self._tier: tuple[int, int] | None = None
        self._asked: tuple[int, int] | None = None
        self._times = 0
        self._k = 0

    @classmethod
    def reference(
        cls, schedule: Schedule, *, overload: Overload | None = None
    ) -> "Corrected":
        """As depthchart decides, its flapping between two K included."""
        correction = Correction(recover_at=0.55, longest_wait=0, probe_after=None)
        return cls(schedule, correction=correction, overload=overload)

    @property
    def palette(self) -> tuple[int, ...]:
        """The table's, and 0."""
        return tuple(sorted({0, *self.schedule.palette}))

    def k(self, batch: int, context: int = 0) -> int:
        """Decides; every call is a step in time."""
        if self._batch is None:
            self._batch = float(batch)
        else:
            new = self._smoothing
            self._batch = new * batch + (1 - new) * self._batch
        tier = self.schedule.tier(max(1, round(self._batch)), context)
        if self._tier is None or tier == self._tier:
            self._tier, self._asked, self._times = tier, None, 0
        else:
            self._times = self._times + 1 if tier == self._asked else 1
            self._asked = tier
            if self._times >= self._dwell:
                self._tier, self._asked, self._times = tier, None, 0
        k = self.correction.correct(self.schedule.k(*self._tier), self.palette)
        self._k = 0 if self.overload.present else k
        return self._k

    def update(self, accepted: Counts, batch: int, drafted: int | None = None) -> None:
        """Tells the correction; `drafted` unknown: the K decided last."""
        self.correction.observe(accepted, self._k if drafted is None else drafted)
