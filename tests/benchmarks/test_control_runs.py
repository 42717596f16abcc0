"""What the controllers' runs conclude from their readings."""

import pytest

from benchmarks.runs import control_grid, control_k0


def test_k_0_is_judged_by_the_median_of_paired_ratios():
    pairs = [[10.0, 10.0], [10.0, 9.8], [20.0, 21.0], [10.0, 1.0]]
    read = {
        "tokens/s at batch 1": {"none again": pairs, "ngram": pairs},
        control_k0.FIRST: {"none again": pairs, "ngram": [[1.0, 1.1]] * 3},
    }
    found = control_k0.judge(read)
    assert [claim.met for claim in found] == [None, True, None, False]
    assert found[1].value == pytest.approx(0.99)
    assert found[3].value == pytest.approx(1 / 1.1)
    assert "95 % interval 0.100 to" in found[1].note


def test_comparisons_of_four_are_interleaved_and_begin_with_either():
    asked = []

    def read(name, turn):
        asked.append(name)
        return 4.0 if name == "ngram" else 2.0

    assert control_k0.four(read, "ngram", 0) == pytest.approx((2.0, 4.0))
    assert control_k0.four(read, "ngram", 1) == pytest.approx((2.0, 4.0))
    plain = control_k0.PLAIN
    own = "ngram"
    assert asked == [plain, own, own, plain, own, plain, plain, own]


def test_the_best_static_k_of_a_turn_is_read_off_the_other_turns():
    def readings(*rates):
        return [{"tokens_per_second": rate, "ks": {2: 9}} for rate in rates]

    cell = {
        "batch": 1,
        "context": 128,
        "read": {
            "K=0": readings(10.0, 10.0),
            "K=1": readings(12.0, 8.0),
            "K=2": readings(11.0, 11.0),
            control_grid.CONTROLLER: readings(11.0, 11.0),
        },
    }
    best, none = control_grid.judge([cell])
    assert best.value == pytest.approx((11 / 11 * 11 / 8) ** 0.5)
    assert none.value == pytest.approx(1.1)
    assert "best K=2 (1.10 of none), it was mostly at K=2" in best.note
