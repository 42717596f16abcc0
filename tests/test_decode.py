import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import KVCache
from jspec.decode import Finish
from jspec.drafters import METHODS
from jspec.drafters.base import View
from jspec.params import SamplingParams
from jspec.sampling import Stream, row_keys
from jspec.testing import (
    GREEDY,
    Loop,
    Scripted,
    TableTarget,
    compilations,
    decode,
    oracle,
    script,
    self_draft,
    text_logits,
    tiny_target,
)

PLAIN = METHODS["none"]()
PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5] * 11 + [7], [9], [4, 8])


@functools.cache
def target():
    return tiny_target()


@functools.cache
def plain(index, tokens=40):
    params = dataclasses.replace(GREEDY, max_tokens=tokens)
    return decode(target(), PLAIN, None, [PROMPTS[index]], params, rows=4)[0].tokens


def wish(**changes):
    return dataclasses.replace(GREEDY, **changes)


@functools.cache
def clairvoyant():
    return oracle(target(), PROMPTS, wish(max_tokens=40))


def counting():
    """Each token is followed by the next id: no text repeats before 64 tokens."""
    return TableTarget(table=9 * jnp.roll(jnp.eye(64), 1, axis=1))


def count_on(index, tokens):
    return [(PROMPTS[index][-1] + 1 + i) % 64 for i in range(tokens)]


@functools.cache
def counted():
    return oracle(counting(), PROMPTS, wish(max_tokens=40))


def test_greedy_text_of_the_batch_is_what_the_model_says_of_the_whole_text():
    for i, prompt in enumerate(PROMPTS):
        text = [*prompt, *plain(i)]
        logits = text_logits(target(), np.array([text], np.int32))[0]
        right = jnp.argmax(logits, -1)[len(prompt) - 1 : -1]
        assert plain(i) == right.tolist()


def test_every_draft_of_an_oracle_is_accepted():
    drafter, lines = clairvoyant()
    for i, done in enumerate(
        decode(target(), drafter, lines, PROMPTS, wish(max_tokens=40))
    ):
        assert done.tokens == plain(i)
        assert done.accepted == done.drafted
        assert done.rounds == 8


@pytest.mark.parametrize("offset", range(1, 11))
def test_r01_a_stop_token_anywhere_in_a_round_ends_the_text_there(offset):
    drafter, lines = counted()
    place = offset - 1
    params = wish(stop_token_ids=(count_on(0, 40)[place],))
    done = decode(counting(), drafter, lines, PROMPTS, params)[0]
    assert done.tokens == count_on(0, 40)[: place + 1]
    assert done.finish == Finish.STOP
    assert sum(done.accepted) + done.rounds >= len(done.tokens)


