"""Replays are deterministic, count right, and rank controllers as arithmetic does."""

import numpy as np
import pytest

from jspec.control import Adaptive, CostTable, Sample, Schedule, Static
from jspec.control.simulate import Arrival, Oracle, compare, generate, simulate

ALWAYS, NEVER = (1.0,) * 7, (0.0,) * 7


def costs(step=10.0, token=0.1, draft=1.0):
    return CostTable(
        verify=[Sample(batch=64, size=s, ms=step + token * s) for s in range(1, 600)],
        draft=[Sample(batch=b, size=k, ms=draft * k) for b in (1, 64) for k in (1, 7)],
    )


def request(output=12, rates=ALWAYS, ms=0.0, prompt=1):
    return Arrival(ms=ms, prompt=prompt, output=output, rates=rates)


def test_a_round_emits_what_was_kept_and_one_more_and_takes_what_it_costs():
    table = costs()
    plain = simulate([request()], Static(0), table, max_batch=1)
    assert (plain.tokens, plain.rounds, plain.drafted) == (12, 12, 0)
    assert plain.busy_ms == pytest.approx(12 * 10.1)
    drafted = simulate([request()], Static(3), table, max_batch=1)
    assert (drafted.rounds, drafted.drafted, drafted.accepted) == (3, 9, 9)
    assert drafted.busy_ms == pytest.approx(3 * (10.4 + 3))
    assert drafted.tokens_per_second == pytest.approx(1000 * 12 / (3 * 13.4))


def test_drafts_that_are_never_kept_only_cost():
    outcome = simulate([request(rates=NEVER)], Static(3), costs(), max_batch=1)
    assert (outcome.rounds, outcome.drafted, outcome.accepted) == (12, 36, 0)


def test_a_text_ends_at_its_length_inside_a_round():
    assert simulate([request(output=5)], Static(7), costs(), max_batch=1).tokens == 5


def test_rows_are_filled_in_order_and_prompts_are_read_between_rounds():
    trace = [request(prompt=1025), request(), request(ms=1e6)]
    outcome = simulate(trace, Static(0), costs(), max_batch=2, prefill_chunk=512)
    assert outcome.rounds == 13 + 12
    assert outcome.tokens == 36
    assert outcome.ms > 1e6 > outcome.busy_ms


def test_a_request_waits_for_a_row():
    together = simulate([request(), request()], Static(0), costs(), max_batch=2)
    in_turn = simulate([request(), request()], Static(0), costs(), max_batch=1)
    assert (together.rounds, in_turn.rounds) == (12, 24)
    assert in_turn.first_token_ms > together.first_token_ms


def test_acceptance_may_change_with_the_context():
    arrival = Arrival(ms=0, prompt=1, output=20, rates=ALWAYS, drift=((11, NEVER),))
    outcome = simulate([arrival], Static(4), costs(), max_batch=1)
    assert outcome.rounds == 2 + 10


def test_rates_are_met_and_do_not_depend_on_who_decides():
    trace = [request(output=4000, rates=(0.7, 0.5))]
    one = simulate(trace, Static(1), costs(), max_batch=1)
    assert one.accepted / one.rounds == pytest.approx(0.7, abs=0.03)
    two = simulate(trace, Static(2), costs(), max_batch=1)
    assert two.accepted / two.rounds == pytest.approx(0.7 + 0.35, abs=0.04)


def test_the_same_arguments_give_the_same_outcome_and_another_seed_another():
    def replay(seed):
        trace = generate(
            8, per_second=50, rates=[[0.8] * 7, [0.3] * 7], output=(20, 50), seed=seed
        )
        controller = Adaptive(graph_batches=(1, 8), cost=costs().round_ms)
        return simulate(trace, controller, costs(), max_batch=8, seed=seed)

    assert replay(1) == replay(1)
    assert replay(1) != replay(2)


def test_a_controller_hears_of_a_round_after_the_next_was_chosen():
    events = []

    class Listener(Static):
        def k(self, batch, context=0):
            events.append("k")
            return super().k(batch, context)

        def update(self, accepted, batch, drafted=None):
            events.append((accepted, batch, drafted))

    simulate([request(output=6)], Listener(1), costs(), max_batch=1)
    assert events == ["k", "k", ([1], 1, 1), "k", ([1], 1, 1)]
    events.clear()
    simulate([request(output=4)], Listener(1), costs(), max_batch=1, lag=0)
    assert events == ["k", ([1], 1, 1), "k", ([1], 1, 1)]


def test_the_oracle_is_the_best_of_a_round_and_no_static_k_beats_it():
    oracle = Oracle(range(8), costs(draft=2.0))
    oracle.see([(0.9, 0.1)])
    assert oracle.k(1) == 1
    oracle.see([NEVER])
    assert oracle.k(1) == 0
    trace = generate(
        12, per_second=1e4, rates=[[0.9, 0.6, 0.3, 0.1]], output=(60, 90), seed=3
    )
    outcomes = compare(trace, {}, costs(), palette=range(0, 8, 2), max_batch=4)
    best = outcomes.pop("oracle").tokens_per_second
    assert all(
        outcome.tokens_per_second <= best * 1.01 for outcome in outcomes.values()
    )


def test_ours_with_costs_is_near_the_best_static_k_and_above_none():
    table = costs(token=0.4)
    trace = generate(
        8, per_second=60, rates=[[0.8, 0.7, 0.5, 0.3, 0.2]], output=(200, 400), seed=4
    )
    outcomes = compare(
        trace,
        {
            "adaptive": lambda: Adaptive(
                graph_batches=(1, 4), cost=table.round_ms, max_k=5
            ),
            "table": lambda: Schedule.parse(
                [[1, 2, 3], [3, 4, 1]], max_batch=4, max_model_len=4096, max_k=5
            ),
        },
        table,
        palette=range(6),
        max_batch=4,
    )
    rates = {name: outcome.tokens_per_second for name, outcome in outcomes.items()}
    static = max(rate for name, rate in rates.items() if name.startswith("K="))
    assert rates["adaptive"] >= 0.97 * static
    assert rates["adaptive"] >= 0.99 * rates["K=0"]
    assert set(outcomes["table"].rounds_at) <= {1, 3}
    assert outcomes["adaptive"].switches < outcomes["adaptive"].rounds / 10


def test_switches_and_rounds_at_each_k_are_counted():
    class Turns(Static):
        def __init__(self):
            super().__init__(0)
            self.turn = 0

        def k(self, batch, context=0):
            self.turn += 1
            return self.turn % 2

    outcome = simulate([request(output=6)], Turns(), costs(), max_batch=1)
    assert outcome.rounds_at == {0: 2, 1: 2}
    assert outcome.switches == 3


def test_a_trace_without_requests_takes_no_time():
    outcome = simulate([], Static(1), costs(), max_batch=1)
    assert (outcome.tokens, outcome.ms, outcome.tokens_per_second) == (0, 0, 0)
    assert np.isnan(outcome.first_token_ms)
