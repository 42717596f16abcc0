"""depthchart's order of decisions, correction and overload, and where ours differ."""

import itertools

import pytest

from jspec.control import Corrected, Correction, Overload, Schedule

BANDS = [[1, 8, 3], [9, 16, 1], [17, 32, 0]]


def table(entries=BANDS):
    return Schedule.parse(entries, max_batch=32, max_model_len=4096, max_k=3)


def at_once(schedule, **more):
    return Corrected(schedule, smoothing=1.0, dwell=1, **more)


def test_the_first_decision_adopts_its_tier():
    assert Corrected(table()).k(12) == 1


def test_another_tier_is_adopted_on_the_fifth_call_in_a_row():
    corrected = Corrected(table(), smoothing=1.0)
    assert [corrected.k(batch) for batch in (4, 12, 12, 12, 12, 12)] == [3] * 5 + [1]


def test_a_third_tier_begins_anew_and_the_current_one_clears_the_count():
    corrected = Corrected(table(), smoothing=1.0)
    third = [corrected.k(batch) for batch in (4, 12, 12, 12, 12, 20, 20, 20, 20, 20)]
    assert third == [3] * 9 + [0]
    corrected = Corrected(table(), smoothing=1.0)
    back = [corrected.k(batch) for batch in (4, 12, 12, 12, 12, 4, 12, 12, 12, 12, 12)]
    assert back == [3] * 10 + [1]


def test_a_load_that_alternates_never_switches():
    corrected = Corrected(table(), smoothing=1.0)
    assert {corrected.k(batch) for batch in [4, 12] * 100} == {3}


def test_the_batch_is_smoothed_and_the_context_is_not():
    split = table([[1, 8, 0, 99, 0], [1, 8, 100, 4096, 3], [9, 32, 1]])
    corrected = Corrected(split, dwell=1)
    # 4, 0.3 x 20 + 0.7 x 4 = 8.8, which is 9; 8 + 0.5 to even.
    assert [corrected.k(4, 99), corrected.k(4, 100), corrected.k(20, 100)] == [0, 3, 1]
    even = Corrected(split, smoothing=0.5, dwell=1)
    assert [even.k(8, 100), even.k(9, 100)] == [3, 3]


def observe(correction, shares, drafted=100):
    for share in shares:
        correction.observe([round(share * drafted)], drafted)


def test_acceptance_demotes_after_ten_rounds_and_by_one_step_of_the_palette():
    correction = Correction()
    observe(correction, [0.2] * 9)
    assert correction.correct(3, (0, 1, 3)) == 3
    observe(correction, [0.2])
    assert correction.correct(3, (0, 1, 3)) == 1
    assert correction.correct(1, (0, 1, 3)) == 0
    assert correction.correct(3, (3,)) == 0


def test_only_every_fifth_round_moves_the_mean_and_only_below_the_threshold_demotes():
    correction = Correction(alpha=0.5)
    observe(correction, [0.56, 0, 0, 0, 0.56, 0, 0, 0, 0, 0.56])
    assert not correction.demoted
    observe(correction, [0, 0, 0, 0, 0.52])
    assert correction.demoted


def test_rounds_without_drafts_or_rows_show_nothing():
    correction = Correction(warm_at=1)
    correction.observe([0, 0], 0)
    correction.observe([], 3)
    assert not correction.demoted
    correction.observe([0, 0], 3)
    assert correction.demoted


def replay(corrected, shares, rounds=400):
    """K over time where the share accepted depends on K alone."""
    ks = []
    for _ in range(rounds):
        k = corrected.k(4)
        if k:
            corrected.update([round(shares[k] * 1000)], 4, drafted=1000)
        ks.append(k)
    return ks


def changes(ks):
    return sum(one != other for one, other in itertools.pairwise(ks))


def test_the_reference_flaps_for_ever_and_the_recover_threshold_does_not():
    shares = {1: 0.60, 3: 0.35}
    assert changes(replay(Corrected.reference(table()), shares)) > 20
    assert changes(replay(Corrected(table()), shares)) == 1


def test_a_recovery_that_fails_is_tried_ever_less_often():
    ks = replay(Corrected(table()), {1: 0.90, 3: 0.30}, rounds=1200)
    assert changes(ks[:150]) > 6
    assert changes(ks[-300:]) <= 2


def test_a_demotion_ends_when_acceptance_does_recover():
    corrected = Corrected(table())
    replay(corrected, {1: 0.60, 3: 0.30}, rounds=100)
    assert replay(corrected, {1: 0.95, 3: 0.95}, rounds=200)[-1] == 3


def test_the_reference_stays_at_zero_and_ours_probes_its_way_back():
    for corrected, last in (
        (Corrected.reference(table([[1, 32, 1]])), 0),
        (Corrected(table([[1, 32, 1]])), 1),
    ):
        assert replay(corrected, {1: 0.10}, rounds=20)[-1] == 0
        assert replay(corrected, {1: 0.90}, rounds=500)[-1] == last


def test_probes_at_zero_become_rare():
    ks = replay(Corrected(table([[1, 32, 1]])), {1: 0.10}, rounds=2500)
    assert sum(ks[-1500:]) / 1500 < 0.02


@pytest.mark.parametrize(
    ("kv_usage", "preempted", "queue", "present"),
    [
        (90.0, [0], 0, False),
        (90.1, [0], 0, True),
        (0.0, [1, 1], 0, False),
        (0.0, [1, 2, 1], 0, True),
        (0.0, [1, 1, 0, 1, 1], 0, False),
        (0.0, [0], 5, False),
        (0.0, [0], 6, True),
    ],
)
def test_pressure_is_pages_preemptions_in_a_row_or_a_queue(
    kv_usage, preempted, queue, present
):
    overload = Overload(queue_above=5)
    for each in preempted:
        overload.observe(kv_usage=kv_usage, preempted=each, queue=queue)
    assert overload.present == present


def test_without_a_limit_any_queue_will_do():
    overload = Overload()
    overload.observe(kv_usage=0.0, preempted=0, queue=10**9)
    assert not overload.present


def test_overload_overrules_the_table_while_time_goes_on():
    corrected = Corrected(table(), smoothing=1.0)
    corrected.k(4)
    corrected.overload.observe(kv_usage=95.0, preempted=0, queue=0)
    assert [corrected.k(12) for _ in range(5)] == [0] * 5
    corrected.overload.observe(kv_usage=50.0, preempted=0, queue=0)
    assert corrected.k(12) == 1


def test_the_palette_has_a_zero():
    assert at_once(table([[1, 32, 3]])).palette == (0, 3)