@pytest.mark.parametrize("budget", range(1, 12))
def test_r02_exactly_the_budget_is_emitted(budget):
    drafter, lines = counted()
    for i, done in enumerate(
        decode(counting(), drafter, lines, PROMPTS, wish(max_tokens=budget))
    ):
        assert done.tokens == count_on(i, budget)
        assert done.finish == Finish.LENGTH
        assert done.rounds == -(-budget // 5)


def test_r07_accepted_counts_delivered_drafts_alone():
    drafter, lines = counted()
    place = 2
    done = decode(
        counting(),
        drafter,
        lines,
        PROMPTS,
        wish(stop_token_ids=(count_on(1, 40)[place],)),
    )[1]
    bonus = len(done.tokens) - sum(done.accepted)
    assert bonus in (done.rounds, done.rounds - 1)


def test_r08_a_drafted_stop_token_is_a_proposal_like_any_other():
    stop = 63
    text = [*PROMPTS[0], *count_on(0, 40)]
    text[len(PROMPTS[0]) + 1] = stop
    lines = script([text], gamma=4)
    done = decode(
        counting(),
        Scripted(),
        lines,
        PROMPTS[:1],
        wish(max_tokens=20, stop_token_ids=(stop,)),
    )[0]
    assert done.tokens == count_on(0, 20)
    assert done.accepted[0] == 1


@pytest.mark.parametrize("early", range(9))
def test_r11_min_tokens_counts_tokens_and_bans_stops_by_position(early):
    bonus = 4
    params = wish(
        max_tokens=12,
        min_tokens=early,
        stop_token_ids=(count_on(0, 40)[bonus], count_on(0, 40)[0]),
    )
    drafter, lines = counted()
    right = decode(counting(), PLAIN, None, PROMPTS, params)[0]
    ours = decode(counting(), drafter, lines, PROMPTS, params)[0]
    assert (ours.tokens, ours.finish) == (right.tokens, right.finish)
    assert len(right.tokens) > early or right.finish == Finish.LENGTH


def test_r11_a_stop_token_right_after_min_tokens_ends_the_text():
    place = 6
    drafter, lines = counted()
    params = wish(min_tokens=place, stop_token_ids=(count_on(0, 40)[place],))
    done = decode(counting(), drafter, lines, PROMPTS, params)[0]
    assert done.tokens == count_on(0, 40)[: place + 1]


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(n, marks=() if n in (24, 28, 31, 32) else pytest.mark.slow)
        for n in range(24, 33)
    ],
)
def test_r12_a_text_that_fills_the_room_ends_as_plain_decoding_does(length):
    prompts = [[(3 * i) % 61 + 1 for i in range(length)], PROMPTS[0]]
    room = 32
    params = [wish(max_tokens=room - length + 1), wish(max_tokens=20)]
    drafter, lines = oracle(target(), prompts, params[1], gamma=8, room=64)
    right = decode(target(), PLAIN, None, prompts, params, room=room)
    ours = decode(target(), drafter, lines, prompts, params, room=room)
    assert [d.tokens for d in ours] == [d.tokens for d in right]
    assert [d.finish for d in ours] == [Finish.LENGTH] * 2


def test_r13_nodes_beyond_a_rows_pages_are_written_nowhere():
    loop = Loop(
        target(), Scripted(gamma=8), jnp.ones((2, 64, 8), jnp.int32), rows=2, room=32
    )
    loop.admit(0, PROMPTS[0], wish(max_tokens=1))
    loop.admit(1, PROMPTS[0], wish(max_tokens=24))
    before = jax.device_get(loop.state.pages.k[0])
    loop.round([0, 2])
    after = jax.device_get(loop.state.pages.k[0])
    changed = [
        p
        for p in range(len(before))
        if not np.array_equal(before[p], after[p], equal_nan=True)
    ]
    assert changed == [loop.held[0][-1]]
    np.testing.assert_array_equal(before[loop.held[0][0]], after[loop.held[0][0]])


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@pytest.mark.parametrize("gamma", [1, 4])
def test_r16_r17_short_prompts_and_one_drafted_token(method, gamma):
    drafter = METHODS[method](gamma=gamma)
    weights = target() if method == "draft_model" else None
    prompts = ([9], [4, 8], [3, 3, 3], PROMPTS[0])
    right = decode(target(), PLAIN, None, prompts)
    ours = decode(target(), drafter, weights, prompts)
    assert [d.tokens for d in ours] == [d.tokens for d in right]


def test_r16_without_a_match_nothing_is_drafted():
    done = decode(
        target(), METHODS["ngram"](shortest=3), None, [[9], [4, 8]], wish(max_tokens=1)
    )
    assert [d.drafted for d in done] == [[0], [0]]


def test_r20_r21_only_tokens_of_the_requests_support_are_emitted():
    table = np.array([[0, 1, 2, 3, -1, -2]] * 6, np.float32)
    lines = jnp.tile(jnp.array([0, 4, 5, 1], jnp.int32), (64, 32, 1))
    params = [
        SamplingParams(temperature=0.5, top_k=2, top_p=0.99, seed=i, max_tokens=20)
        for i in range(64)
    ]
    done = decode(
        TableTarget(table=jnp.asarray(table)),
        Scripted(),
        lines,
        [[0]] * 64,
        params,
        room=32,
    )
    assert {t for d in done for t in d.tokens} == {2, 3}


