"""Confidence for drafters without a confidence head, learned from what was accepted.

As vLLM 0.33's online acceptance estimator: the probability that a draft is kept is
`sigmoid(w f + b_k)`, where `f` is the log-odds of the draft law's largest probability,
the slope `w` is shared and every position has its intercept. The feature reads the law,
not the token drawn from it, so leaving out a draft for it bends no law.
"""

import math

import numpy as np

from jspec.control.base import Counts

__all__ = ["Estimator", "log_odds"]

RIDGE = 1e-3
SHRINK = 50.0
"""Observations at which a Newton step is halved."""


def log_odds(largest: np.ndarray) -> np.ndarray:
    """`log(p / (1 - p))` of the draft law's largest probability, within ±40."""
    largest = np.asarray(largest, np.float64)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(largest) - np.log1p(-largest), -40.0, 40.0)


class Estimator:
    """Logistic regression, one Newton step at a time.

    Cold, it says `sigmoid(f / 2 - 0.2)`. Every `interval` rounds one ridge step is
    taken on the statistics since the last, which are then dropped.
    """

    def __init__(self, positions: int, *, interval: int = 100) -> None:
        """Begins cold.

        Args:
          positions: K at most.
          interval: rounds from one step to the next.
        """
        self.slope = 0.5
        self.intercepts = np.full(positions, -0.2)
        self._interval = interval
        self._rounds = 0
        self._clear()

    def predict(self, feature: np.ndarray) -> np.ndarray:
        """Confidence of each draft, `[B, K]`, from its log-odds."""
        at = self.slope * feature + self.intercepts[: feature.shape[1]]
        return 1.0 / (1.0 + np.exp(-np.clip(at, -700.0, 700.0)))

    def observe(
        self,
        feature: np.ndarray,
        predicted: np.ndarray,
        verified: Counts,
        accepted: Counts,
    ) -> None:
        """Learns from a round: the accepted drafts of each row, and the first refused.

        Args:
          feature: log-odds, `[B, K]`.
          predicted: what `predict` said when they were drafted.
          verified: drafts that each row was allowed.
          accepted: drafts that each row kept.
        """
        kept, seen = np.asarray(accepted)[:, None], np.asarray(verified)[:, None]
        positions = np.arange(feature.shape[1])
        shown = (positions <= kept) & (positions < seen)
        error = np.where(shown, (positions < kept) - predicted, 0.0)
        weight = np.where(shown, predicted * (1 - predicted), 0.0)
        f = np.where(shown, feature, 0.0)
        at = slice(0, feature.shape[1])
        self._count[at] += shown.sum(0)
        self._gradient[at] += error.sum(0)
        self._curvature[at] += weight.sum(0)
        self._cross[at] += (weight * f).sum(0)
        self._slope_gradient += float((error * f).sum())
        self._slope_curvature += float((weight * f * f).sum())
        self._rounds += 1
        if self._rounds % self._interval == 0:
            self._refit()

    def _refit(self) -> None:
        """One Newton step; the Hessian is an arrowhead, so the slope comes first."""
        curvature = self._curvature + RIDGE
        schur = self._slope_curvature + RIDGE - (self._cross**2 / curvature).sum()
        rest = self._slope_gradient - (self._cross * self._gradient / curvature).sum()
        total = float(self._count.sum())
        step = float(rest / schur) * total / (total + SHRINK) if schur else math.nan
        if not math.isfinite(step) or self.slope + step < 0:
            step = 0.0
        self.slope += step
        own = (self._gradient - self._cross * step) / curvature
        self.intercepts += own * self._count / (self._count + SHRINK)
        self._clear()

    def _clear(self) -> None:
        empty = np.zeros(len(self.intercepts))
        self._count, self._gradient = empty.copy(), empty.copy()
        self._curvature, self._cross = empty.copy(), empty.copy()
        self._slope_gradient = self._slope_curvature = 0.0
