"""The engine under its server: what it compiles, when it waits, how it fails."""

import collections
import threading
import time

import jax
import pytest

from jspec.params import SamplingParams
from jspec.testing import compilations
from tests.serving import PROMPTS, greedy, settled

KINDS = {
    "plain": (3, 1, 0),
    "ngram": (3, 2, 0),
    "self": (3, 2, 2),
    "self 1": (1, 2, 1),
}
"""Batches, K values, and executables that let the drafter catch up after K = 0."""


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_one_executable_for_each_shape(servers, kind):
    batches, gammas, spans = KINDS[kind]
    found = servers[kind].metrics()
    assert found["executables"] == batches * gammas + spans + 2 + 2
    assert len(found["compile_seconds"]) == found["executables"]


@pytest.mark.parametrize("kind", ["plain", "ngram", "self", "near"])
def test_r69_a_mixed_workload_compiles_nothing(servers, kind):
    server = servers[kind]
    seeds = (None, 3)
    with compilations() as compiled:
        for batch in (1, 3, 4, 7):
            handles = []
            for i in range(batch):
                params = SamplingParams(
                    temperature=(0.0, 0.7, 1.3)[i % 3],
                    top_k=(0, 5)[i % 2],
                    top_p=(1.0, 0.8)[i % 2],
                    min_p=(0.0, 0.1)[i % 2],
                    seed=seeds[i % 2],
                    max_tokens=3 + 5 * i,
                    min_tokens=i,
                    stop="e" if i == 2 else (),
                    presence_penalty=float(i == 3),
                    logit_bias={5: 2.0} if i == 4 else None,
                    num_speculative_tokens=0 if kind != "plain" and i == 5 else None,
                )
                prompt = (PROMPTS[i % 6] * 9)[: 1 + 13 * i]
                handles.append(server.submit(prompt, params))
            handles[-1].abort()
            assert all(handle.result(60) for handle in handles)
        settled(server)
    assert compiled == []


def rounds(server):
    return collections.Counter(server.metrics()["rounds_by_num_speculative_tokens"])


@pytest.mark.parametrize("kind", ["ngram", "self"])
def test_requests_without_drafting_run_the_plain_executable(servers, kind):
    server = servers[kind]
    settled(server)
    before = rounds(server)
    server.generate(["ab", "cd"], greedy(9, num_speculative_tokens=0))
    settled(server)
    spent = rounds(server) - before
    assert set(spent) == {0}
    server.generate(["ab", "cd"], greedy(9))
    settled(server)
    assert set(rounds(server) - before) == {0, 4}


class Sealing:
    """Executables that return empty hulls, which only they and `open` can fill."""

    def __init__(self, inner, log):
        self.inner, self.log, self.hulls = inner, log, {}

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def seal(self, value):
        hull = object.__new__(type(value))
        self.hulls[id(hull)] = hull, value
        return hull

    def open(self, hull):
        return self.hulls[id(hull)][1]

    def admit(self, state, *args):
        return self.seal(self.inner.admit(self.open(state), *args))

    def bind_rules(self, state, *args):
        return self.seal(self.inner.bind_rules(self.open(state), *args))

    def prefill(self, state, *args):
        return self.seal(self.inner.prefill(self.open(state), *args))

    def round(self, state, *args):
        self.log.append("dispatch")
        state, emission = self.inner.round(self.open(state), *args)
        return self.seal(state), self.seal(emission)