@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 2.0},
        pytest.param({"frequency_penalty": -2.0}, marks=pytest.mark.slow),
        pytest.param({"presence_penalty": 1.5}, marks=pytest.mark.slow),
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.7, "frequency_penalty": 0.4, "presence_penalty": -0.3},
        {"logit_bias": {7: 3.0, 9: -100.0}},
        pytest.param(
            {"frequency_penalty": 1.0, "logit_bias": {7: 5.0}}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_r23_penalties_see_the_drafts_before_each_node(penalties):
    prompts = ([7, 7, 7], PROMPTS[0], PROMPTS[0])
    params = [
        wish(max_tokens=30, **penalties),
        wish(max_tokens=30),
        wish(max_tokens=30, **penalties),
    ]
    right = decode(target(), PLAIN, None, prompts, params)
    texts = [[*p, *d.tokens, 1, 1, 1, 1] for p, d in zip(prompts, right, strict=True)]
    always = decode(target(), Scripted(), script(texts, gamma=4), prompts, params)
    looked_up = decode(target(), METHODS["ngram"](shortest=1), None, prompts, params)
    for ours in (always, looked_up):
        assert [d.tokens for d in ours] == [d.tokens for d in right]
    assert all(d.accepted == d.drafted for d in always)
    assert right[1].tokens == plain(0)[:30]
    assert right[2].tokens != right[1].tokens


@pytest.mark.parametrize(
    "method", ["none", "ngram", pytest.param("draft_model", marks=pytest.mark.slow)]
)
def test_r27_a_seeded_row_ignores_neighbours_order_and_batch(method):
    gamma = {} if method == "none" else {"gamma": 3}
    drafter = METHODS[method](**gamma)
    weights = tiny_target(1) if method == "draft_model" else None
    params = [
        SamplingParams(temperature=0.9, seed=s, max_tokens=16) for s in (1, None, 2, 1)
    ]
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[0]]
    together = decode(target(), drafter, weights, prompts, params)
    turned = decode(target(), drafter, weights, prompts, params, order=(3, 2, 0, 1))
    alone = decode(target(), drafter, weights, prompts[:1], params[:1], rows=4)
    assert [d.tokens for d in turned] == [d.tokens for d in together]
    assert alone[0].tokens == together[0].tokens == together[3].tokens
    assert together[0].tokens != together[2].tokens


def test_r10_a_draft_thrown_away_leaves_no_trace_in_the_random_numbers():
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=16)
    right = decode(target(), PLAIN, None, PROMPTS[:1], params)[0].tokens
    never = next(t for t in range(64) if t not in right)
    masked = dataclasses.replace(params, logit_bias={never: -100.0})
    lines = jnp.full((1, 64, 4), never, jnp.int32)
    right = decode(target(), PLAIN, None, PROMPTS[:1], masked)[0].tokens
    short = decode(target(), Scripted(gamma=1), lines, PROMPTS[:1], masked)[0]
    long = decode(target(), Scripted(gamma=4), lines, PROMPTS[:1], masked)[0]
    assert short.tokens == long.tokens
    assert sum(long.accepted) == 0


def test_r29_greedy_rows_beside_sampled_ones_give_vocabulary_ids():
    row = [-8.0, -3, -2, -1, 0, 9, 1, 9]
    aim = TableTarget(table=jnp.asarray([row] * 8))
    params = [
        wish(max_tokens=8),
        SamplingParams(temperature=0.7, top_k=5, seed=1, max_tokens=8),
    ]
    for drafter in (PLAIN, METHODS["ngram"](shortest=1), METHODS["draft_model"]()):
        weights = aim if isinstance(drafter, METHODS["draft_model"]) else None
        done = decode(aim, drafter, weights, [[0], [0]], params)
        assert done[0].tokens == [5] * 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spoiled(METHODS["draft_model"]):
    """Drafts with the target itself, and spoils the draft that the script points at."""

    def init(self, weights, layout):
        memory = super().init(weights[0], layout)
        return dataclasses.replace(memory, rows=jnp.arange(layout.rows))

    def check(self, weights, target):
        super().check(weights[0], target)

    def propose(self, weights, memory, anchor, keys, view):
        proposal, memory = super().propose(weights[0], memory, anchor, keys, view)
        at = (
            weights[1]
            .at[memory.rows, view.cache.length]
            .get(mode="fill", fill_value=-1)
        )
        here = jnp.arange(proposal.tokens.shape[1])[None] == at[:, None]
        spoiled = jnp.where(here, (proposal.tokens + 1) % 64, proposal.tokens)
        return dataclasses.replace(proposal, tokens=spoiled), memory

    def observe(self, weights, memory, evidence, view):
        return super().observe(weights[0], memory, evidence, view)


