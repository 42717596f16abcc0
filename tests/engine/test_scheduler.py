"""First come, first served; results one round late; nobody gets another's tokens."""

import random

import pytest

from jspec.engine.pages import PagePool
from jspec.engine.request import Emitted, Request, Stage
from jspec.engine.scheduler import Scheduler
from jspec.params import SamplingParams


def scheduler(batch=4, pages=64, page_size=4, chunk=8, room=64, prefix_cache=True):
    return Scheduler(
        max_batch=batch,
        pool=PagePool(pages, page_size, prefix_cache),
        prefill_chunk=chunk,
        max_model_len=room,
    )


def request(number, prompt=5, reader=None, **params):
    if isinstance(prompt, int):
        prompt = tuple(1000 * number + i for i in range(prompt))
    return Request(number, prompt, SamplingParams(**params), reader)


def submit(plans, *requests):
    for one in requests:
        plans.submit(one)
    return requests


def gives(plan, *tokens, reason=None):
    return [Emitted(tokens=tokens, finish_reason=reason) for _ in plan.rows]


def test_a_short_prompt_is_read_and_decoded_in_one_step():
    plans = scheduler()
    (one,) = submit(plans, request(1, prompt=5))
    plan = plans.plan()
    assert [a.request for a in plan.admit] == [one]
    assert plan.prefill is not None
    assert (plan.prefill.start, plan.prefill.tokens) == (0, one.prompt_ids[:4])
    assert (plan.prefill.following, plan.prefill.last) == (one.prompt_ids[4], True)
    assert (plan.rows, plan.requests, plan.batch) == ((0,), (one,), 1)


def test_a_prompt_of_one_token_needs_no_reading():
    plans = scheduler()
    submit(plans, request(1, prompt=1), request(2, prompt=1))
    plan = plans.plan()
    assert plan.prefill is None
    assert plan.rows == (0, 1)


def test_a_long_prompt_is_read_in_pieces_while_the_others_decode():
    plans = scheduler(chunk=8)
    submit(plans, request(1, prompt=3), request(2, prompt=20))
    first = plans.plan()
    pieces = []
    for expected in ((0,), (0,), (0, 1)):
        plan = plans.plan()
        plans.commit(first, gives(first, 7))
        first = plan
        assert plan.rows == expected
        assert plan.prefill is not None
        pieces.append((plan.prefill.start, len(plan.prefill.tokens), plan.prefill.last))
    assert pieces == [(0, 8, False), (8, 8, False), (16, 3, True)]


@pytest.mark.parametrize("chunk", [1, 7, 8, 19, 20])
def test_pieces_are_the_prompt_without_its_last_token(chunk):
    plans = scheduler(chunk=chunk)
    (one,) = submit(plans, request(1, prompt=20))
    tokens = []
    while one.stage is not Stage.DECODE:
        plan = plans.plan()
        assert plan.prefill is not None and plan.prefill.start == len(tokens)
        tokens += plan.prefill.tokens
        assert plan.prefill.following == one.prompt_ids[len(tokens)]
        plans.commit(plan, gives(plan, 7))
    assert tuple(tokens) == one.prompt_ids[:-1]


def test_requests_are_admitted_in_order_and_never_overtaken():
    plans = scheduler(pages=8, page_size=4, room=32)
    small = request(1, prompt=8, max_tokens=8)
    big = request(2, prompt=8, max_tokens=16)
    later = request(3, prompt=1, max_tokens=1)
    submit(plans, small, big, later)
    first = plans.plan()
    second = plans.plan()
    assert second.admit == () and plans.waiting == 2
    plans.commit(first, gives(first, 7, reason="stop"))
    plans.commit(second, gives(second))
    assert [a.request for a in plans.plan().admit] == [big]
    assert [a.request for a in plans.plan().admit] == [later]


def test_no_more_requests_than_rows():
    plans = scheduler(batch=2)
    submit(plans, *(request(i, prompt=1) for i in range(5)))
    assert plans.plan().rows == (0, 1)
    assert (plans.waiting, plans.running, plans.free_rows) == (3, 2, 0)


