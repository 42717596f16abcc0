"""The closed forms, and the numbers of the text that they come from.

Llama-3-8B, a draft of 1B, an H100: c = 0.165, K = 3, alpha = 0.70, T* = 295.
"""

import pytest

from jspec.control import economics

C, K, ALPHA, T_STAR = 0.165, 3, 0.70, 295


def test_a_round_emits_the_geometric_sum():
    assert economics.emitted(ALPHA, K) == pytest.approx(2.533)
    assert economics.emitted(0.35, K) == pytest.approx(1.515375)
    assert economics.emitted(ALPHA, K) == pytest.approx((1 - ALPHA**4) / (1 - ALPHA))
    assert [economics.emitted(alpha, 5) for alpha in (0.0, 1.0)] == [1, 6]


def test_a_chain_gains_1_69_and_a_block_2_17():
    assert economics.speedup(ALPHA, K, C) == pytest.approx(1.69, abs=0.005)
    assert economics.speedup(ALPHA, K, C, parallel=True) == pytest.approx(
        2.17, abs=0.005
    )
    assert economics.speedup(0.35, K, C, parallel=True) == pytest.approx(
        1.301, abs=5e-4
    )


def test_a_block_pays_from_0_142_and_beats_the_chain_from_0_53():
    pays = economics.break_even_alpha(K, C, parallel=True)
    assert pays == pytest.approx(0.142, abs=5e-4)
    tie = economics.tie_alpha(ALPHA, K, C)
    assert 0.53 < tie < 0.54
    assert tie == pytest.approx(0.536, abs=2e-3)
    chain = economics.speedup(ALPHA, K, C)
    assert economics.speedup(tie, K, C, parallel=True) == pytest.approx(
        chain, abs=1e-12
    )
    assert economics.speedup(0.35, K, C, parallel=True) < chain


def test_a_chain_breaks_even_at_150_sequences_and_a_block_at_175():
    chain = economics.break_even_batch(T_STAR, ALPHA, K, C)
    block = economics.break_even_batch(T_STAR, ALPHA, K, C, parallel=True)
    assert chain == pytest.approx(150, abs=0.5)
    assert block == pytest.approx(175, abs=0.5)


def test_no_batch_is_large_enough_for_a_gain_without_end():
    block = economics.asymptotic_speedup(ALPHA, K, C, parallel=True)
    assert block == pytest.approx(0.61, abs=0.005)
    assert all(
        economics.asymptotic_speedup(alpha, k, C, parallel) < 1
        for alpha in (0.0, 0.5, 1.0)
        for k in (1, 3, 8)
        for parallel in (False, True)
    )


def test_modules_cost_their_sum_and_equal_ones_a_chain():
    assert economics.drafting(3, [0.1, 0.2, 0.3, 9.0]) == pytest.approx(0.6)
    assert economics.speedup(ALPHA, K, [C] * 3) == economics.speedup(ALPHA, K, C)
    batch = economics.break_even_batch(T_STAR, ALPHA, K, [0.1, 0.1, 0.295])
    assert batch == pytest.approx(150, abs=0.5)


def test_nothing_drafted_is_plain_decoding():
    for parallel in (False, True):
        assert economics.drafting(0, C, parallel) == 0
        assert economics.speedup(ALPHA, 0, C, parallel) == 1
    assert economics.asymptotic_speedup(ALPHA, 0, C) == 1


def test_passes_are_counted_as_the_method_says():
    count = {p: economics.invocations(p, 4) for p in ("none", "one", "gamma")}
    assert count == {"none": 0, "one": 1, "gamma": 4}
    assert economics.invocations("one", 0) == 0
    with pytest.raises(
        ValueError, match="passes 'some' is not one of none, one, gamma"
    ):
        economics.invocations("some", 1)


def test_drafts_that_cost_too_much_never_pay_and_free_ones_always_do():
    assert economics.break_even_alpha(3, 1.1) is None
    assert economics.break_even_alpha(3, 0.0) == 0
    assert economics.tie_alpha(0.1, 8, 1.0) == 0


def test_a_table_has_every_case_with_every_number():
    chain, block = economics.tabulate([ALPHA], [K], [C], t_star=T_STAR)
    assert (chain.name, chain.passes, chain.ties_chain_at) == ("chain", 3, None)
    assert (block.name, block.passes) == ("block", 1)
    assert block.ties_chain_at == pytest.approx(0.535, abs=1e-3)
    assert (round(chain.speedup, 2), round(block.speedup, 2)) == (1.69, 2.17)
    assert round(block.break_even_batch or 0) == 175
    assert len(economics.tabulate([0.1, 0.2], [1, 2], [0.1, 0.2])) == 16


def test_a_table_counts_modules_together_and_look_ups_as_free():
    kinds = {"modules": "modules", "ngram": "none"}
    modules, ngram = economics.tabulate([ALPHA], [2], [0.1, 0.3], kinds=kinds)
    assert (modules.passes, modules.drafts) == (2, pytest.approx(0.4))
    assert (ngram.passes, ngram.drafts, ngram.pays_from) == (0, 0, 0)


def test_a_chain_of_one_ties_with_itself():
    for c in (0.1, 0.165, 0.3, 0.7):
        assert economics.tie_alpha(1.0, 1, c) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: economics.emitted(1.5, 3), r"alpha 1.5 is outside \[0, 1\]"),
        (lambda: economics.emitted(0.5, -1), "K -1 is not a number of tokens"),
        (lambda: economics.speedup(0.5, 3, -0.1), "c -0.1 is negative"),
        (lambda: economics.speedup(0.5, 3, [0.1]), "K 3 needs 3 modules; costs of 1"),
        (lambda: economics.speedup(0.5, 1, [0.1], True), "modules draft one step each"),
    ],
)
def test_what_makes_no_sense_is_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
