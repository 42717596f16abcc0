"""K by measured costs and learned acceptance: choices, trials, thrash, regret."""

import itertools
import random

import numpy as np
import pytest

from jspec.control import CostTable, Goodput, Sample, Static, Tree
from jspec.control.acceptance import Acceptance, emitted, octave
from jspec.control.goodput import best_k
from jspec.control.simulate import Arrival, generate, simulate

BATCHES, PALETTE = (1, 4, 16), (0, 1, 2, 4)


def table(*, draft_ms=1.0, token_ms=1.0, context_ms=0.0):
    """A pass of 20 ms, up to the tokens that take longer; drafts at so much each."""
    verify = [
        Sample(
            ms=max(20.0, token_ms * batch * width) + context_ms * batch * context,
            batch=batch,
            size=batch * width,
            context=context,
        )
        for batch in BATCHES
        for width in (1, 2, 3, 5)
        for context in (0, 4096)
    ]
    draft = [
        Sample(ms=draft_ms * k, batch=batch, size=k)
        for batch in BATCHES
        for k in PALETTE[1:]
    ]
    return CostTable(verify=verify, draft=draft)


def play(controller, rates, *, batch=1, context=0, rounds=400, seed=0, lag=1):
    """The K of every round, where the draft at each position is kept so often."""
    draw, late, chosen = random.Random(seed), [], []
    for _ in range(rounds):
        k = controller.k(batch, context)
        kept = []
        for _ in range(batch):
            hits = (draw.random() < rate for rate in rates[:k])
            kept.append(sum(1 for _ in itertools.takewhile(bool, hits)))
        late.append((kept, k))
        if len(late) > lag:
            accepted, drafted = late.pop(0)
            controller.update(accepted, batch, drafted)
        chosen.append(k)
    return chosen


def changes(chosen):
    return sum(a != b for a, b in itertools.pairwise(chosen))


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("rate", [0.0, 0.6, 0.95])
def test_it_settles_on_what_is_best_at_the_true_rates(batch, rate):
    costs = table()
    chosen = play(Goodput(costs), [rate] * 4, batch=batch, rounds=400)[200:]
    tokens = emitted([rate] * 4)
    worth = {k: tokens[k] / costs.round_ms(batch, k, 0) for k in PALETTE}
    got = sum(worth[k] for k in chosen) / len(chosen)
    assert got > 0.97 * max(worth.values())
    assert worth[max(set(chosen), key=chosen.count)] > 0.97 * max(worth.values())


def test_it_is_a_table_where_acceptance_is_known():
    costs = table(context_ms=0.001)
    controller = Goodput(costs)
    for _ in range(2000):
        controller.acceptance.count([4] * 6 + [0, 1, 2, 3], 4)
    rates = controller.acceptance.mean(4)
    for batch, context in itertools.product(BATCHES, (0, 1024, 4096)):
        wanted = best_k(
            costs, controller.acceptance.mean(4, context), PALETTE, batch, context
        )
        assert controller.k(batch, context) == wanted
    assert len({best_k(costs, rates, PALETTE, batch, 0) for batch in BATCHES}) > 1


def test_a_batch_that_grows_takes_another_k_at_once_and_keeps_what_was_learned():
    controller = Goodput(table())
    assert play(controller, [0.9] * 4, rounds=200)[-1] == 4
    assert controller.k(16, 0) < 4
    assert controller.k(1, 0) == 4


@pytest.mark.parametrize("draft_ms", [1.0, 8.0])
def test_trials_of_drafts_that_are_never_kept_cost_less_than_a_percent(draft_ms):
    costs = table(draft_ms=draft_ms)
    chosen = play(Goodput(costs), [0.0] * 4, rounds=1500)[100:]
    spent = sum(costs.round_ms(1, k) for k in chosen)
    assert spent < 1.01 * len(chosen) * costs.round_ms(1, 0)
    assert max(chosen) > 0


def test_where_no_draft_can_pay_none_is_ever_tried():
    chosen = play(Goodput(table(draft_ms=30)), [1.0] * 4, rounds=300)
    assert set(chosen) == {0}


def test_texts_that_become_easy_are_noticed_at_k_0():
    controller = Goodput(table())
    assert play(controller, [0.0] * 4, rounds=300)[-1] == 0
    assert play(controller, [0.95] * 4, rounds=1200)[-1] == 4


def test_a_tie_does_not_make_it_thrash():
    costs = table(draft_ms=20 * 0.5 / 1.0)
    chosen = play(Goodput(costs), [0.5, 0.0, 0.0, 0.0], rounds=1500)
    assert changes(chosen) < 45


