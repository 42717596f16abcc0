"""The closed loop: SGLang's traces to the letter, and ours without their cycles."""

import itertools
import json
import random

import pytest

from jspec.control import Adaptive

GRAPHS = (1, 2, 4, 8, 16, 32, 64)


def slot(candidates, **fields):
    fields = {
        "down_hysteresis": 0.0,
        "warmup_batches": 0,
        "update_interval": 1,
    } | fields
    return {"1": {"candidate_steps": candidates, **fields}}


def trace(adaptive, lengths, batch=1):
    """K after each round, rows accepting `lengths`, but no more than was drafted."""
    ks = []
    for length in lengths:
        adaptive.update([min(length, adaptive.k(batch))] * batch, batch)
        ks.append(adaptive.k(batch))
    return ks


def sglang(config=None, **more):
    return Adaptive(config, graph_batches=GRAPHS, compat="sglang", **more)


def test_sglang_starts_in_the_middle_of_all_candidates_or_of_the_slot():
    adaptive = sglang()
    assert adaptive.palette == (0, 1, 3, 5, 7)
    assert [adaptive.k(batch) for batch in (1, 8, 32, 64)] == [3, 3, 1, 0]


def test_sglang_starts_where_it_is_told_if_a_slot_lists_it():
    adaptive = sglang(initial=7)
    assert [adaptive.k(batch) for batch in (1, 8, 32, 64)] == [7, 1, 1, 0]
    with pytest.raises(ValueError, match=r"initial 4 is not one of \[0, 1, 3, 5, 7\]"):
        sglang(initial=4)


def test_sglang_pads_to_the_next_graph_and_takes_the_slot_below():
    adaptive = sglang(initial=7)
    assert [adaptive.k(batch) for batch in (4, 5, 33, 40)] == [7, 1, 0, 0]
    unpadded = Adaptive(
        {"1": {"candidate_steps": [1]}, "6": {"candidate_steps": [2]}, "90":
         {"candidate_steps": [0]}},
        graph_batches=(1, 4), compat="sglang",
    )  # fmt: skip
    assert [unpadded.k(batch) for batch in (3, 5, 6, 89, 90)] == [1, 1, 2, 2, 0]


def test_a_batch_below_every_slot_has_the_first():
    adaptive = sglang({"8": {"candidate_steps": [2]}, "16": {"candidate_steps": [1]}})
    assert adaptive.k(1) == 2


def test_sglang_decides_first_at_round_15_then_at_every_5th():
    # The mean is 3 - 0.8^15, then 4.33 in round 20 and 4.78 in round 25.
    ks = trace(sglang(), [7] * 30)
    assert ks == [3] * 14 + [5] * 10 + [7] * 6


def test_sglangs_mean_is_exponential_and_climbs_one_beyond_it():
    # 2, then 2.2, 2.36, 2.488, 2.5904: above 3 - 0.5 with the fourth round.
    ks = trace(sglang(slot([1, 3, 5])), [3] * 4)
    assert ks == [3, 3, 3, 5]


def test_sglang_falls_several_candidates_at_once_but_never_rises_in_that_tick():
    adaptive = sglang(slot([0, 1, 3, 5], ema_alpha=1.0), initial=5)
    assert trace(adaptive, [0]) == [0]


def test_sglang_rises_several_candidates_at_once_while_the_mean_allows():
    adaptive = sglang(slot([1, 2, 3, 5], ema_alpha=1.0, up_hysteresis=-1.5), initial=1)
    # Above 1 - 2 and 2 - 2 and not above 3 - 2: from 1 to 2 to 3.
    assert trace(adaptive, [1]) == [3]


def test_sglangs_thresholds_for_falling_are_asymmetric():
    config = slot([0, 1, 3], ema_alpha=1.0, down_hysteresis=-0.25)
    stays, falls = sglang(config, initial=1), sglang(config, initial=1)
    stays.update([1, 0, 0], 1)  # 0.33 > 0.25
    falls.update([1, 0, 0, 0], 1)  # 0.25
    assert (stays.k(1), falls.k(1)) == (1, 0)


