"""Measured costs: steps up to the largest bucket, linear beyond, never falling."""

import numpy as np
import pytest

from jspec.control import CostTable, Curve, Sample


def verify(*entries):
    return [
        Sample(batch=b, size=tokens, context=context, ms=ms)
        for b, tokens, context, ms in entries
    ]


def test_a_size_costs_what_the_next_bucket_costs():
    curve = Curve([(1, 1.0), (4, 2.0), (8, 5.0)])
    assert curve.at(np.arange(9)).tolist() == [1, 1, 2, 2, 2, 5, 5, 5, 5]


def test_beyond_the_largest_bucket_it_is_linear_and_goes_on_so():
    curve = Curve([(4, 2.0), (8, 4.0), (16, 6.0), (24, 10.0)], largest_bucket=8)
    sizes = np.array([5, 8, 12, 16, 20, 24, 28])
    assert curve.at(sizes).tolist() == [4, 4, 5, 6, 8, 10, 12]


def test_a_bucket_that_was_not_measured_ends_at_the_one_below():
    curve = Curve([(8, 1.0), (32, 4.0)], largest_bucket=16)
    assert np.all(np.diff(curve.at(np.arange(1, 64))) >= 0)


def test_a_single_point_is_a_constant():
    assert Curve([(4, 2.0)]).at(np.array([1, 400])).tolist() == [2, 2]


def test_repeats_count_by_their_median_and_noise_never_makes_more_cheaper():
    curve = Curve([(1, 3.0), (1, 9.0), (1, 2.0), (2, 1.0), (4, 4.0)])
    assert curve.at(np.array([1, 2, 4])).tolist() == [3, 3, 4]


@pytest.mark.parametrize("ms", [-1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(ms):
    with pytest.raises(ValueError, match="ms at size 1 is not a time"):
        Curve([(1, ms)])
    with pytest.raises(ValueError, match="at least one measured size"):
        Curve([])


def test_a_table_without_a_verification_is_refused():
    with pytest.raises(ValueError, match="has no verification: measure one"):
        CostTable(verify=[])


def test_contexts_in_between_and_beyond_are_linear_and_none_costs_less():
    table = CostTable(
        verify=verify(
            (1, 1, 100, 2.0), (1, 1, 300, 4.0), (1, 2, 100, 3.0), (1, 2, 300, 2.0)
        )
    )
    assert [table.verify_ms(1, 1, c) for c in (0, 100, 200, 300, 400)] == [
        2,
        2,
        3,
        4,
        5,
    ]
    assert [table.verify_ms(2, 1, c) for c in (100, 300, 500)] == [3, 4, 5]


def test_the_batch_is_padded_to_the_next_measured_one():
    table = CostTable(verify=verify((1, 8, 0, 1.0), (4, 8, 0, 3.0), (4, 16, 0, 5.0)))
    assert [table.verify_ms(8, batch) for batch in (1, 2, 4, 5)] == [1, 3, 3, 3]
    assert table.verify_ms(32, 16) == 9
    assert table.verify_ms(np.array([8, 16]), 4).tolist() == [3, 5]


def test_drafting_is_linear_in_k_and_free_at_zero():
    draft = [Sample(batch=b, size=k, ms=k * b / 2) for b in (1, 4) for k in (2, 4)]
    table = CostTable(verify=verify((1, 1, 0, 1.0)), draft=draft)
    assert [table.draft_ms(1, k) for k in range(7)] == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert [table.draft_ms(batch, 2) for batch in (2, 4, 8)] == [4, 4, 8]
    assert CostTable(verify=verify((1, 1, 0, 1.0))).draft_ms(8, 8) == 0


def test_what_drafting_costs_at_zero_counts_where_it_was_measured():
    draft = [Sample(batch=1, size=k, ms=ms) for k, ms in ((0, 0.3), (2, 0.5))]
    table = CostTable(verify=verify((1, 1, 0, 1.0)), draft=draft)
    assert [table.draft_ms(1, k) for k in (0, 1, 2)] == pytest.approx([0.3, 0.4, 0.5])


def test_a_round_is_a_proposal_and_a_pass_over_it_and_the_anchor():
    table = CostTable(
        verify=verify((2, 2, 0, 1.0), (2, 8, 0, 3.0)),
        draft=[Sample(batch=2, size=3, ms=0.5)],
    )
    assert [table.round_ms(2, k) for k in (0, 3)] == [1.0, 3.5]


def test_a_round_is_padded_to_the_next_measured_batch():
    sizes = ((b, b * width, 0, float(b * width)) for b in (1, 8) for width in (1, 2, 4))
    table = CostTable(verify=verify(*sizes))
    assert [table.round_ms(batch, 1) for batch in (1, 2, 8)] == [2, 16, 16]
    assert table.round_ms(16, 3) == 64


def test_no_pass_is_free():
    assert CostTable(verify=verify((1, 1, 0, 0.0))).verify_ms(1, 1) > 0


def test_a_table_reads_back_what_it_wrote(tmp_path):
    table = CostTable(
        verify=verify((1, 1, 0, 1.0), (1, 8, 64, 3.0)),
        draft=[Sample(batch=1, size=3, ms=0.5)],
        largest_tokens=8,
        largest_batch=1,
        made={"device": "a CPU"},
    )
    path = tmp_path / "costs.json"
    table.save(path)
    assert CostTable.load(path).to_json() == table.to_json()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "costs.json is not JSON"),
        ("[]", "is a JSON object with format 1"),
        ('{"format": 2}', "is a JSON object with format 1"),
        ('{"format": 1}', "has no verification"),
        ('{"format": 1, "verify": [{"size": 1}]}', "sample {'size': 1} is incomplete"),
        ('{"format": 1, "verify": [{"tokens": 1}]}', "is not a sample of ms, batch"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        CostTable.load(path)
