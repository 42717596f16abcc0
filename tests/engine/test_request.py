"""A request counts what was delivered, and nothing else."""

import pytest

from jspec.engine.request import Emitted, Request, Stage
from jspec.params import SamplingParams


class Recorder:
    def __init__(self, keep=lambda tokens: None):
        self.keep, self.calls, self.seen = keep, [], []
        self.request: Request | None = None
        self.delivered_then = 0

    def scan(self, token_ids, finish_reason):
        self.seen.append((list(token_ids), finish_reason))
        return self.keep(token_ids)

    def deliver(self, token_ids, finish_reason):
        self.calls.append((list(token_ids), finish_reason))
        if self.request is not None:
            self.delivered_then = self.request.usage.completion_tokens


def request(reader=None, **params):
    return Request(0, (1, 2, 3), SamplingParams(**params), reader)


def full(tokens, gamma=4, reason=None):
    return Emitted(
        tokens=tokens,
        drafted=gamma,
        accepted=len(tokens) - 1,
        finish_reason=reason,
    )


def test_delivered_tokens_are_the_usage():
    reader = Recorder()
    one = request(reader)
    one.take(full([5, 6]))
    one.take(full([7]))
    assert one.token_ids == [5, 6, 7]
    assert one.text == [1, 2, 3, 5, 6, 7]
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (3, 3)
    assert reader.calls == [([5, 6], None), ([7], None)]
    assert (one.written, one.remaining, one.finished) == (5, 125, False)


@pytest.mark.parametrize("limit", range(1, 11))
def test_the_limit_cuts_a_block_and_all_its_counts(limit):
    one = request(max_tokens=limit)
    while not one.finished:
        one.take(full([9] * 5))
    counts = one.speculation
    assert one.usage.completion_tokens == len(one.token_ids) == limit
    assert one.finish_reason == "length"
    assert counts.rounds == -(-limit // 5)
    assert counts.tau == limit / counts.rounds
    assert counts.drafted == counts.accepted == limit - limit // 5
    assert sum(counts.accepted_per_position) == counts.accepted


@pytest.mark.parametrize("place", range(1, 6))
def test_a_stop_token_within_a_block_ends_all_counts_there(place):
    one = request()
    block = Emitted(
        tokens=[9] * place, drafted=4, accepted=min(place, 4), finish_reason="stop"
    )
    uncut = Emitted(tokens=[9] * place, drafted=4, accepted=4, finish_reason="stop")
    other = request()
    one.take(block)
    other.take(uncut)
    assert one.speculation == other.speculation
    assert one.speculation.accepted == one.speculation.drafted == min(place, 4)
    assert one.speculation.tau == place
    assert (one.finish_reason, one.stage) == ("stop", Stage.FINISHED)


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_stop_string_ends_ids_and_counts_at_its_token(kept):
    reader = Recorder(lambda tokens: kept)
    one = request(reader)
    one.take(full([5, 6, 7, 8, 9]))
    assert one.token_ids == [5, 6, 7, 8, 9][:kept]
    assert reader.calls == [(one.token_ids, "stop")]
    assert one.speculation.accepted == one.speculation.drafted == min(kept, 4)
    assert one.speculation.tau == kept == one.usage.completion_tokens


def test_a_stop_string_in_the_last_tokens_is_a_stop():
    one = request(Recorder(lambda tokens: 2), max_tokens=2)
    one.take(full([5, 6]))
    assert one.finish_reason == "stop"


def test_refused_drafts_count_by_position():
    one = request()
    for accepted in (0, 2, 4, 1):
        one.take(Emitted(tokens=[9] * (accepted + 1), drafted=4, accepted=accepted))
    counts = one.speculation
    assert counts.drafted_per_position == (4, 4, 4, 4)
    assert counts.accepted_per_position == (3, 2, 1, 1)
    assert (counts.drafted, counts.accepted, counts.rounds) == (16, 7, 4)
    assert counts.tau == 11 / 4


def test_rounds_may_draft_differently_many():
    one = request()
    for drafted, accepted in ((0, 0), (1, 1), (3, 1)):
        one.take(
            Emitted(tokens=[9] * (accepted + 1), drafted=drafted, accepted=accepted)
        )
    assert one.speculation.drafted_per_position == (2, 1, 1)
    assert one.speculation.accepted_per_position == (2, 0, 0)


def test_a_round_without_tokens_is_no_round():
    one = request()
    one.take(Emitted(tokens=[]))
    assert one.speculation.rounds == 0
    assert one.speculation.tau == 0


def test_nothing_counts_after_the_end():
    reader = Recorder()
    one = request(reader)
    one.take(full([5], reason="stop"))
    before = (one.usage, one.speculation, list(reader.calls))
    assert one.take(full([6, 7])) == 0
    one.end("abort")
    assert before == (one.usage, one.speculation, reader.calls)
    assert one.finish_reason == "stop"


def test_counts_include_what_is_being_delivered():
    reader = Recorder()
    reader.request = one = request(reader)
    one.take(full([5, 6]))
    assert reader.delivered_then == 2


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_the_host_may_end_a_request(reason):
    reader = Recorder()
    one = request(reader)
    one.take(full([5]))
    one.end(reason, "why")
    assert reader.calls == [([5], None), ([], reason)]
    assert reader.seen[-1] == ([], reason)
    assert (one.finish_reason, one.error, one.finished) == (reason, "why", True)


def test_a_reader_that_fails_ends_its_request_alone():
    def fail(tokens):
        raise RuntimeError("no such token")

    reader = Recorder(fail)
    one = request(reader)
    assert one.take(full([5])) == 0
    assert one.finish_reason == "error"
    assert "no such token" in (one.error or "")
    assert reader.calls == [([], "error")]