@pytest.mark.parametrize("tokens", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_r38_the_self_draft_is_always_right_however_often_it_is_spoiled(tokens):
    rows, room = 2, tokens + 20
    offsets = np.random.default_rng(0).integers(-4, 5, (rows, room))
    offsets[1] = -1
    weights = (target(), jnp.asarray(np.where(offsets < 1, -1, offsets), jnp.int32))
    drafter = Spoiled(gamma=4, draft_sampling="greedy")
    params = wish(max_tokens=tokens)
    done = decode(target(), drafter, weights, PROMPTS[:2], params, room=room)
    right = decode(target(), PLAIN, None, PROMPTS[:2], params, room=room)
    for row, (ours, plainly) in enumerate(zip(done, right, strict=True)):
        assert ours.tokens == plainly.tokens
        place = len(PROMPTS[row]) - 1
        for drafted, accepted in zip(ours.drafted, ours.accepted, strict=True):
            spoiled = int(weights[1][row, place])
            due = spoiled - 1 if 1 <= spoiled <= drafted else drafted
            assert accepted == due
            place += accepted + 1


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8]
)
def test_a_model_that_drafts_for_itself_accepts_everything(temperature):
    params = SamplingParams(
        temperature=temperature, top_k=20, seed=3, max_tokens=200, ignore_eos=True
    )
    for sampling in ("greedy", "probabilistic")[temperature > 0 :]:
        done = decode(
            target(), self_draft(4, sampling), target(), PROMPTS, params, room=240
        )
        assert all(d.accepted == d.drafted for d in done)


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(n, marks=() if n in (1, 8) else pytest.mark.slow)
        for n in (20, 8, 7, 1)
    ],
)
def test_r43_pieces_of_the_prompt_do_not_change_the_first_drafts(chunk):
    prompt = [(7 * i) % 23 + 1 for i in range(20)]
    drafter = METHODS["draft_model"](gamma=4, draft_sampling="greedy")

    def first(chunk):
        loop = Loop(target(), drafter, tiny_target(1), rows=1, room=32, chunk=chunk)
        loop.admit(0, prompt)
        rows, state = loop.state.rows, loop.state
        cache = KVCache(pages=state.pages, table=rows.table, length=rows.length)
        view = View(target=target(), cache=cache, sampling=rows.sampling)
        keys = row_keys(rows.sampling, rows.length, Stream.DRAFT)
        propose = jax.jit(drafter.propose)
        proposal, _ = propose(loop.weights, state.memory, rows.anchor, keys, view)
        return proposal.tokens.tolist(), loop.round().tokens.tolist()

    assert first(chunk) == first(19)


TREE = (0, 0, 1, 2)


@pytest.mark.parametrize(
    "windows",
    [pytest.param((), marks=pytest.mark.slow), (8, 4)],
    ids=["full", "windows"],
)
def test_r44_r45_a_tree_whose_second_branch_is_right_equals_plain_decoding(windows):
    aim = tiny_target(windows=windows)
    prompts, params = (PROMPTS[0], PROMPTS[1], [9]), wish(max_tokens=60)
    right = decode(aim, PLAIN, None, prompts, params)
    texts = [[*p, *d.tokens] for p, d in zip(prompts, right, strict=True)]
    chain = np.asarray(script(texts, gamma=2))
    wrong = np.where(chain >= 0, (chain + 1) % 64, -1)
    lines = np.stack([wrong[..., 0], chain[..., 0], wrong[..., 1], chain[..., 1]], -1)
    loop_lines = jnp.asarray(lines)
    tree = decode(aim, Scripted(gamma=2, parents=TREE), loop_lines, prompts, params)
    straight = decode(aim, Scripted(gamma=2), jnp.asarray(chain), prompts, params)
    for ours, chained, plainly in zip(tree, straight, right, strict=True):
        assert ours.tokens == plainly.tokens
        assert ours.accepted == chained.accepted
        assert ours.rounds == 20


