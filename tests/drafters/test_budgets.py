"""Rounds that choose how many drafts their pass holds, by measured costs."""

import dataclasses
import functools
import re
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import decode as steps
from jspec import testing
from jspec.cache import CacheLayout
from jspec.control import CostTable, Goodput, Sample, Static
from jspec.control.budget import best_budget, survival
from jspec.control.estimator import Estimator, log_odds
from jspec.decode import Prices
from jspec.drafters.budgets import choose
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.ragged import Ragged
from jspec.engine.buckets import Buckets, Executables
from jspec.engine.engine import Engine
from jspec.engine.request import Request
from jspec.params import SamplingParams
from jspec.rounds import DEAD, Proposal
from jspec.testing import (
    GREEDY,
    check_law,
    compilations,
    decode,
    exact_law,
    sample,
    tiny_target,
)
from tests.control.test_budget import HOSTILE
from tests.drafters import test_ragged as ragged_tests
from tests.serving import quick_compiler

BUDGETS = (1, 1.5, 3)


@functools.cache
def target():
    return tiny_target(num_layers=1)


@functools.cache
def draft():
    return tiny_target(1, num_layers=1)


def chains(confidence, *, drawn=False):
    """Chains with these confidences, `[B, K]`."""
    b, k = confidence.shape
    said = np.concatenate([np.ones((b, 1)), confidence], axis=1)
    nodes = jnp.arange(k + 1, dtype=jnp.int32)
    return Proposal(
        tokens=jnp.zeros((b, k + 1), jnp.int32),
        parent=jnp.broadcast_to(nodes - 1, (b, k + 1)),
        confidence=jnp.asarray(said, jnp.float32),
        q=jnp.ones((b, k + 1, 1)) if drawn else None,
    )


def prices_of(ms, k, *, slope=1.0, intercept=0.0, usual=0.5):
    return Prices(
        ms=jnp.asarray(ms, jnp.float32),
        slope=jnp.float32(slope),
        intercept=jnp.full(k + 1, intercept, jnp.float32),
        usual=jnp.full(k + 1, usual, jnp.float32),
    )


@functools.partial(jax.jit, static_argnames="totals")
def chosen(proposal, totals, prices):
    b, n = proposal.tokens.shape
    live, deepest = jnp.ones(b, bool), jnp.full(b, n - 1, jnp.int32)
    return choose(proposal, totals, prices, live=live, deepest=deepest)


def by_numpy(confidence, totals, ms, slope=1.0, intercept=0.0):
    """`best_budget` where all other numbers of drafts take for ever."""
    estimator = Estimator(confidence.shape[1])
    estimator.slope, estimator.intercepts[:] = slope, intercept
    kept = survival(estimator.predict(log_odds(confidence)))
    every = np.full(totals[-1] + 1, np.inf)
    every[list(totals)] = ms
    return best_budget(kept, every, sampled=len(confidence))


def test_with_certain_drafts_the_device_chooses_what_numpy_chooses():
    rng = np.random.default_rng(0)
    totals, found = (2, 4, 7, 9), set()
    for _ in range(60):
        confidence = rng.beta(2, 1, (3, 3))
        ms = np.maximum.accumulate(rng.uniform(1, 4, 4))
        slope, intercept = rng.uniform(0.3, 1.5), rng.uniform(-1, 1)
        told = prices_of(ms, 3, slope=slope, intercept=intercept)
        choice = chosen(chains(confidence), totals, told)
        assert int(choice.total) == by_numpy(confidence, totals, ms, slope, intercept)
        found.add(int(choice.total))
    assert found == set(totals)


def test_as_many_drafts_are_admitted_as_the_chosen_pass_holds():
    rng = np.random.default_rng(1)
    ragged, totals = Ragged(mode="compact", budget=BUDGETS), (3, 5, 9)
    assert ragged.totals(3, 4) == totals
    for cheap, total in enumerate(totals):
        proposal = chains(rng.beta(2, 1, (3, 3)))
        ms = np.where(np.arange(3) == cheap, 1.0, np.inf)
        choice = chosen(proposal, totals, prices_of(ms, 3))
        offered = ragged.admit(proposal, choice).parent != DEAD
        assert int(offered.sum()) == int(choice.total) == total


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_confidences_are_chosen_from_as_numpy_does(name):
    confidence = HOSTILE[name]
    b, k = confidence.shape
    totals = (1, b, b * k)
    for ms in ((1, 1, 1), (1, 2, 4), (2, 2, 2.5), (1, 1.01, 9)):
        choice = chosen(chains(confidence), totals, prices_of(ms, k))
        assert int(choice.total) == by_numpy(confidence, totals, np.array(ms))
        admitted = np.array(choice.rank[:, 1:] < choice.total)
        assert (np.diff(admitted.astype(int), axis=1) <= 0).all()