def test_a_row_that_ended_is_free_when_its_last_round_was_read():
    plans = scheduler(batch=1)
    one, two = submit(plans, request(1, prompt=1), request(2, prompt=1))
    first, second = plans.plan(), plans.plan()
    assert plans.commit(first, gives(first, 7, reason="stop")) == [one]
    third = plans.plan()
    assert third.empty and plans.free_rows == 0 and plans.pool.used
    assert plans.commit(second, gives(second, 8, 9)) == []
    assert one.token_ids == [7]
    fourth = plans.plan()
    assert fourth.requests == (two,) and fourth.rows == (0,)


def test_late_results_of_a_reused_row_go_to_nobody():
    plans = scheduler(batch=1)
    one, two = submit(plans, request(1, prompt=1), request(2, prompt=1))
    first = plans.plan()
    plans.commit(first, gives(first, 7))
    plans.abort(1)
    second = plans.plan()
    assert second.drop == (0,) and second.requests == (two,)
    plans.commit(second, gives(second, 8))
    assert (one.token_ids, two.token_ids) == ([7], [8])


def test_an_abort_in_flight_delivers_nothing_more_and_frees_after_the_round():
    plans = scheduler(batch=1)
    (one,) = submit(plans, request(1, prompt=1))
    plan = plans.plan()
    plans.abort(1)
    assert (one.finish_reason, plans.free_rows) == ("abort", 0)
    assert plans.pool.used > 0
    plans.commit(plan, gives(plan, 7, 8))
    assert one.token_ids == []
    assert (plans.free_rows, plans.pool.used) == (1, 0)
    assert plans.plan().drop == (0,)
    assert plans.plan().drop == ()
    assert plans.idle


def test_an_abort_while_waiting_or_unknown():
    plans = scheduler(batch=1)
    one, two = submit(plans, request(1, prompt=1), request(2, prompt=1))
    plans.plan()
    plans.abort(2)
    plans.abort(99)
    assert (two.finish_reason, plans.waiting, one.finished) == ("abort", 0, False)


def test_an_abort_between_pieces_of_the_prompt_lets_the_next_be_read():
    plans = scheduler(chunk=4)
    _, two = submit(plans, request(1, prompt=20), request(2, prompt=5))
    first = plans.plan()
    plans.abort(1)
    second = plans.plan()
    assert second.prefill is not None and second.prefill.request is two
    plans.commit(first)
    assert plans.free_rows == 3


def test_a_fault_ends_a_request_with_its_reason():
    plans = scheduler()
    (one,) = submit(plans, request(1))
    plans.plan()
    plans.fail(1, "the device is gone")
    assert (one.finish_reason, one.error) == ("error", "the device is gone")


class StopsAt:
    def __init__(self, token):
        self.token = token

    def scan(self, token_ids, finish_reason):
        if self.token in token_ids:
            return list(token_ids).index(self.token) + 1
        return None

    def deliver(self, token_ids, finish_reason):
        pass


def test_a_stop_string_drops_a_row_that_still_lives_on_the_device():
    plans = scheduler()
    (one,) = submit(plans, request(1, prompt=1, reader=StopsAt(8)))
    first, second = plans.plan(), plans.plan()
    assert plans.commit(first, gives(first, 7, 8, 9)) == [one]
    assert plans.plan().drop == (0,)
    plans.commit(second, gives(second, 10))
    assert (one.token_ids, one.finish_reason) == ([7, 8], "stop")
    assert plans.pool.used == 0


def test_a_row_whose_budget_is_used_up_for_sure_is_not_named_again():
    plans = scheduler()
    submit(plans, request(1, prompt=1, max_tokens=2), request(2, prompt=1))
    assert plans.plan().rows == (0, 1)
    second = plans.plan()
    assert second.rows == (0, 1)
    assert plans.plan().rows == (1,)


def test_a_row_that_emitted_nothing_is_named_again():
    plans = scheduler()
    submit(plans, request(1, prompt=1, max_tokens=1))
    first = plans.plan()
    assert plans.plan().empty
    plans.commit(first, gives(first))
    assert plans.plan().rows == (0,)


def test_context_is_the_median_of_decoding_rows():
    plans = scheduler(chunk=64)
    submit(plans, *(request(i, prompt=n) for i, n in enumerate((3, 40, 9))))
    contexts = []
    for _ in range(4):
        plan = plans.plan()
        contexts.append(plan.context)
        plans.commit(plan, gives(plan, 7))
    assert contexts == [3, 4, 9, 10]
    assert scheduler().plan().context == 0


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (request(1, prompt=0), "the prompt is empty"),
        (request(1, prompt=64), "has 64 tokens; with max_model_len 64 .* most 63"),
        (request(1, prompt=40, max_tokens=64), "take 16 pages of 4 tokens; there are"),
    ],
)
def test_what_can_never_be_served_is_refused_with_numbers(one, why):
    plans = scheduler(pages=15)
    with pytest.raises(ValueError, match=why):
        plans.submit(one)
    assert plans.idle