def test_r44_after_a_tree_the_cache_holds_what_plain_decoding_would():
    aim, prompt = target(), PROMPTS[0]
    text = [*prompt, *plain(0)]
    chain = np.asarray(script([text], gamma=2))
    wrong = (chain + 1) % 64
    lines = np.stack([wrong[..., 0], chain[..., 0], wrong[..., 1], chain[..., 1]], -1)
    loops = {}
    for name, drafter, weights in (
        ("tree", Scripted(gamma=2, parents=TREE), jnp.asarray(lines)),
        ("plain", PLAIN, None),
    ):
        loop = loops[name] = Loop(aim, drafter, weights, rows=1, page_size=4)
        loop.admit(0, prompt, wish(max_tokens=30))
        while loop.state.rows.length[0] < 22:
            loop.round()
    length = int(min(loop.state.rows.length[0] for loop in loops.values()))

    def committed(loop):
        held = jnp.array(loop.held[0])
        for pages in (*loop.state.pages.k, *loop.state.pages.v):
            yield pages.at[held].get().transpose(0, 2, 1, 3).reshape(-1, 2, 8)[:length]

    for ours, right in zip(
        *map(committed, (loops["tree"], loops["plain"])), strict=True
    ):
        np.testing.assert_allclose(ours, right, atol=1e-5)
    tree, plainly = loops["tree"].state, loops["plain"].state

    def of(s):
        return KVCache(pages=s.pages, table=s.rows.table, length=s.rows.length).text

    np.testing.assert_array_equal(of(tree)[0, :length], of(plainly)[0, :length])


@pytest.mark.parametrize(
    "order", [(0, 1), pytest.param((1, 0), marks=pytest.mark.slow)]
)
def test_r45_windows_count_positions_in_every_row_of_a_batch(order):
    aim = tiny_target(windows=(8, 3))
    prompts = ([3, 1, 4, 1, 5], [(5 * i) % 17 + 1 for i in range(20)])
    right = [decode(aim, PLAIN, None, [p], rows=2)[0].tokens for p in prompts]
    drafter, lines = oracle(aim, [prompts[i] for i in order])
    ours = decode(aim, drafter, lines, [prompts[i] for i in order])
    assert [d.tokens for d in ours] == [right[i] for i in order]
    assert all(d.accepted == d.drafted for d in ours)


def test_r52_a_row_left_out_of_rounds_goes_on_as_if_nothing_had_happened():
    _, lines = counted()
    wrong = jnp.where(lines < 0, lines, (lines + 1) % 64)
    loop = Loop(counting(), Scripted(), wrong, rows=4)
    for row, prompt in enumerate(PROMPTS):
        loop.admit(row, prompt, wish(max_tokens=12))
    texts = [[] for _ in PROMPTS]
    for rows in ([0, 4, 4, 4], [1, 0, 7, 9], [2, 3, 0, 5], *[[3, 2, 1, 0]] * 12):
        emission = loop.round(rows)
        for i, row in enumerate(rows):
            texts[row % 4 if row < 4 else 0] += emission.tokens[
                i, : emission.count[i]
            ].tolist()
            assert row < 4 or emission.count[i] == 0
    assert texts == [count_on(i, 12) for i in range(4)]


