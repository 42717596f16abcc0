"""What a round costs: measured times of verification and drafting, and in between.

A step takes the time of the next size that has an executable, because it is padded to
it: up to the largest bucket the curve is a step function, and nothing is interpolated
that does not exist (vLLM 0.33, `adaptive_verification.py`). Beyond, it is linear. Both
are made monotone by a running maximum. Unlike vLLM's, a table knows contexts, and may
know the batch: the same number of tokens reads more pages in more rows.
"""

import bisect
import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jspec.control.base import Size, Tree, depth, natural, order, spelled
from jspec.control.samples import Sample, sample_of

__all__ = ["CostTable", "Curve", "Sample", "between"]

LEAST_MS = 1e-6
"""Of a verification: costs are divided by."""


class Curve:
    """Milliseconds by size: steps up to the largest bucket, linear beyond.

    A single point is a constant.
    """

    def __init__(
        self, points: Iterable[tuple[int, float]], *, largest_bucket: int | None = None
    ) -> None:
        """Takes the median of each size and then the running maximum over sizes.

        Args:
          points: sizes and times, in any order.
          largest_bucket: the last size that others are padded to; `None`: the largest.
        """
        times: dict[int, list[float]] = {}
        for size, ms in points:
            if not (math.isfinite(ms) and ms >= 0):
                raise ValueError(f"{ms} ms at size {size} is not a time")
            times.setdefault(natural(size, "size"), []).append(float(ms))
        if not times:
            raise ValueError("a cost curve needs at least one measured size")
        self.sizes = np.array(sorted(times))
        medians = np.array([statistics.median(times[size]) for size in sorted(times)])
        self.ms = np.maximum.accumulate(medians)
        within = self.sizes
        if largest_bucket is not None:
            within = self.sizes[self.sizes <= natural(largest_bucket, "largest bucket")]
        self.largest_bucket = int(within[-1]) if len(within) else 0

    def at(self, sizes: np.ndarray) -> np.ndarray:
        """The time of each size."""
        ahead = np.searchsorted(self.sizes, sizes)
        steps = self.ms[np.minimum(ahead, len(self.ms) - 1)]
        if len(self.ms) == 1:
            return steps
        (before, last), (low, high) = self.sizes[-2:], self.ms[-2:]
        slope = (high - low) / (last - before)
        linear = np.interp(sizes, self.sizes, self.ms)
        linear = np.where(sizes > last, high + slope * (sizes - last), linear)
        return np.where(sizes <= self.largest_bucket, steps, linear)