def test_a_context_has_evidence_of_its_own_and_borrows_until_then():
    acceptance = Acceptance()
    for _ in range(60):
        acceptance.count([1], 1, context=100)
    assert acceptance.mean(1, 5000)[0] > 0.9
    for _ in range(60):
        acceptance.count([0], 1, context=5000)
    assert acceptance.mean(1, 100)[0] > 0.7
    assert acceptance.mean(1, 5000)[0] < 0.3
    assert [octave(at) for at in (0, 255, 256, 511, 512, 4096)] == [0, 0, 1, 1, 2, 5]


def test_doubt_grows_while_nothing_is_drafted_and_the_mean_stands_still():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.count([0], 1)
    [mean], [upper] = acceptance.mean(1), acceptance.upper(1)
    assert mean < upper < 0.15
    for _ in range(1000):
        acceptance.count([0], 0)
    assert acceptance.mean(1) == [mean]
    assert acceptance.upper(1)[0] > 2 * upper
    assert Acceptance().upper(3) == [1.0] * 3


def test_only_rows_that_reached_a_position_count_there():
    acceptance = Acceptance()
    for _ in range(300):
        acceptance.count([0, 2, 2, 1], 2)
    first, second = acceptance.mean(2)
    assert first == pytest.approx(3 / 4, abs=0.01)
    assert second == pytest.approx(2 / 3, abs=0.02)


def test_confidence_of_the_latest_drafts_replaces_the_average():
    controller = Goodput(table(), confident=True)
    for _ in range(400):
        for sure, kept in ((0.95, 4), (0.05, 0)):
            controller.k(1)
            controller.hear(np.full((1, 4), sure), [4], [kept])
            controller.update([kept], 1, 4)

    def after(sure):
        for _ in range(40):
            controller.hear(np.full((1, 4), sure), [4], [round(4 * sure)])
            k = controller.k(1)
        return k

    assert after(0.95) == 4
    assert after(0.05) == 1
    plain = Goodput(table())
    plain.hear(np.full((1, 4), 0.5), [4], [4])
    assert plain._heard is None


def test_no_k_within_the_limit_is_refused_and_larger_ones_are_left_out():
    assert Goodput(table(), max_k=2).palette == (0, 1, 2)
    costs = table()
    only = CostTable(
        verify=costs.samples["verify"], draft=[Sample(ms=1.0, batch=1, size=4)]
    )
    with pytest.raises(ValueError, match=r"\[4\] exceeds 2; measure smaller"):
        Goodput(only, max_k=2)
    assert Goodput(CostTable(verify=costs.samples["verify"]), max_k=2).palette == (
        0,
        1,
        2,
    )


@pytest.mark.parametrize(
    "rates",
    [
        [[0.1] * 4],
        [[0.9] * 4],
        [[0.9] * 4, [0.5] * 4, [0.1] * 4],
    ],
)
@pytest.mark.slow
def test_replayed_it_keeps_up_with_the_best_static_k(rates):
    costs = table(context_ms=0.0005)
    trace = generate(16, per_second=1, rates=rates, prompt=(32, 600), output=(32, 160))

    def replayed(controller):
        return simulate(trace, controller, costs, max_batch=16)

    static = [replayed(Static(k)).tokens_per_second for k in PALETTE]
    for confident in (False, True):
        outcome = replayed(Goodput(costs, confident=confident))
        assert outcome.tokens_per_second > 0.97 * max(static)
        assert outcome.tokens_per_second > 0.99 * static[0]
        assert outcome.switches < (0.25 if confident else 0.1) * outcome.rounds


@pytest.mark.slow
def test_texts_that_change_are_followed_where_no_static_k_can():
    costs = table(draft_ms=4)
    trace = [
        Arrival(
            ms=60_000.0 * i,
            prompt=64,
            output=900,
            rates=(0.0,) * 4 if i % 2 else (0.95,) * 4,
        )
        for i in range(4)
    ]

    def rate(controller):
        return simulate(trace, controller, costs, max_batch=1).tokens_per_second

    assert rate(Goodput(costs)) > 1.03 * max(rate(Static(k)) for k in PALETTE[:3])


TREES = (Tree(2, 4), Tree(2, 12), Tree(4, 8), Tree(4, 24))
TREE_RATES = {
    Tree(2, 4): (0.5, 0.4),
    Tree(2, 12): (0.7, 0.6),
    Tree(4, 8): (0.6, 0.5, 0.4, 0.3),
    Tree(4, 24): (0.8, 0.75, 0.7, 0.65),
}


