"""What measured costs say: drafts apart from passes, two constants, the best K."""

import itertools

import pytest

from jspec.control import CostTable, Sample
from jspec.control.acceptance import emitted
from jspec.control.calibration import (
    Constants,
    compare,
    constants,
    from_rounds,
    to_schedule,
)

KS, BATCHES, CONTEXTS = (1, 3), (1, 4), (100, 300)


def pass_ms(tokens, batch, context):
    """10 ms until 10 tokens, then one each; and a context that is read row by row."""
    return max(10.0, float(tokens)) + 0.01 * batch * context


def measured():
    points = list(itertools.product(BATCHES, CONTEXTS))
    rounds = [
        Sample(
            ms=pass_ms(b * (k + 1), b, c) + 2.0 * k + noise, batch=b, size=k, context=c
        )
        for b, c in points
        for k in (0, *KS)
        for noise in (0.0, 0.0, 50.0)
    ]
    passes = [
        Sample(ms=pass_ms(b * (k + 1), b, c), batch=b, size=b * (k + 1), context=c)
        for b, c in points
        for k in KS
    ]
    return from_rounds(rounds, passes, {"method": "made up"})


def test_drafting_is_what_a_round_takes_beyond_its_pass():
    costs = measured()
    for b, c in itertools.product(BATCHES, CONTEXTS):
        for k in KS:
            assert costs.draft_ms(b, k, c) == pytest.approx(2.0 * k)
            assert costs.round_ms(b, k, c) == pytest.approx(
                pass_ms(b * (k + 1), b, c) + 2.0 * k
            )
        assert costs.round_ms(b, 0, c) == pytest.approx(pass_ms(b, b, c))
    assert costs.made == {"method": "made up"}


def test_a_pass_that_came_out_slower_than_its_round_makes_drafting_free():
    rounds = [Sample(ms=ms, batch=1, size=k) for k, ms in ((0, 5.0), (1, 5.5))]
    costs = from_rounds(rounds, [Sample(ms=6.0, batch=1, size=2)], {})
    assert costs.draft_ms(1, 1) == 0.0


@pytest.mark.parametrize(("passes", "c"), [("gamma", 2.0), ("one", 4.0), ("none", 0.0)])
def test_the_closed_form_reads_two_numbers_off_the_shortest_context(passes, c):
    costs = measured()
    known = constants(costs, (0, *KS), passes)
    assert known.c == pytest.approx(c / 11.0)
    assert known.t_star == pytest.approx(11.0 / ((20.0 - 11.0) / 15))
    assert known.parallel == (passes == "one")


def test_a_step_is_flat_until_t_star_and_linear_after():
    known = Constants(c=0.1, t_star=8.0, parallel=False)
    assert known.cost(1, 3) == pytest.approx(1.3)
    assert known.cost(2, 3) == pytest.approx(1.3)
    assert known.cost(4, 3) == pytest.approx(2.3)
    assert known.cost(16, 0) == pytest.approx(2.0)
    free = Constants(c=0.0, t_star=float("inf"), parallel=False)
    assert free.cost(64, 7) == 1.0


def test_the_measured_best_is_the_best_and_what_was_predicted_has_its_gain():
    costs = measured()
    rates = (0.8, 0.5, 0.5)
    best = compare(
        costs, rates, (0, *KS), batches=BATCHES, contexts=CONTEXTS, passes="gamma"
    )
    tokens = emitted(rates)
    for one in best:
        worth = {
            k: tokens[k] / costs.round_ms(one.batch, k, one.context) for k in (0, *KS)
        }
        assert worth[one.measured] == max(worth.values())
        assert one.gain == pytest.approx(max(worth.values()) / worth[0])
        assert one.predicted_gain == pytest.approx(worth[one.predicted] / worth[0])
        assert one.predicted_gain <= one.gain
    nothing = compare(
        costs, (0.0,) * 3, (0, *KS), batches=BATCHES, contexts=CONTEXTS, passes="one"
    )
    assert {(one.measured, one.predicted) for one in nothing} == {(0, 0)}


def test_the_table_pads_batches_up_and_takes_the_nearest_context():
    verify = [
        Sample(ms=10.0 + slow * (b * w - 1), batch=b, size=b * w, context=c)
        for b, slow in ((1, 0.0), (4, 1.0))
        for c in CONTEXTS
        for w in (1, 2, 4)
    ]
    draft = [
        Sample(ms=(9.0 if c == 300 else 0.0) * k, batch=b, size=k, context=c)
        for b in BATCHES
        for c in CONTEXTS
        for k in KS
    ]
    costs = CostTable(verify=verify, draft=draft)
    best = compare(
        costs,
        (0.5, 0.5, 0.5),
        (0, *KS),
        batches=BATCHES,
        contexts=CONTEXTS,
        passes="gamma",
    )
    table = to_schedule(best, max_model_len=1000)
    cells = {(one.batch, one.context): one.measured for one in best}
    assert cells == {(1, 100): 3, (4, 100): 1, (1, 300): 0, (4, 300): 0}
    assert [table.k(1, at) for at in (0, 200, 201, 1000)] == [3, 3, 0, 0]
    assert [table.k(batch, 100) for batch in (1, 2, 4)] == [3, 1, 1]