class CostTable:
    """Milliseconds of a round from batch, K and context."""

    def __init__(
        self,
        *,
        verify: Sequence[Sample],
        draft: Sequence[Sample] = (),
        packed: Sequence[Sample] = (),
        largest_tokens: int | None = None,
        largest_batch: int | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        """Refuses a table without a verification.

        Args:
          verify: passes of the target; `size` is tokens, all rows together.
          draft: proposals; `size` is K. None: drafting costs nothing. What the pass
            over a tree takes beyond that over a chain of K is among these.
          packed: whole rounds that choose how many drafts they verify (`passes`).
          largest_tokens: of the largest executable; `None`: the largest measured.
          largest_batch: of the largest executable; `None`: the largest measured.
          made: how, when and on what it was measured; kept as it is.
        """
        if not verify:
            raise ValueError(
                "the cost table has no verification: measure one (jspec calibrate); "
                "a constant would spend every budget"
            )
        self.samples = {
            "verify": tuple(verify),
            "draft": tuple(draft),
            "packed": tuple(packed),
        }
        self.largest_tokens = largest_tokens
        self.largest_batch = largest_batch
        self.made = dict(made or {})
        self._known: dict[tuple[Size | None, int, int], list[float]] = {}
        self._batches = sorted({sample.batch for sample in verify})
        self._verify = {
            batch: _by_context(
                [(s.context, s.size, s.ms) for s in verify if s.batch == batch],
                largest_tokens,
            )
            for batch in self._batches
        }
        self._draft = {
            size: _by_context(
                [(s.context, s.batch, s.ms) for s in draft if s.drafted == size],
                largest_batch,
            )
            for size in sorted({s.drafted for s in draft}, key=order)
        }

    @property
    def drafted(self) -> tuple[Size, ...]:
        """Every size of which proposals were measured, ascending."""
        return tuple(self._draft)

    def verify_ms(self, tokens: Any, batch: int, context: int = 0) -> Any:
        """Of one pass of the target, for one number of tokens or an array of them.

        The curve is that of the next measured batch; above all, the last one goes on by
        tokens, and a table of one batch is by tokens alone. Between two contexts it is
        linear, and beyond the last too.
        """
        ahead = self._ahead(batch)
        curves = self._verify[self._batches[ahead]]
        if np.ndim(tokens):
            ms = between(context, list(curves), _at(curves, np.asarray(tokens)))
            return np.maximum(ms, LEAST_MS)
        key = (None, ahead, int(tokens))
        if key not in self._known:
            self._known[key] = _at(curves, np.array([tokens]))[:, 0].tolist()
        return max(between(context, list(curves), self._known[key]), LEAST_MS)

    def draft_ms(self, batch: int, drafted: Size, context: int = 0) -> float:
        """Of proposing K tokens a row: linear in K, and free at 0 unless measured.

        A tree must have been measured; one of more nodes costs no less.
        """
        if isinstance(drafted, Tree):
            return self._tree_ms(batch, drafted, context)
        if not self._draft or drafted == 0:
            return self._draft_at(0, batch, context) if 0 in self._draft else 0.0
        k = drafted
        known = sorted({0, *(size for size in self._draft if isinstance(size, int))})
        if known == [0] and 0 not in self._draft:
            raise ValueError(f"drafts of K = {k} were not measured: trees alone were")
        ms = [
            self._draft_at(each, batch, context) if each in self._draft else 0.0
            for each in known
        ]
        ms = list(itertools.accumulate(ms, max))
        ahead = min(max(bisect.bisect_left(known, k), 1), len(known) - 1)
        if ahead == 0:
            return ms[0]
        slope = (ms[ahead] - ms[ahead - 1]) / (known[ahead] - known[ahead - 1])
        return ms[ahead - 1] + slope * (max(k, 0) - known[ahead - 1])

    def round_ms(self, batch: int, drafted: Size, context: int = 0) -> float:
        """Of a whole round: the proposal, and the pass over K drafts and the anchor.

        The batch is padded to the next measured one.
        """
        tokens = depth(drafted) + 1
        rows = batch
        if len(self._batches) > 1:
            rows = max(batch, self._batches[self._ahead(batch)])
        return self.draft_ms(batch, drafted, context) + self.verify_ms(
            rows * tokens, batch, context
        )

    def to_json(self) -> dict[str, Any]:
        """Its samples, as measured."""
        return {
            "format": 1,
            "made": self.made,
            "largest_tokens": self.largest_tokens,
            "largest_batch": self.largest_batch,
        } | {
            kind: [dataclasses.asdict(sample) for sample in samples]
            for kind, samples in self.samples.items()
        }

    @classmethod
    def from_json(cls, content: Any) -> "CostTable":
        """What `to_json` said."""
        if not isinstance(content, Mapping) or content.get("format") != 1:
            raise ValueError("a cost table is a JSON object with format 1")
        return cls(
            verify=[sample_of(entry) for entry in content.get("verify", ())],
            draft=[sample_of(entry) for entry in content.get("draft", ())],
            packed=[sample_of(entry) for entry in content.get("packed", ())],
            largest_tokens=content.get("largest_tokens"),
            largest_batch=content.get("largest_batch"),
            made=content.get("made"),
        )

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "CostTable":
        """Reads what `save` wrote."""
        path = Path(path)
        try:
            content = json.loads(path.read_text("utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path.name} is not JSON: {error}") from error
        return cls.from_json(content)

    def _ahead(self, batch: int) -> int:
        return min(bisect.bisect_left(self._batches, batch), len(self._batches) - 1)

    def _tree_ms(self, batch: int, tree: Tree, context: int) -> float:
        measured = [size for size in self._draft if isinstance(size, Tree)]
        if tree not in measured:
            raise ValueError(
                f"the draft of K/nodes {spelled(tree)} was not measured; measure it "
                "(jspec calibrate --nodes)"
            )
        smaller = [size for size in measured if size.k == tree.k and size <= tree]
        return max(self._draft_at(size, batch, context) for size in smaller)

    def _draft_at(self, drafted: Size, batch: int, context: int) -> float:
        curves = self._draft[drafted]
        key = (drafted, 0, batch)
        if key not in self._known:
            self._known[key] = _at(curves, np.array([batch]))[:, 0].tolist()
        return between(context, list(curves), self._known[key])


def _by_context(
    points: Sequence[tuple[int, int, float]], largest_bucket: int | None
) -> dict[int, Curve]:
    return {
        context: Curve(
            [(size, ms) for at, size, ms in points if at == context],
            largest_bucket=largest_bucket,
        )
        for context in sorted({at for at, _, _ in points})
    }


def _at(curves: dict[int, Curve], sizes: np.ndarray) -> np.ndarray:
    """Of each context and size; no longer context costs less."""
    return np.maximum.accumulate([curve.at(sizes) for curve in curves.values()])


def between(context: int, known: Sequence[int], ms: Any) -> Any:
    """Linear in the context, which is read token by token."""
    if len(known) == 1:
        return ms[0]
    ahead = min(max(bisect.bisect_left(known, context), 1), len(known) - 1)
    low, high = known[ahead - 1], known[ahead]
    share = max(0.0, (context - low) / (high - low))
    return ms[ahead - 1] + share * (ms[ahead] - ms[ahead - 1])