def test_the_longest_prompt_gives_one_token():
    plans = scheduler()
    (one,) = submit(plans, request(1, prompt=63, max_tokens=9))
    while not one.finished:
        plan = plans.plan()
        plans.commit(plan, gives(plan, 7, 8))
    assert (one.token_ids, one.finish_reason) == ([7], "length")


def test_a_request_is_submitted_once():
    plans = scheduler()
    (one,) = submit(plans, request(1, prompt=1))
    with pytest.raises(ValueError, match="submitted before"):
        plans.submit(one)
    plans.plan()
    with pytest.raises(ValueError, match="submitted before"):
        plans.submit(request(1))


def test_plans_are_committed_in_order_with_all_their_results():
    plans = scheduler()
    submit(plans, request(1, prompt=1))
    first, second = plans.plan(), plans.plan()
    with pytest.raises(ValueError, match="in the order"):
        plans.commit(second, gives(second, 7))
    with pytest.raises(ValueError, match="1 rows and there are 0"):
        plans.commit(first)
    plans.commit(first, gives(first, 7))
    with pytest.raises(ValueError, match="in the order"):
        plans.commit(first, gives(first, 7))


@pytest.mark.parametrize("size", ["max_batch", "prefill_chunk", "max_model_len"])
def test_sizes_below_the_least_are_refused(size):
    sizes = {"max_batch": 1, "prefill_chunk": 1, "max_model_len": 2} | {size: 0}
    with pytest.raises(ValueError, match=f"{size} must be at least"):
        Scheduler(pool=PagePool(4, 4), **sizes)


def test_equal_prompts_that_wait_together_are_read_once():
    plans = scheduler(chunk=64)
    prompt = tuple(range(20))
    requests = submit(plans, *(request(i, prompt=prompt) for i in range(4)))
    pending = None
    for _ in range(4):
        plan = plans.plan()
        if pending is not None:
            plans.commit(pending, gives(pending, 7))
        pending = plan
    assert [one.cached_tokens for one in requests] == [0, 16, 16, 16]


def test_a_second_turn_finds_the_first_ones_text():
    plans = scheduler(chunk=64)
    (one,) = submit(plans, request(1, prompt=6, max_tokens=7))
    while not plans.idle:
        plan = plans.plan()
        if not plan.empty:
            plans.commit(plan, gives(plan, 1, 2, 3))
    assert len(one.text) == 13
    (two,) = submit(plans, request(2, prompt=(*one.text, 50, 51)))
    plan = plans.plan()
    assert two.cached_tokens == 12
    assert plan.prefill is not None and plan.prefill.start == 12


def test_the_newest_token_is_not_in_the_cache():
    plans = scheduler(page_size=4)
    submit(plans, request(1, prompt=(50,)))
    plan = plans.plan()
    plans.commit(plan, gives(plan, 51, 52, 53))
    (two,) = submit(plans, request(2, prompt=(50, 51, 52, 53, 54)))
    plan = plans.plan()
    assert two.cached_tokens == 0
    plans.commit(plan, gives(plan, 54))
    (three,) = submit(plans, request(3, prompt=(50, 51, 52, 53, 54)))
    plans.plan()
    assert three.cached_tokens == 4


def test_other_adapters_share_nothing():
    plans = scheduler(chunk=64)
    prompt = tuple(range(20))
    names = ("a", "b", None, "a")
    requests = submit(
        plans, *(request(i, prompt=prompt, lora=n) for i, n in enumerate(names))
    )
    for _ in requests:
        plan = plans.plan()
        plans.commit(plan, gives(plan, 7))
    assert [one.cached_tokens for one in requests] == [0, 0, 0, 16]