def tree_costs(*, node_ms):
    """Passes of 20 ms, and so much for every node of every row."""
    verify = [
        Sample(ms=20.0, batch=b, size=b * (k + 1)) for b in BATCHES for k in (0, 2, 4)
    ]
    draft = [
        Sample(ms=1 + node_ms * b * nodes, batch=b, size=k, nodes=nodes)
        for b in BATCHES
        for k, nodes in TREES
    ]
    return CostTable(verify=verify, draft=draft)


def play_trees(controller, rates, *, batch=1, rounds=600, seed=0):
    draw, late, chosen = random.Random(seed), None, []
    for _ in range(rounds):
        size = controller.k(batch)
        if late is not None:
            controller.update(*late)
        kept = []
        for _ in range(batch):
            hits = (draw.random() < rate for rate in rates.get(size, ()))
            kept.append(sum(1 for _ in itertools.takewhile(bool, hits)))
        late = (kept, batch, size)
        chosen.append(size)
    return chosen


@pytest.mark.parametrize(
    ("node_ms", "batch", "best"),
    [(0.01, 1, Tree(4, 24)), (0.5, 1, Tree(4, 24)), (0.5, 4, Tree(2, 4)), (1, 16, 0)],
)
def test_of_trees_the_size_is_learned_that_is_best_at_its_own_rates(
    node_ms, batch, best
):
    costs = tree_costs(node_ms=node_ms)
    worth = {
        size: emitted(TREE_RATES.get(size, ()))[-1] / costs.round_ms(batch, size)
        for size in (0, *TREES)
    }
    assert max(worth, key=worth.__getitem__) == best
    controller = Goodput(costs)
    assert controller.palette == (0, *TREES)
    chosen = play_trees(controller, TREE_RATES, batch=batch)
    settled = chosen[200:]
    got = sum(worth[size] for size in settled) / len(settled)
    assert got > 0.95 * worth[best]
    assert changes(chosen) < 0.1 * len(chosen)


def test_a_larger_tree_that_brings_nothing_is_left_and_tried_seldom():
    costs = tree_costs(node_ms=0.5)
    same = {tree: (0.8, 0.7, 0.0, 0.0)[: tree.k] for tree in TREES}
    chosen = play_trees(Goodput(costs), same, rounds=1500)
    assert max(set(chosen), key=chosen.count) == Tree(2, 4)
    spent = sum(costs.round_ms(1, size) for size in chosen[100:])
    assert spent < 1.05 * costs.round_ms(1, Tree(2, 4)) * len(chosen[100:])
    assert changes(chosen) < 0.04 * len(chosen)
    assert set(chosen) == {0, *TREES} - {0}


def test_a_tree_nobody_measured_or_that_cannot_be_is_refused_by_name():
    costs = tree_costs(node_ms=0.1)
    with pytest.raises(ValueError, match=r"do not have the trees \(K/nodes\) 2/6"):
        Goodput(costs, palette=(Tree(2, 6),))
    with pytest.raises(ValueError, match="nodes of a tree of K = 4 4 is less than 5"):
        Goodput(costs, palette=(Tree(4, 4),))
    with pytest.raises(ValueError, match="every measured K of"):
        Goodput(costs, max_k=1)
    assert Goodput(costs, max_k=2).palette == (0, *TREES[:2])
    with pytest.raises(ValueError, match="K = 3 were not measured: trees alone"):
        costs.round_ms(1, 3)
    with pytest.raises(ValueError, match="nothing of the tree"):
        simulate([], Goodput(costs), costs, max_batch=1)


def stretches(seed, count=6000):
    """Tokens that are easy or hard in runs: whether each is drafted right."""
    draw, easy, state = random.Random(seed), [], True
    for _ in range(count):
        state = draw.random() < 0.4 if draw.random() < 0.1 else state
        easy.append(draw.random() < (0.95 if state else 0.05))
    return easy


def runs(easy, k):
    """What rounds of `k` drafts keep, over a whole text."""
    at, kept = 0, []
    while at + k < len(easy):
        kept.append(sum(1 for _ in itertools.takewhile(bool, easy[at : at + k])))
        at += kept[-1] + 1
    return kept


@pytest.mark.parametrize("seed", range(3))
def test_a_smaller_k_is_worth_what_it_keeps_and_not_what_rounds_of_a_larger_show(seed):
    easy, acceptance = stretches(seed), Acceptance()
    kept = runs(easy, 4)
    for _ in range(4):
        acceptance.count(kept, 4)
    shown = emitted(acceptance.mean(4))
    corrected = acceptance.tokens(4)
    for k in (1, 2):
        right = 1 + sum(runs(easy, k)) / len(runs(easy, k))
        assert corrected[k] == pytest.approx(right, rel=0.02)
        assert shown[k] < 0.95 * right
    assert corrected[4] == pytest.approx(shown[4])
