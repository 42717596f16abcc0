"""How many drafts are worth verifying, and whose: the confidence budget of DSpark.

A drafted token is kept if all before it were, so its survival is the product of the
confidences up to it. The budget is the number of drafts that maximises expected emitted
tokens per millisecond over a measured cost table; the drafts are the ones most likely
to survive, wherever they stand (vLLM 0.33 `adaptive_verification.py`; SGLang
`dspark_planner.py`). Ties go to the earlier position, then to the earlier row. Survival
never rises along a row, so with this order every choice is a prefix of each row.
"""

import dataclasses

import numpy as np

from jspec.control.base import Counts
from jspec.control.costs import CostTable

__all__ = ["Budget", "allocate", "best_budget", "plan", "survival"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """A decision.

    Attributes:
      counts: drafts to verify of each row.
      emitted: tokens that the round is expected to emit.
      ms: what it is expected to take.
    """

    counts: tuple[int, ...]
    emitted: float
    ms: float

    @property
    def drafts(self) -> int:
        """Of all rows together."""
        return sum(self.counts)


def survival(confidence: np.ndarray, drafted: Counts | None = None) -> np.ndarray:
    """The probability that each draft is kept, `[B, K]`: a running product by row.

    Args:
      confidence: that a draft is kept if those before it are, `[B, K]`.
      drafted: drafts that each row has; what lies behind them survives with 0.
        `None`: all.
    """
    confidence = np.asarray(confidence, np.float64)
    if confidence.ndim != 2:
        raise ValueError(f"confidences have {confidence.ndim} axes instead of 2")
    if drafted is not None:
        behind = np.arange(confidence.shape[1]) >= np.asarray(drafted)[:, None]
        confidence = np.where(behind, 0.0, confidence)
    wrong = ~((confidence >= 0) & (confidence <= 1))
    if wrong.any():
        row, position = np.argwhere(wrong)[0]
        raise ValueError(
            f"confidence {confidence[row, position]} of row {row}, position {position} "
            "is outside [0, 1]"
        )
    return confidence.cumprod(axis=1)


def allocate(
    survival: np.ndarray, budget: int, *, least: float = 0.0
) -> tuple[int, ...]:
    """Drafts of each row among the `budget` most likely to survive.

    One that survives with `least` or less is never chosen, whatever is left over.
    """
    rows, positions = (axis.ravel() for axis in np.indices(survival.shape))
    flat = survival.ravel()
    order = np.lexsort((rows, positions, -flat))[: max(0, budget)]
    chosen = order[flat[order] > least]
    return tuple(np.bincount(rows[chosen], minlength=len(survival)).tolist())


def best_budget(survival: np.ndarray, ms: np.ndarray, *, sampled: int) -> int:
    """The budget of most expected tokens per millisecond; of several, the smallest.

    All are compared: with steps in the cost, the first that does not improve is not the
    last that does (DSpark's Algorithm 1 stops there).

    Args:
      survival: of each draft.
      ms: what a round takes with 0, 1, … drafts; as many budgets as are allowed.
      sampled: rows that emit a token whatever is drafted.
    """
    best_first = np.sort(survival, axis=None)[::-1][: len(ms) - 1]
    emitted = sampled + np.concatenate(([0.0], best_first.cumsum()))
    return int(np.argmax(emitted / ms[: len(emitted)]))


def plan(
    confidence: np.ndarray,
    costs: CostTable,
    *,
    context: int = 0,
    drafted: Counts | None = None,
    most: int | None = None,
    prompt_tokens: int = 0,
) -> Budget:
    """Decides the budget and shares it out.

    Args:
      confidence: of each draft, `[B, K]`.
      costs: measured; there is no default.
      context: what stands for the lengths of the rows.
      drafted: drafts that each row has.
      most: drafts that one pass can verify.
      prompt_tokens: of prompts that are read in the same pass.
    """
    kept = survival(confidence, drafted)
    batch, k = kept.shape
    if batch == 0:
        return Budget(counts=(), emitted=0.0, ms=0.0)
    allowed = np.count_nonzero(kept)
    allowed = allowed if most is None else max(0, min(allowed, most))
    tokens = batch + prompt_tokens + np.arange(allowed + 1)
    ms = costs.draft_ms(batch, k, context) + costs.verify_ms(tokens, batch, context)
    budget = best_budget(kept, ms, sampled=batch)
    counts = allocate(kept, budget)
    return Budget(
        counts=counts,
        emitted=batch + float(np.sort(kept, axis=None)[::-1][:budget].sum()),
        ms=float(ms[budget]),
    )
