"""The acceptance estimator: cold, learning, and unmoved by what it must not see."""

import numpy as np
import pytest

from jspec.control.estimator import Estimator, log_odds


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def feed(estimator, slope, intercepts, rounds, seed=0, rows=8):
    draw = np.random.default_rng(seed)
    intercepts = np.asarray(intercepts)
    for _ in range(rounds):
        feature = draw.normal(1.0, 2.0, (rows, len(intercepts)))
        kept = draw.random(feature.shape) < sigmoid(slope * feature + intercepts)
        accepted = kept.cumprod(axis=1).sum(axis=1)
        predicted = estimator.predict(feature)
        estimator.observe(feature, predicted, [len(intercepts)] * rows, accepted)


def test_log_odds_are_clamped():
    assert log_odds(np.array([0.5, 0.8])) == pytest.approx([0.0, np.log(4.0)])
    assert log_odds(np.array([1.0, 0.0])).tolist() == [40.0, -40.0]


def test_cold_it_halves_the_log_odds():
    assert Estimator(2).predict(np.array([[0.0, 2.0]])) == pytest.approx(
        np.array([[sigmoid(-0.2), sigmoid(0.8)]])
    )


def test_it_learns_the_law_that_made_its_evidence():
    estimator = Estimator(3)
    feed(estimator, 1.2, [0.5, -0.5, -1.0], rounds=3000)
    assert estimator.slope == pytest.approx(1.2, abs=0.1)
    assert estimator.intercepts == pytest.approx([0.5, -0.5, -1.0], abs=0.25)


def test_what_it_says_becomes_the_rate_at_which_drafts_are_kept():
    estimator = Estimator(2)
    feed(estimator, 0.3, [1.0, 0.0], rounds=2000)
    feature = np.random.default_rng(5).normal(1.0, 2.0, (20000, 2))
    truth = sigmoid(0.3 * feature + np.array([1.0, 0.0]))
    said = estimator.predict(feature)
    for position in range(2):
        assert said[:, position].mean() == pytest.approx(
            truth[:, position].mean(), abs=0.02
        )


def test_it_moves_only_at_the_end_of_an_interval():
    estimator = Estimator(1, interval=100)
    feed(estimator, 2.0, [1.0], rounds=99)
    assert (estimator.slope, estimator.intercepts.tolist()) == (0.5, [-0.2])
    feed(estimator, 2.0, [1.0], rounds=1)
    assert estimator.slope != 0.5


def test_drafts_behind_the_first_refused_one_show_nothing():
    one, other = Estimator(3, interval=1), Estimator(3, interval=1)
    for estimator, unseen in ((one, 5.0), (other, -5.0)):
        feature = np.array([[1.0, 1.0, unseen]])
        estimator.observe(feature, estimator.predict(feature), [3], [1])
    assert one.intercepts.tolist() == other.intercepts.tolist()
    assert one.intercepts[0] > -0.2 > one.intercepts[1]
    assert one.intercepts[2] == -0.2


def test_a_draft_that_was_left_out_is_not_a_refusal():
    estimator = Estimator(2, interval=1)
    feature = np.array([[1.0, 1.0]])
    estimator.observe(feature, estimator.predict(feature), [1], [1])
    assert estimator.intercepts[1] == -0.2


def test_the_slope_never_turns_negative_and_nothing_makes_it_nan():
    estimator = Estimator(1, interval=100)
    feed(estimator, -2.0, [0.0], rounds=500)
    assert estimator.slope >= 0
    certain = Estimator(2, interval=1)
    feature = np.full((4, 2), 40.0)
    for _ in range(50):
        certain.observe(feature, certain.predict(feature), [2] * 4, [0] * 4)
    assert np.isfinite([certain.slope, *certain.intercepts]).all()
