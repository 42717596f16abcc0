"""The confidence budget: the best drafts, always prefixes, as many as pay."""

import itertools

import numpy as np
import pytest

from jspec.control import CostTable, Sample
from jspec.control.budget import allocate, best_budget, plan, survival

HOSTILE = {
    "equal": np.full((3, 4), 0.5),
    "ones": np.ones((3, 4)),
    "one and then equal": np.array([[1.0, 0.5, 1.0, 1.0], [0.5, 1.0, 1.0, 1.0]]),
    "zeros": np.array([[0.0, 1.0, 1.0], [0.9, 0.0, 1.0]]),
    "underflow": np.full((2, 8), 1e-60),
    "below one by a rounding": np.full((2, 8), np.nextafter(1.0, 0.0)),
}


def costs(step=10.0, token=0.5, tokens=200, draft=()):
    verify = [
        Sample(batch=64, size=size, ms=step + token * size) for size in range(1, tokens)
    ]
    return CostTable(verify=verify, draft=draft)


def test_survival_is_the_running_product_and_nothing_behind_the_drafts():
    kept = survival(np.array([[0.9, 0.5, 0.5], [0.8, 1.0, 0.5]]), drafted=[3, 1])
    assert kept == pytest.approx(np.array([[0.9, 0.45, 0.225], [0.8, 0, 0]]))


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_a_confidence_that_is_no_probability_is_named(wrong):
    with pytest.raises(ValueError, match=r"of row 1, position 0 is outside \[0, 1\]"):
        survival(np.array([[0.5, 0.5], [wrong, 0.5]]))
    assert survival(np.array([[wrong]]), drafted=[0]).tolist() == [[0]]


def test_the_best_drafts_win_wherever_they_stand():
    kept = survival(np.array([[0.9, 0.9, 0.9], [0.95, 0.1, 0.9], [0.2, 0.9, 0.9]]))
    by_budget = [allocate(kept, budget) for budget in range(6)]
    assert by_budget == [
        (0, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 0), (3, 1, 1),
    ]  # fmt: skip


def test_ties_go_to_the_earlier_position_and_then_to_the_earlier_row():
    kept = survival(HOSTILE["ones"])
    assert [allocate(kept, budget) for budget in (1, 2, 3, 4, 7)] == [
        (1, 0, 0), (1, 1, 0), (1, 1, 1), (2, 1, 1), (3, 2, 2),
    ]  # fmt: skip
    assert allocate(survival(HOSTILE["one and then equal"]), 3) == (2, 1)


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_the_confidences_the_chosen_are_prefixes(name):
    kept = survival(HOSTILE[name])
    for budget in range(kept.size + 1):
        counts = allocate(kept, budget)
        chosen = kept[np.arange(kept.shape[1]) < np.array(counts)[:, None]]
        assert len(chosen) == min(budget, np.count_nonzero(kept))
        best = np.sort(kept, axis=None)[::-1][: len(chosen)]
        assert np.sort(chosen)[::-1].tolist() == best.tolist()


def test_one_that_cannot_survive_is_never_chosen():
    assert allocate(survival(HOSTILE["zeros"]), 6) == (0, 1)
    assert allocate(survival(np.array([[1e-3, 1e-4]])), 2, least=1e-6) == (1,)


def test_the_budget_is_the_best_of_all():
    draw = np.random.default_rng(0)
    for _ in range(20):
        kept = survival(draw.uniform(0.3, 1.0, (3, 3)))
        ms = np.maximum.accumulate(draw.uniform(1, 3, 10))
        best = np.sort(kept, axis=None)[::-1]
        rates = [(3 + best[:budget].sum()) / ms[budget] for budget in range(10)]
        assert best_budget(kept, ms, sampled=3) == int(np.argmax(rates))


def test_no_other_prefixes_would_emit_more_for_the_same_time():
    confidence = np.random.default_rng(1).uniform(0.2, 1.0, (3, 3))
    table = costs()
    decided = plan(confidence, table)
    kept = survival(confidence)

    def rate(counts):
        emitted = 3 + sum(kept[row, :count].sum() for row, count in enumerate(counts))
        return emitted / table.verify_ms(3 + sum(counts), 3)

    every = itertools.product(range(4), repeat=3)
    assert rate(decided.counts) == pytest.approx(max(map(rate, every)))
    assert decided.emitted / decided.ms == pytest.approx(rate(decided.counts))


def test_of_budgets_that_are_worth_the_same_the_smallest_wins():
    assert best_budget(np.ones((1, 3)), np.array([1.0, 2.0, 3.0, 4.0]), sampled=1) == 0


def test_a_step_in_the_cost_is_looked_beyond():
    kept = np.full((1, 4), 0.9)
    ms = np.array([1.0, 2.5, 2.5, 2.5, 2.5])
    assert best_budget(kept, ms, sampled=1) == 4


def test_dear_tokens_shrink_the_budget_and_dear_drafting_widens_it():
    confidence = np.full((8, 7), 0.7)
    cheap, dear = plan(confidence, costs(token=0.1)), plan(confidence, costs(token=2.0))
    assert cheap.drafts > dear.drafts
    sunk = [Sample(batch=8, size=7, ms=50.0)]
    assert plan(confidence, costs(token=2.0, draft=sunk)).drafts > dear.drafts


def test_rows_share_unequally_by_their_confidence():
    confidence = np.array([[0.95] * 5, [0.1] * 5])
    sure, unsure = plan(confidence, costs(token=1.0)).counts
    assert sure > unsure


def test_the_context_changes_the_budget():
    def table(context, step):
        return [
            Sample(batch=8, size=size, context=context, ms=step + size)
            for size in range(1, 64)
        ]

    both = CostTable(verify=table(100, 1.0) + table(4000, 60.0))
    confidence = np.full((8, 4), 0.7)
    short, long = (plan(confidence, both, context=c).drafts for c in (100, 4000))
    assert short < long


def test_a_pass_verifies_no_more_than_it_can_and_prompts_take_room():
    confidence = np.ones((4, 4))
    assert plan(confidence, costs(token=0.0), most=5).drafts == 5
    assert plan(confidence, costs(token=0.0), most=-3).drafts == 0
    stairs = CostTable(
        verify=[Sample(batch=8, size=s, ms=ms) for s, ms in ((8, 1.0), (16, 9.0))]
    )
    assert plan(confidence, stairs).drafts == 4
    assert plan(confidence, stairs, prompt_tokens=4).drafts == 0


def test_without_rows_there_is_nothing_to_decide():
    assert plan(np.ones((0, 4)), costs()).counts == ()
    assert plan(np.ones((2, 0)), costs()).counts == (0, 0)