def test_sglang_ignores_a_round_without_rows():
    adaptive = sglang(slot([1, 3], ema_alpha=1.0), initial=3)
    adaptive.update([], 1)
    assert adaptive.k(1) == 3


def test_sglangs_slots_learn_apart():
    adaptive = sglang()
    trace(adaptive, [7] * 25)
    assert [adaptive.k(batch) for batch in (1, 8)] == [7, 3]


def test_sglang_alternates_for_ever_where_everything_is_rejected():
    ks = trace(sglang(), [0] * 400, batch=8)
    assert ks[14::5] == [0, 1] * 39


def test_sglang_begins_a_first_probe_as_if_all_but_one_draft_were_kept():
    # The mean becomes 2, not -1: then 1.8 and 1.64, above 0.5.
    assert trace(sglang(slot([0, 3]), initial=0), [1, 1, 1]) == [3, 3, 3]


def test_sglang_keeps_a_slot_of_zero_alone_at_zero():
    assert set(trace(sglang(), [0] * 50, batch=64)) == {0}


def test_sglangs_ceiling_oscillates_for_ever():
    adaptive = sglang(slot([2, 3], ceiling_coeff=1.0, ema_alpha=0.01), initial=2)
    trace(adaptive, [2] * 200)
    assert trace(adaptive, [2] * 4) in ([2, 3, 2, 3], [3, 2, 3, 2])


def changes(ks):
    return sum(one != other for one, other in itertools.pairwise(ks))


def test_ours_probes_ever_less_where_everything_is_rejected():
    adaptive = Adaptive(graph_batches=GRAPHS)
    ks = trace(adaptive, [0] * 1500, batch=8)
    assert sum(k > 0 for k in ks[:400]) > sum(k > 0 for k in ks[-400:]) > 0
    assert sum(k > 0 for k in ks[700:]) / 800 < 0.02


def test_ours_returns_when_the_drafter_does():
    adaptive = Adaptive(graph_batches=GRAPHS)
    trace(adaptive, [0] * 1500, batch=8)
    ks = trace(adaptive, [7] * 400, batch=8)
    assert set(ks[-50:]) == {3}


def test_ours_settles_under_a_ceiling():
    adaptive = Adaptive(
        slot([2, 3], ceiling_coeff=1.0, ema_alpha=0.01), graph_batches=GRAPHS, initial=2
    )
    assert changes(trace(adaptive, [2] * 400)) == 0


def coins(rates, seed=0):
    draw = random.Random(seed)

    def accept(k):
        length = 0
        while length < min(k, len(rates)) and draw.random() < rates[length]:
            length += 1
        return length

    return accept


def settle(adaptive, rates, batch, rounds=3000):
    accept = coins(rates)
    ks = []
    for _ in range(rounds):
        k = adaptive.k(batch)
        adaptive.update([accept(k) for _ in range(batch)], batch)
        ks.append(k)
    return ks


def affine(step, token, draft):
    return lambda batch, k, context: step + token * batch * (k + 1) + draft * k


def best(rates, cost, batch, most=7):
    def rate(k):
        emitted = reach = 1.0
        for each in rates[:k]:
            reach *= each
            emitted += reach
        return emitted / cost(batch, k, 0)

    return max(range(most + 1), key=rate), rate


@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("rates", [[0.9] * 7, [0.6, 0.3, 0.15, 0, 0, 0, 0], [0.0] * 7])
def test_with_costs_ours_settles_within_two_percent_of_the_best(batch, rates):
    cost = affine(10.0, 0.08, 0.6)
    adaptive = Adaptive(graph_batches=GRAPHS, cost=cost)
    ks = settle(adaptive, rates, batch, rounds=900)[-600:]
    k, rate = best(rates, cost, batch)
    achieved = len(ks) / sum(1 / rate(k) for k in ks)
    assert achieved / rate(k) > 0.98
    assert changes(ks) <= 12