@pytest.mark.parametrize("copies", [1, 2, 8])
def test_r53_acceptance_does_not_change_with_the_batch(copies):
    drafter = METHODS["draft_model"](gamma=4, draft_sampling="greedy")
    near = tiny_target()
    near.layers[0].q = type(near.layers[0].q)(near.layers[0].q[...] * 1.3)
    once = decode(target(), drafter, near, [PROMPTS[0]], rows=8)[0]
    many = decode(target(), drafter, near, [PROMPTS[0]] * copies, rows=8)
    assert all(d.accepted == once.accepted for d in many)
    assert 0 < sum(once.accepted) < sum(once.drafted)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_row_whose_logits_break_ends_with_an_error_and_neighbours_do_not_notice(
    temperature, drafting
):
    rng = np.random.default_rng(3)
    table = 2 * rng.standard_normal((8, 8)).astype(np.float32)
    table[:, 7] = -100
    table[7] = np.nan
    aim = TableTarget(table=jnp.asarray(table))
    drafter = METHODS["ngram"](shortest=1) if drafting else PLAIN
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=12)
    prompts = [[1, 2, 1], [2, 7], [3, 4]]
    done = decode(aim, drafter, None, prompts, params)
    sound = decode(aim, drafter, None, [prompts[0], [1, 1], prompts[2]], params)
    assert (done[1].finish, done[1].tokens) == (Finish.ERROR, [])
    assert [done[i].tokens for i in (0, 2)] == [sound[i].tokens for i in (0, 2)]


def test_nan_in_one_rows_model_state_stays_in_its_pages():
    loop = Loop(target(), METHODS["ngram"](shortest=1), rows=2)
    for row in (0, 1):
        loop.admit(row, PROMPTS[row], wish(max_tokens=20))
    sick = jnp.array(loop.held[1])
    pages = loop.state.pages
    broken = dataclasses.replace(
        pages,
        k=tuple(a.at[sick].set(jnp.nan) for a in pages.k),
        v=tuple(a.at[sick].set(jnp.nan) for a in pages.v),
    )
    loop.state = dataclasses.replace(loop.state, pages=broken)
    emission, text = loop.round(), []
    assert emission.finish.tolist() == [Finish.RUNNING, Finish.ERROR]
    while True:
        text += emission.tokens[0, : emission.count[0]].tolist()
        if emission.finish[0]:
            break
        emission = loop.round()
    assert text == plain(0)[:20]


@pytest.mark.parametrize("page_size", [1, 4, pytest.param(16, marks=pytest.mark.slow)])
def test_page_size_and_place_do_not_change_the_text(page_size):
    for scatter in (1, 2):
        done = decode(
            target(),
            self_draft(3),
            target(),
            PROMPTS,
            page_size=page_size,
            scatter=scatter,
        )
        assert [d.tokens for d in done] == [plain(i)[:24] for i in range(4)]


def test_a_row_is_as_new_for_its_next_request():
    loop = Loop(target(), self_draft(4), target(), rows=2)
    for turn in range(6):
        i = turn % 4
        loop.admit(turn % 2, PROMPTS[i], wish(max_tokens=10))
        text, accepted = [], True
        for _ in range(10):
            emission = loop.round()
            row = turn % 2
            text += emission.tokens[row, : emission.count[row]].tolist()
            accepted &= bool(emission.accepted[row] == emission.drafted[row])
        assert text == plain(i)[:10]
        assert accepted


def test_a_requests_own_gamma_limits_what_it_is_offered():
    drafter, lines = counted()
    params = [wish(num_speculative_tokens=k) for k in range(4)]
    for k, done in enumerate(decode(counting(), drafter, lines, PROMPTS, params)):
        assert max(done.drafted) == k
        assert done.tokens == count_on(k, 24)


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_r69_more_rounds_compile_nothing(method):
    drafter = METHODS[method]()
    loop = Loop(target(), drafter, target() if method == "draft_model" else None)
    loop.admit(0, PROMPTS[0], wish(max_tokens=40, repetition_penalty=1.1))
    loop.round()
    with compilations() as compiled:
        loop.admit(1, PROMPTS[1], SamplingParams(temperature=0.7, top_p=0.9, seed=3))
        loop.admit(2, PROMPTS[2], wish(presence_penalty=1.0, min_tokens=3))
        for _ in range(5):
            loop.round([3, 2, 1, 0])
    assert compiled == []