def test_drawn_drafts_that_are_as_sure_as_usual_are_chosen_from_alike():
    rng = np.random.default_rng(1)
    totals = (2, 4, 7, 9)
    for _ in range(30):
        ms = np.maximum.accumulate(rng.uniform(1, 3, 4))
        sure = float(rng.uniform(0.3, 0.9))
        confidence = np.full((3, 3), sure)
        told = prices_of(ms, 3, usual=sure)
        choice = chosen(chains(confidence, drawn=True), totals, told)
        assert int(choice.total) == by_numpy(confidence, totals, ms)


@functools.partial(jax.jit, static_argnames="drawn")
def offered(said, prices, *, drawn):
    """Drafts that the first row of two offers, of many pairs."""

    def one(said):
        proposal = dataclasses.replace(
            chains(np.ones((2, ragged_tests.GAMMA)), drawn=drawn), confidence=said
        )
        choice = chosen(proposal, (2, 6), prices)
        admitted = Ragged(mode="compact", budget=(1, 3)).admit(proposal, choice)
        return (admitted.parent[0, 1:] != DEAD).sum()

    return jax.lax.map(one, said)


def cases():
    """Confidences of a row and of its neighbour, and what the larger pass takes."""
    ours = np.full((3, 3), 0.95)
    ours[0], ours[1] = 0.3, [0.95, 0.05, 0.05]
    yield ours, np.full((3, 3), 0.9), 1.36
    rng = np.random.default_rng(2)
    for _ in range(5):
        yield *rng.choice([0.05, 0.3, 0.6, 0.95], size=(2, 3, 3)), rng.uniform(1.2, 2)


def worst(*, drawn):
    """How far a row's law is off, at most, and the numbers of drafts it offers."""
    p, q = ragged_tests.laws(0)
    gap, seen = 0.0, set()
    for table, other, longer in cases():
        ours = ragged_tests.confidences(table, ragged_tests.PATHS)
        told = prices_of((1, longer), 3)
        for beside in ragged_tests.PATHS[::9]:
            theirs = ragged_tests.confidences(other, beside[None])
            pairs = np.stack([ours, np.repeat(theirs, len(ours), 0)], axis=1)
            counts = np.array(offered(pairs.astype(np.float32), told, drawn=drawn))
            seen |= set(counts.tolist())
            law = ragged_tests.emitted(p, q, counts)
            gap = max(gap, np.abs(law - ragged_tests.plain(p)).max())
    assert len(seen) > 2
    return gap


def test_the_chosen_budget_keeps_the_law_of_drawn_drafts():
    assert worst(drawn=True) < 1e-12


def test_the_best_budget_by_all_survivals_would_bend_the_law_of_drawn_drafts():
    assert worst(drawn=False) > 1e-3


@pytest.mark.parametrize(
    ("mode", "budget", "why"),
    [
        ("compact", [2, 1], "must be numbers that rise"),
        ("compact", [1, 1], "must be numbers that rise"),
        ("compact", [0, 1], "ragged_budget must be above 0"),
        ("compact", [1, float("inf")], "must be numbers that rise"),
        ("compact", [True, 2], "must be a number above 0, or several that rise"),
        ("cap-accept", [1, 2], "costs the same whatever is admitted"),
        ("static", [1, 2], "ragged_budget goes with"),
    ],
)
def test_budgets_that_leave_no_choice_are_refused(mode, budget, why):
    with pytest.raises(ValueError, match=why):
        DraftModel(ragged=mode, ragged_budget=budget)


def test_one_number_in_a_list_is_that_number_and_a_list_is_hashable():
    assert DraftModel(ragged="compact", ragged_budget=[2]).ragged_budget == 2
    several = DraftModel(ragged="compact", ragged_budget=[1, 2])
    assert several.ragged_budget == (1, 2)
    assert hash(several)


def costs_of(batches=(2,), ks=(1, 3), skip=()):
    """A pass of 10 ms and one more for each draft."""
    verify = [
        Sample(ms=10.0 + b * w, batch=b, size=b * w) for b in batches for w in (1, 4)
    ]
    packed = [
        Sample(ms=10.0 + total, batch=b, size=k, drafts=total)
        for b in batches
        for k in ks
        for total in Ragged(mode="compact", budget=BUDGETS).totals(b, k + 1)
        if (b, k, total) not in skip
    ]
    samples = [Sample(ms=0.5 * k, batch=b, size=k) for b in batches for k in ks]
    return CostTable(verify=verify, draft=samples, packed=packed)


class Turns(Goodput):
    """The prices of a cost table, so changed that every budget has its turn."""

    asked = 0

    def prices(self, batch, context, k):
        told = super().prices(batch, context, k)
        cheap = self.asked % len(told["ms"])
        self.asked += 1
        return told | {"ms": np.where(np.arange(len(told["ms"])) == cheap, 1.0, 1e6)}

    def k(self, batch, context=0):
        return super().palette[-1]