class Device:
    """Rows and pages as a device has them, run in order of dispatch."""

    def __init__(self, size, rng):
        self.size, self.rng, self.rows, self.memory = size, rng, {}, {}

    def slot(self, row, position):
        table = self.rows[row]["table"]
        page = position // self.size
        return (table[page], position % self.size) if page < len(table) else None

    def write(self, row, start, text):
        for position in range(start, len(text)):
            if (slot := self.slot(row, position)) is not None:
                self.memory[slot] = tuple(text[: position + 1])

    def check(self, row, text):
        for position in range(len(text)):
            slot = self.slot(row, position)
            assert slot is not None
            assert self.memory[slot] == tuple(text[: position + 1])

    def dispatch(self, plan, script):
        for row in plan.drop:
            self.rows[row]["live"] = False
        for one in plan.admit:
            self.rows[one.row] = {
                "table": list(one.grant.pages),
                "text": list(one.request.prompt_ids),
                "left": one.request.limit,
                "end": script[one.request.id],
                "live": True,
                "made": 0,
            }
        if (piece := plan.prefill) is not None:
            self.check(piece.row, piece.request.prompt_ids[: piece.start])
            self.write(
                piece.row,
                piece.start,
                piece.request.prompt_ids[: piece.start + len(piece.tokens)],
            )
        assert list(plan.rows) == sorted(set(plan.rows))
        named = zip(plan.rows, plan.requests, strict=True)
        return [self.decode(row, one.id) for row, one in named]

    def decode(self, row, number):
        state = self.rows[row]
        if not state["live"]:
            return Emitted(tokens=())
        self.check(row, state["text"][:-1])
        gamma = 3
        tokens = []
        for _ in range(self.rng.randint(1, gamma + 1)):
            tokens.append(number * 1000 + state["made"] + len(tokens))
        accepted = len(tokens) - 1
        made, reason = state["made"] + len(tokens), None
        if made >= state["left"]:
            del tokens[len(tokens) - (made - state["left"]) :]
            reason = "length"
        if number * 1000 + state["end"] in tokens:
            del tokens[state["end"] - state["made"] + 1 :]
            reason = "stop"
        start = len(state["text"]) - 1
        garbage = [-1] * gamma
        self.write(row, start, state["text"] + tokens + garbage)
        state["text"] += tokens
        state["made"] += len(tokens)
        state["live"] = reason is None
        return Emitted(
            tokens=tokens, drafted=gamma, accepted=accepted, finish_reason=reason
        )


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_delivers_each_text_to_its_owner_and_leaves_nothing(seed):
    rng = random.Random(seed)
    size = rng.choice([1, 3, 4])
    plans = scheduler(
        batch=rng.randint(1, 5),
        pages=-(-40 // size) * rng.randint(1, 3),
        page_size=size,
        chunk=rng.choice([1, 4, 16]),
        room=40,
        prefix_cache=rng.random() < 0.7,
    )
    device, script, requests, waiting, pending = Device(size, rng), {}, [], [], None
    for number in range(1, 40):
        prompt = tuple(rng.randint(0, 1) for _ in range(rng.randint(1, 30)))
        reader = StopsAt(number * 1000 + 5) if rng.random() < 0.3 else None
        one = request(number, prompt, reader, max_tokens=rng.randint(1, 20))
        script[number] = rng.choice([3, 8, 1000])
        waiting.append(one)
    admitted = []
    for _ in range(4000):
        if waiting and rng.random() < 0.4:
            requests.append(waiting.pop(0))
            plans.submit(requests[-1])
        if requests and rng.random() < 0.03:
            plans.abort(rng.choice(requests).id)
        plan = plans.plan()
        admitted += [one.request.id for one in plan.admit]
        results = device.dispatch(plan, script)
        if pending is not None:
            plans.commit(*pending)
        pending = None if plan.empty else (plan, results)
        if plans.idle and not waiting:
            break
    assert plans.idle and not waiting
    assert admitted == sorted(admitted)
    assert (plans.pool.used, plans.free_rows) == (0, plans.max_batch)
    for one in requests:
        expected = [one.id * 1000 + i for i in range(one.delivered)]
        assert one.token_ids == expected
        assert one.finished and one.delivered <= one.limit
        if one.finish_reason == "length":
            assert one.delivered == one.limit
        if one.finish_reason == "stop":
            ends = {script[one.id] + 1, 6 if one.reader is not None else -1}
            assert one.delivered in ends
        counts = one.speculation
        assert counts.accepted <= one.usage.completion_tokens
        assert counts.accepted <= counts.drafted
        assert counts.tau * counts.rounds == pytest.approx(one.delivered)
    assert {"length", "stop"} <= {one.finish_reason for one in requests}