def test_r70_the_host_reads_one_round_late_and_looks_at_nothing_else(
    servers, monkeypatch
):
    server = servers["ngram"]
    settled(server)
    engine, log, got = server._engine, [], []
    sealing, read, get = Sealing(engine.executables, log), engine._read, jax.device_get

    def note(plan, emission):
        log.append("read")
        return read(plan, sealing.open(emission))

    params = greedy(24, repetition_penalty=1.2, num_speculative_tokens=0)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_get", lambda x: (got.append(1), get(x))[1])
        patch.setattr(engine, "executables", sealing)
        patch.setattr(engine, "_state", sealing.seal(engine._state))
        patch.setattr(engine, "_read", note)
        done = server.generate(PROMPTS[1], params)[0]
        while engine._pending is not None:
            time.sleep(0.01)
        state = sealing.open(engine._state)
    engine._state = state
    assert log.count("dispatch") == log.count("read") == len(got)
    assert log[0] == "dispatch"
    assert log[-1] == "read"
    assert log[1:-1] == ["dispatch", "read"] * (len(log) // 2 - 1)
    assert done.token_ids == servers.plain(PROMPTS[1], params).token_ids


def test_what_is_cached_and_delivered_adds_up_in_the_metrics(servers):
    server = servers["self"]
    before = settled(server)
    done = server.generate(["sum of parts"] * 3, greedy(11))
    after = settled(server)

    def grown(name):
        return after[name] - before[name]

    assert grown("emitted_tokens") == 33
    assert grown("accepted_tokens") == sum(d.speculation.accepted for d in done)
    assert grown("drafted_tokens") == sum(d.speculation.drafted for d in done)
    assert grown("cached_prompt_tokens") == sum(d.usage.cached_tokens for d in done)
    prompts = sum(d.usage.prompt_tokens for d in done)
    assert grown("prompt_tokens") + grown("cached_prompt_tokens") == prompts - 3
    assert after["requests"]["length"] - before["requests"]["length"] == 3
    assert all(after[f"{what}_seconds"] > 0 for what in ("dispatch", "wait", "host"))


def test_a_reader_that_fails_ends_its_request_with_the_reason(servers, monkeypatch):
    server = servers["plain"]
    inner, calls = server.tokenizer, []

    class Broken:
        def __getattr__(self, name):
            return getattr(inner, name)

        def decode(self, ids, skip_special_tokens=True):
            calls.append(ids)
            if len(calls) > 12:
                raise OSError("no more text")
            return inner.decode(ids, skip_special_tokens)

    monkeypatch.setattr(server, "tokenizer", Broken())
    handle = server.submit("unlucky", greedy(60))
    monkeypatch.undo()
    neighbour = server.submit("lucky", greedy(60))
    done = handle.result(30)
    assert done.finish_reason == "error"
    assert "no more text" in done.error
    assert done.usage.completion_tokens == len(done.token_ids)
    assert neighbour.result(30).finish_reason == "length"
    settled(server)


@pytest.mark.parametrize("place", ["_read", "_dispatch"])
def test_after_a_fault_of_the_engine_nobody_waits_for_ever(servers, place, capfd):
    server = servers.new("single")
    inner, calls = getattr(server._engine, place), []

    def fails(*args):
        calls.append(args)
        if len(calls) > 4:
            raise RuntimeError("the device burns")
        return inner(*args)

    setattr(server._engine, place, fails)
    handles = [server.submit([i + 1, 2], greedy(30)) for i in range(3)]
    for handle in handles:
        done = handle.result(30)
        assert done.finish_reason == "error"
        assert done.error == "the engine failed: RuntimeError: the device burns"
        assert list(handle)[-1].finish_reason == "error"
        handle.abort()
    with pytest.raises(RuntimeError, match="the engine failed: RuntimeError: the dev"):
        server.submit("x", greedy(3))
    with pytest.raises(RuntimeError, match="the engine failed"):
        server.generate("x", greedy(3))
    assert server.metrics()["requests"]["error"] == 3
    server.close()
    server.close()
    assert "the device burns" in capfd.readouterr().err


def test_closing_finishes_what_was_submitted_and_refuses_the_rest(servers):
    with servers.new("single") as server:
        handles = [server.submit([i + 1], greedy(20)) for i in range(5)]
        server.close()
        assert all(len(handle.result(0).token_ids) == 20 for handle in handles)
        with pytest.raises(RuntimeError, match="the server is closed"):
            server.submit("x")
        for handle in handles:
            handle.abort()


def test_an_error_in_the_block_aborts_what_runs(servers):
    started = []
    with pytest.raises(KeyError), servers.new("single") as server:
        started += [server.submit([i + 1], greedy(60)) for i in range(40)]
        started[0].result(30)
        raise KeyError
    reasons = [handle.result(0).finish_reason for handle in started]
    assert reasons[0] == "length"
    assert reasons[-1] == "abort"


def test_whoever_submits_while_the_server_closes_is_answered_or_refused(servers):
    server = servers.new("single")
    answers = collections.Counter()

    def work(i):
        for turn in range(200):
            try:
                handle = server.submit([i + 1, turn + 1], greedy(1 + turn % 3))
            except RuntimeError:
                answers["refused"] += 1
                return
            answers[handle.result(30).finish_reason] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    server.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(answers) == {"refused", "length"}


def test_an_idle_engine_sees_every_request_that_came_before_it_was_closed(servers):
    server = servers.new("single")
    engine, gate, inner = server._engine, threading.Event(), type(server._engine).idle

    class Slow(type(engine)):
        @property
        def idle(self):
            found = inner.fget(self)
            if found and threading.current_thread().name == "jspec-engine":
                gate.wait(5)
            return found

    engine.__class__ = Slow
    time.sleep(1.2)
    handle = server.submit([1, 2], greedy(2))
    closing = threading.Thread(target=server.close)
    closing.start()
    time.sleep(0.1)
    gate.set()
    closing.join(10)
    assert handle.result(5).finish_reason == "length"


def test_a_small_pool_serves_all_in_turn(servers):
    pool = {"max_model_len": 64, "max_batch": 1, "kv_pages": 8}
    with servers.new("plain", **pool) as server:
        prompts = [[i + 1, 5, 6] for i in range(12)]
        done = server.generate(prompts, greedy(20))
        for prompt, one in zip(prompts, done, strict=True):
            assert one.token_ids == servers.plain(prompt, greedy(20)).token_ids
        with pytest.raises(ValueError, match="take 9 pages of 4 tokens; there are 8"):
            server.submit([1, 2, 3], greedy(30))
        settled(server)