def test_with_costs_ours_stops_where_no_acceptance_could_pay():
    adaptive = Adaptive(graph_batches=GRAPHS, cost=affine(0.0, 1.0, 0.1), max_k=3)
    ks = settle(adaptive, [0.9] * 3, 64, rounds=400)
    assert set(ks[100:]) == {0}


def test_costs_may_depend_on_the_context():
    def cost(batch, k, context):
        return 1.0 + 2 * k if context < 100 else 1.0 + 0.01 * k

    for context, settled in ((10, 0), (1000, 3)):
        adaptive = Adaptive(graph_batches=GRAPHS, cost=cost, max_k=3)
        for _ in range(300):
            k = adaptive.k(1, context)
            adaptive.update([k], 1)
        assert adaptive.k(1, context) == settled


def test_a_round_drafted_under_another_k_moves_no_threshold():
    late, never = (
        Adaptive(slot([1, 3], ema_alpha=1.0), graph_batches=GRAPHS, initial=3)
        for _ in range(2)
    )
    late.update([0], 1, drafted=1)
    never.update([0], 1, drafted=3)
    assert (late.k(1), never.k(1)) == (3, 1)


def test_the_palette_ends_at_the_largest_k():
    adaptive = Adaptive(graph_batches=GRAPHS, max_k=4)
    assert adaptive.palette == (0, 1, 3)
    with pytest.raises(ValueError, match=r"slot 1: every candidate of \[1, 3, 5, 7\]"):
        Adaptive(graph_batches=GRAPHS, max_k=0)


def test_keys_that_are_no_batch_are_defaults_of_every_slot(tmp_path):
    path = tmp_path / "adaptive.json"
    config = {
        "warmup_batches": 0,
        "update_interval": 2,
        "1": {"candidate_steps": [3, 1, 3], "update_interval": 1, "ema_alpha": 1.0},
        "8": {"candidate_steps": [1, 3], "ema_alpha": 1.0},
    }
    path.write_text(json.dumps(config))
    adaptive = Adaptive(path, graph_batches=GRAPHS, compat="sglang", initial=3)
    assert trace(adaptive, [0], batch=1) == [1]
    assert trace(adaptive, [0, 0], batch=8) == [3, 1]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, "has no batch size among its keys"),
        ({"ema_alpha": 0.1}, "has no batch size among its keys"),
        ({"1": [1, 2]}, r"slot 1: \[1, 2\] is not a mapping"),
        ({"1": {}}, "slot 1: candidate_steps is not a list of some integers"),
        ({"1": {"candidate_steps": []}}, "candidate_steps is not a list of some"),
        ({"1": {"candidate_steps": [1.0]}}, "candidate step 1.0 is not an integer"),
        ({"1": {"candidate_steps": ["1"]}}, "candidate step '1' is not an integer"),
        ({"1": {"candidate_steps": [True]}}, "candidate step True is not an integer"),
        ({"1": {"candidate_steps": [-1]}}, "candidate step -1 is less than 0"),
        (slot([1], ema=0.2), "'ema' is not one of candidate_steps, ema_alpha"),
        (slot([1], ema_alpha=0), r"ema_alpha 0 is outside \(0, 1\]"),
        (slot([1], ema_alpha="0.2"), "ema_alpha '0.2' is not a number"),
        (slot([1], up_hysteresis=float("nan")), "up_hysteresis nan is not a number"),
        (slot([1], update_interval=0), "update_interval 0 is less than 1"),
        (slot([1], warmup_batches=1.5), "warmup_batches 1.5 is not an integer"),
        (slot([1], ceiling_coeff=-1), "ceiling_coeff -1 is below 0"),
        (slot([1]) | {"01": {"candidate_steps": [1]}}, "slot 1 is there twice"),
    ],
)
def test_a_wrong_configuration_is_told_in_a_sentence(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        Adaptive(config, graph_batches=GRAPHS)


def test_compatibility_excludes_costs_and_graphs_are_needed():
    with pytest.raises(ValueError, match="compat='sglang' knows no cost"):
        sglang(cost=affine(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="graph_batches is empty"):
        Adaptive(graph_batches=())