def engine_of(controller, *, rows=2, weights=None, gamma=3):
    drafter = DraftModel(
        gamma=gamma,
        draft_sampling="greedy",
        ragged="compact",
        ragged_budget=BUDGETS,
    )
    layout = CacheLayout(rows=rows, room=64, pages=40, page_size=4)
    weights = draft() if weights is None else weights
    state = steps.init_state(target(), drafter, weights, layout, jnp.float32)
    return Engine(
        target(),
        drafter,
        weights,
        state,
        layout=layout,
        buckets=Buckets(batch=(rows,), prompt=(8,), gammas=(1, gamma)),
        max_model_len=60,
        controller=controller,
    )


@pytest.fixture
def uncompiled(monkeypatch):
    done = Future()
    done.set_result(None)
    monkeypatch.setattr(Executables, "_compile", lambda *_, **__: done)


@pytest.mark.parametrize("controller", [None, Static(3), Goodput(costs_of())])
def test_who_knows_no_costs_or_believes_nothing_cannot_choose(controller, uncompiled):
    with pytest.raises(
        ValueError, match="schedule='budget:PATH', with a file of jspec"
    ):
        engine_of(controller)


@pytest.mark.parametrize("skip", [{(2, 3, 3)}, {(2, 1, 2)}])
def test_a_budget_that_was_not_measured_is_refused(skip, uncompiled):
    if (2, 1, 2) not in skip:
        engine_of(Goodput(costs_of(), confident=True))
    batch, k, total = next(iter(skip))
    error = f"batch {batch} and K = {k} whose pass holds {total} drafts.*measure again"
    with pytest.raises(ValueError, match=error):
        engine_of(Goodput(costs_of(skip=skip), confident=True))


def run(engine, requests):
    for request in requests:
        engine.submit(request, ())
    for _ in range(200):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine did not end")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
def test_budgets_change_every_round_compile_nothing_and_leave_greedy_text(
    rows, tmp_path
):
    prompts = [[3, 14, 15, 9], [1, 2]][:rows]
    wishes = [
        dataclasses.replace(GREEDY, max_tokens=20, repetition_penalty=1.2),
        dataclasses.replace(GREEDY, max_tokens=20, num_speculative_tokens=2),
    ][:rows]
    right = decode(target(), testing.METHODS["none"](), None, prompts, wishes)
    with quick_compiler(tmp_path):
        turns = Turns(costs_of((rows,)), confident=True)
        engine = engine_of(turns, rows=rows)
    requests = [
        Request(i, tuple(prompt), wish)
        for i, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True))
    ]
    with compilations() as compiled:
        run(engine, requests)
    assert compiled == []
    assert [one.token_ids for one in requests] == [one.tokens for one in right]
    counters = engine.counters
    totals = Ragged(mode="compact", budget=BUDGETS).totals(rows, 4)
    assert set(counters.totals) == set(totals)
    assert sum(counters.totals.values()) == counters.rounds
    assert counters.drafted <= sum(n * times for n, times in counters.totals.items())
    shape = ",".join(map(str, engine._state.pages.k[0].shape))
    program = engine.executables._round[3, rows].as_text()
    assert f"f32[{shape}]" in program
    assert not re.search(rf"= f32\[{shape}\]\S* copy\(", program)


def test_a_k_is_worth_what_its_best_pass_is():
    goodput = Goodput(costs_of(), confident=True)
    ragged = Ragged(mode="compact", budget=BUDGETS)
    goodput.offer({(2, k): ragged.totals(2, k + 1) for k in (1, 3)})
    for _ in range(40):
        goodput.hear(np.array([[0.99] * 3, [0.02] * 3]), [2, 0], [2, 0])
        goodput.update([2, 0], 2, 3)
    kept = goodput._heard
    totals, ms = (2, 3, 6), goodput.prices(2, 0, 3)["ms"]
    best_first = np.sort(kept, axis=None)[::-1].cumsum()
    rates = [(2 + best_first[n - 1]) / 2 / t for n, t in zip(totals, ms, strict=True)]
    assert goodput._now(2, 0)[3] == pytest.approx(max(rates))
    usual = goodput.prices(2, 0, 3)["usual"]
    assert usual[0] == 1 and usual[2] > usual[1]
    assert goodput.acceptance.mean(3)[1] > 0.8


@pytest.mark.slow
def test_sampled_text_follows_the_law_where_every_round_chooses(monkeypatch):
    totals = Ragged(mode="compact", budget=(0.5, 1.2, 3)).totals(2000, 4)
    told = prices_of(np.array([1.0, 1.12, 1.45]), 3, slope=1.5)
    rounds, step = [], testing._round[False]

    def priced(*args, **options):
        state, emission = step(*args, told, **options)
        rounds.append(int(emission.total))
        return state, emission

    monkeypatch.setitem(testing._round, False, priced)
    drafter = DraftModel(gamma=3, ragged="compact", ragged_budget=(0.5, 1.2, 3))
    params = SamplingParams(temperature=0.9, top_k=4)
    prompt = [1, 2, 3, 1, 2]
    texts = sample(target(), drafter, draft(), prompt, params, draws=8000)
    assert set(rounds) <= set(totals)
    check_law(texts, exact_law(target(), prompt, params))
