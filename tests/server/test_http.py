"""What clients of the HTTP server see: shapes, streams, refusals, ends."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import jspec
from jspec import cli
from jspec.server import http_requests, http_run
from jspec.server.http import Service
from jspec.server.http_requests import INERT, REFUSED, Refusal, parse
from jspec.server.stream import TextStream
from tests.serving import EOS, PROMPTS, greedy, settled

GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 24}
MANY = GREEDY | {"prompt": "ab", "n": 64, "max_tokens": 100}


@contextlib.contextmanager
def serving(service):
    """A client of a service that really listens."""
    config = uvicorn.Config(service.app, log_config=None, lifespan="off", ws="none")
    front = uvicorn.Server(config)
    listener = http_run.bind("127.0.0.1", 0)
    thread = threading.Thread(target=front.run, kwargs={"sockets": [listener]})
    thread.start()
    while not front.started:
        time.sleep(0.005)
    host, port = listener.getsockname()
    try:
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as client:
            yield client
    finally:
        front.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def server(servers):
    return servers["ngram"]


@pytest.fixture(scope="module")
def client(server):
    with serving(Service(server, name="tiny")) as client:
        yield client


@pytest.fixture
def unchecked(monkeypatch):
    """`SamplingParams` as users have it: tests check the types of its arguments."""
    path = Path(jspec.__file__).parent / "params.py"
    spec = importlib.util.spec_from_file_location("params_as_users_have_it", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def made(**given):
        module.SamplingParams(**given)
        return jspec.SamplingParams(**given)

    monkeypatch.setattr(http_requests, "SamplingParams", made)


def complete(client, **body):
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(client, **body):
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(client, path, **body):
    """The events of a stream, read as httpx splits lines, without the last."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refused(client, status, path="/v1/completions", **body):
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def aborted(server):
    return server.metrics()["requests"].get("abort", 0)


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def test_a_completion_is_what_the_server_generates_with_its_counts(client, server):
    body = complete(client, prompt=PROMPTS[0], return_token_ids=True, **GREEDY)
    [done] = server.generate(PROMPTS[0], greedy(24))
    [choice] = body["choices"]
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert choice["text"] == done.text
    assert choice["token_ids"] == done.token_ids
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == len(done.token_ids) == 24
    assert usage["prompt_tokens"] == len(server.tokenizer.encode(PROMPTS[0]))
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24
    drafting = body["speculation"]
    assert drafting == choice["speculation"]
    assert drafting == json.loads(json.dumps(dataclasses.asdict(done.speculation)))
    assert drafting["tau"] > 1
    assert drafting["accepted"] == sum(drafting["accepted_per_position"]) > 0


def test_a_prompt_that_was_read_before_is_counted_as_cached(client):
    prompt = "cached prompts are read once, and no more than that"
    first = complete(client, prompt=prompt, **GREEDY)["usage"]
    again = complete(client, prompt=prompt, **GREEDY)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_prompts_may_be_texts_ids_or_lists_of_them(client, server):
    ids = [server.tokenizer.encode(prompt) for prompt in PROMPTS[:3]]
    texts = [server.generate(prompt, greedy(24))[0].text for prompt in PROMPTS[:3]]
    for prompt, expected in (
        (PROMPTS[0], texts[:1]),
        (ids[1], texts[1:2]),
        (list(PROMPTS[:3]), texts),
        (ids, texts),
    ):
        body = complete(client, prompt=prompt, **GREEDY)
        assert [choice["text"] for choice in body["choices"]] == expected
        assert [choice["index"] for choice in body["choices"]] == [
            *range(len(expected))
        ]


def test_n_answers_have_seeds_of_their_own_and_the_prompt_counts_once(client, server):
    body = complete(client, prompt=["ab", "cde"], n=3, seed=7, max_tokens=12)
    params = jspec.SamplingParams(n=3, seed=7, max_tokens=12)
    expected = server.generate(["ab", "cde"], params)
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [done.text for done in expected]
    assert len(set(texts)) > 1
    assert body["usage"]["prompt_tokens"] == 2 + 3
    emitted = sum(done.usage.completion_tokens for done in expected)
    assert body["usage"]["completion_tokens"] == emitted
    rounds = sum(done.speculation.rounds for done in expected)
    assert body["speculation"]["rounds"] == rounds
    assert body["speculation"]["tau"] == pytest.approx(emitted / rounds)


def test_a_chat_is_the_templates_text_and_parts_are_lines(client, server):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": []},
        {"role": "user", "content": "q"},
    ]
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "q"},
    ]
    body = chat(client, messages=messages, model="tiny", **GREEDY)
    [done] = server.generate([plain], greedy(24))
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == done.text
    assert body["usage"]["prompt_tokens"] == done.usage.prompt_tokens


def test_defaults_are_openais(client, server):
    body = complete(client, prompt="ab", ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 16
    body = chat(client, messages=[{"role": "user", "content": "x"}], ignore_eos=True)
    assert body["usage"]["total_tokens"] == server.settings["max_model_len"]
    assert parse(b'{"prompt": "x"}', chat=False, room=9).params == (
        jspec.SamplingParams(max_tokens=16)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.3, "seed": 5, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"seed": 1, "presence_penalty": 1, "frequency_penalty": 0.5, "temperature": 1},
        {"repetition_penalty": 1.4, "logit_bias": {"70": 3}},
        {"num_speculative_tokens": 1},
    ],
)
def test_parameters_mean_what_they_mean_in_python(client, server, changes):
    asked = GREEDY | changes
    own = dict(asked)
    if "logit_bias" in own:
        own["logit_bias"] = {70: 3}
    [done] = server.generate("hello there", jspec.SamplingParams(**own))
    body = complete(client, prompt="hello there", **asked)
    assert body["choices"][0]["text"] == done.text
    rounds = body["speculation"]["rounds"]
    assert rounds == done.speculation.rounds


def test_r67_a_stream_is_the_text_and_its_usage_that_of_the_whole(client):
    for prompt in PROMPTS:
        whole = complete(client, prompt=prompt, return_token_ids=True, **GREEDY)
        stream = events(
            client,
            "/v1/completions",
            prompt=prompt,
            return_token_ids=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
        *pieces, last = stream
        text = "".join(piece["choices"][0]["text"] for piece in pieces)
        ids = [i for piece in pieces for i in piece["choices"][0]["token_ids"]]
        reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
        assert text == whole["choices"][0]["text"]
        assert ids == whole["choices"][0]["token_ids"]
        assert reasons == [None] * (len(pieces) - 1) + ["length"]
        assert all(piece["usage"] is None for piece in pieces)
        assert last["choices"] == []
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last["usage"][name] == whole["usage"][name]
        assert last["speculation"] == whole["speculation"]
        assert len({piece["id"] for piece in stream}) == 1


@pytest.mark.parametrize("odd", ["é", '"\\', "\u2028"])
def test_r67_characters_of_several_tokens_arrive_whole(client, server, odd):
    ids = server.tokenizer.encode(odd)
    asked = {
        "prompt": "q",
        "logit_bias": {str(i): 100 for i in ids},
        "max_tokens": 100,
        "ignore_eos": True,
    }
    for seed in range(40):
        text = complete(client, seed=seed, **asked)["choices"][0]["text"]
        if odd in text:
            break
    assert odd in text
    stream = events(client, "/v1/completions", seed=seed, **asked)
    assert "".join(one["choices"][0]["text"] for one in stream) == text


def test_a_chat_stream_begins_each_answer_with_its_role_and_ends_it_once(client):
    asked = GREEDY | {
        "messages": [{"role": "user", "content": "tell"}],
        "n": 3,
        "temperature": 1,
        "seed": 3,
    }
    whole = chat(client, **asked)
    stream = events(client, "/v1/chat/completions", **asked)
    for index in range(3):
        [*pieces] = [
            event["choices"][0]
            for event in stream
            if event["choices"][0]["index"] == index
        ]
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(piece["delta"].get("content", "") for piece in pieces)
        assert text == whole["choices"][index]["message"]["content"]
        assert pieces[-1]["delta"] == {}
        reasons = [piece["finish_reason"] for piece in pieces]
        assert reasons == [None] * (len(pieces) - 1) + ["length"]
        speculation = whole["choices"][index]["speculation"]
        assert pieces[-1]["speculation"] == speculation
    assert {event["object"] for event in stream} == {"chat.completion.chunk"}
    assert not any("usage" in event for event in stream)


def test_r05_r09_a_stop_string_ends_text_ids_stream_and_counts_together(client, server):
    for prompt in PROMPTS:
        [free] = server.generate(prompt, greedy(24))
        stop = free.text[4:6]
        own = server.generate(prompt, greedy(24, stop=stop))[0]
        assert own.finish_reason == "stop"
        asked = GREEDY | {"prompt": prompt, "stop": [stop], "return_token_ids": True}
        body = complete(client, **asked)
        assert body["choices"][0]["text"] == free.text[: free.text.index(stop)]
        assert body["choices"][0]["token_ids"] == own.token_ids
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == len(own.token_ids)
        stream = events(client, "/v1/completions", **asked)
        pieces = [event["choices"][0] for event in stream]
        assert "".join(piece["text"] for piece in pieces) == own.text
        assert [i for p in pieces for i in p["token_ids"]] == own.token_ids
        assert pieces[-1]["finish_reason"] == "stop"


def test_stop_tokens_end_a_text_and_min_tokens_and_ignore_eos_delay_it(client):
    free = complete(client, prompt="ab", return_token_ids=True, **GREEDY)
    token = free["choices"][0]["token_ids"][3]
    place = free["choices"][0]["token_ids"].index(token)
    asked = GREEDY | {"prompt": "ab", "stop_token_ids": [token]}
    body = complete(client, **asked)
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == place + 1
    late = complete(client, min_tokens=10, **asked)
    assert late["usage"]["completion_tokens"] > 10
    eager = {"prompt": "ab", "logit_bias": {str(EOS): 100}, "max_tokens": 9}
    assert complete(client, **eager)["usage"]["completion_tokens"] == 1
    ignoring = complete(client, ignore_eos=True, **eager)
    assert ignoring["usage"]["completion_tokens"] == 9


def test_r34_every_unsupported_field_is_named_in_one_refusal(client):
    error = refused(
        client, 400, prompt="x", echo=True, best_of=3, suffix="y", logprobs=2, frob=1
    )
    for name in ("echo", "best_of", "suffix", "logprobs", "frob"):
        assert name in error["message"]
    assert error["param"] == "echo"
    error = refused(
        client,
        400,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "x"}],
        tools=[{"type": "function"}],
        response_format={"type": "json_object"},
        logprobs=True,
        prompt="x",
    )
    for name in ("tools", "response_format", "logprobs", "prompt"):
        assert name in error["message"]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_field_is_taken_only_with_a_value_that_asks_for_nothing(name):
    for idle in (None, *REFUSED[name]):
        parse(json.dumps({"prompt": "x", name: idle}).encode(), chat=False, room=9)
    for value in ("something", 7, {"a": 1}, [1]):
        body = json.dumps({"prompt": "x", name: value}).encode()
        with pytest.raises(Refusal, match=rf"\b{name}\b"):
            parse(body, chat=False, room=9)


def test_fields_without_effect_are_taken():
    body = {"prompt": "x"} | dict.fromkeys(INERT, "anything")
    assert parse(json.dumps(body).encode(), chat=False, room=9) == (
        parse(b'{"prompt": "x"}', chat=False, room=9)
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b"\xff\xfe{", "JSON|UTF-8"),
        (b"[" * 100_000, "too deeply"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN"),
        (b'{"prompt": "x", "prompt": "y"}', "twice"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"{}", "^prompt must"),
        (b'{"prompt": []}', "^prompt must"),
        (b'{"prompt": [[1], "x"]}', "^prompt must"),
        (b'{"prompt": [true]}', "^prompt must"),
        (b'{"prompt": {"a": 1}}', "^prompt must"),
        (b'{"prompt": "x", "stream": 1}', "^stream must"),
        (b'{"prompt": "x", "model": 1}', "^model must"),
        (b'{"prompt": "x", "max_tokens": 0}', "^max_tokens must"),
        (b'{"prompt": "x", "max_tokens": 1.5}', "^max_tokens must"),
        (b'{"prompt": "x", "max_tokens": 3, "max_completion_tokens": 4}', "differ"),
        (b'{"prompt": "x", "min_tokens": 17}', "^min_tokens must"),
        (b'{"prompt": "x", "temperature": "1"}', "^temperature must"),
        (b'{"prompt": "x", "temperature": true}', "^temperature must"),
        (b'{"prompt": "x", "n": 257}', "257"),
        (b'{"prompt": ["x", "y"], "n": 200}', "200"),
        (b'{"prompt": "x", "stop": [""]}', "^stop must"),
        (b'{"prompt": "x", "logit_bias": {"a": 1}}', "^logit_bias must"),
        (b'{"prompt": "x", "logit_bias": {"1": 101}}', "^logit_bias must"),
        (b'{"prompt": "x", "stream_options": {}}', "needs stream"),
        (
            b'{"prompt": "x", "stream": true, "stream_options": {"a": 1}}',
            "does not support a of stream_options",
        ),
        (json.dumps({"prompt": "x", "stop": ["a"] * 65}).encode(), "at most 64"),
    ],
)
def test_a_wrong_body_is_refused_with_one_sentence(body, sentence, unchecked):
    with pytest.raises(Refusal, match=sentence) as refusal:
        parse(body, chat=False, room=99)
    assert refusal.value.status == 400
    assert len(refusal.value.message) < 500


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (None, "^messages must"),
        ([], "^messages must"),
        (["x"], r"messages\[0\] must"),
        ([{"role": "tool", "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\].content"),
        ([{"role": "user", "content": []}], r"messages\[0\].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "without text"),
        ([{"role": "user", "content": "x", "name": "bob"}], "name"),
        ([{"role": "assistant", "content": "x", "tool_calls": [1]}], "tool_calls"),
    ],
)
def test_wrong_messages_are_refused_with_their_place(messages, sentence):
    with pytest.raises(Refusal, match=sentence):
        parse(json.dumps({"messages": messages}).encode(), chat=True, room=99)


def test_what_the_engine_cannot_serve_is_the_callers_error(client, server):
    before = settled(server)["requests"]
    assert "at most 127" in refused(client, 400, prompt="x" * 500)["message"]
    assert "not a token" in refused(client, 400, prompt=[100_000])["message"]
    assert "empty" in refused(client, 400, prompt="")["message"]
    message = refused(client, 400, prompt="x", num_speculative_tokens=9)["message"]
    assert "exceeds" in message
    error = refused(client, 400, prompt=["fine", "x" * 500], max_tokens=100)
    assert "at most 127" in error["message"]
    after = settled(server)["requests"]
    assert after.get("length", 0) == before.get("length", 0)


def test_models_are_known_by_name(client, server):
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert client.get("/v1/models/tiny").json() == model
    assert client.get("/v1/models/a/b").status_code == 404
    error = refused(client, 404, prompt="x", model="gpt-9")
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"]
    complete(client, prompt="x", model=server.settings["target"], max_tokens=1)


def test_unknown_paths_and_wrong_verbs_are_errors_of_the_same_shape(client):
    assert refused(client, 404, "/v1/embeddings")["type"] == "not_found_error"
    response = client.get("/v1/completions")
    assert response.status_code == 405
    assert "GET /v1/completions" in response.json()["error"]["message"]


def test_metrics_are_the_servers_counters_and_how_long_readers_waited(client, server):
    complete(client, prompt="count me", **GREEDY)
    own = settled(server)
    families = {
        family.name: {
            (sample.name, *sample.labels.values()): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(client.get("/metrics").text)
    }
    for name in ("rounds", "emitted_tokens", "drafted_tokens", "accepted_tokens"):
        shown = families[f"jspec_{name}"][f"jspec_{name}_total",]
        assert shown == own[name] > 0
    ended = families["jspec_requests"]["jspec_requests_total", "length"]
    assert ended == own["requests"]["length"]
    for name in ("time_to_first_token", "time_per_output_token", "request"):
        name = f"jspec_{name}_seconds"
        assert families[name][f"{name}_count",] > 0
        assert families[name][f"{name}_sum",] > 0
    assert families["jspec_http_responses"][
        "jspec_http_responses_total", "/v1/completions", "200"
    ]


def test_many_clients_at_once_get_each_their_own(client, server):
    prompts = [f"{prompt}{i}" for i, prompt in enumerate(PROMPTS * 3)]
    expected = [done.text for done in server.generate(prompts, greedy(24))]

    def ask(i):
        if i % 2:
            stream = events(client, "/v1/completions", prompt=prompts[i], **GREEDY)
            return "".join(event["choices"][0]["text"] for event in stream)
        return complete(client, prompt=prompts[i], **GREEDY)["choices"][0]["text"]

    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, range(len(prompts)))) == expected


def test_a_client_that_leaves_a_stream_frees_its_pages(client, server):
    before = aborted(server)
    with client.stream(
        "POST", "/v1/completions", json=MANY | {"stream": True}
    ) as response:
        next(response.iter_lines())
    wait_for(lambda: aborted(server) > before)
    settled(server)


def test_a_client_that_does_not_wait_for_its_answer_frees_its_pages(client, server):
    before = aborted(server)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=MANY, timeout=0.1)
    wait_for(lambda: aborted(server) > before)
    settled(server)


def test_long_prompts_are_encoded_beside_the_loop_and_a_leaver_is_noticed(
    client, server, monkeypatch
):
    encode, begun, go_on = server.tokenizer.encode, threading.Event(), threading.Event()

    def slow(text, add_special_tokens=True):
        begun.set()
        assert go_on.wait(20)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(server.tokenizer, "encode", slow)
    before = aborted(server)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        leaver = pool.submit(client.post, "/v1/completions", json=MANY, timeout=0.5)
        assert begun.wait(20)
        assert client.get("/health", timeout=5).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            leaver.result()
        time.sleep(0.1)
        go_on.set()
    wait_for(lambda: aborted(server) > before)
    settled(server)


def test_a_fault_of_ours_is_said_in_answers_and_in_streams(client, monkeypatch):
    def fail(self, token_ids, finish_reason=None):
        raise ArithmeticError("broken")

    monkeypatch.setattr(TextStream, "push", fail)
    error = refused(client, 500, prompt="x", max_tokens=2)
    assert "broken" in error["message"]
    assert error["type"] == "server_error"
    [said] = events(client, "/v1/completions", prompt="x", max_tokens=2)
    assert "broken" in said["error"]["message"]
    monkeypatch.undo()
    complete(client, prompt="x", max_tokens=2)


def test_a_bug_is_an_error_of_openais_shape(server, monkeypatch):
    service = Service(server)
    monkeypatch.setattr(service, "_submit", None)
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)

    async def ask():
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as own:
            return await own.post("/v1/completions", json={"prompt": "x"})

    response = asyncio.run(ask())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


def test_a_failed_engine_is_not_healthy(client, server, monkeypatch):
    assert client.get("/health").json() == {"status": "ok"}
    monkeypatch.setattr(server, "_failed", "ValueError: lost")
    response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"] == "ValueError: lost"
    assert "lost" in refused(client, 503, prompt="x")["message"]


def test_bodies_and_answers_have_limits(server):
    with serving(Service(server, most_bytes=1000, most_live=2)) as client:
        assert refused(client, 413, prompt="x" * 1000)["code"] == "body_too_large"
        pieces = iter([b'{"prompt": "', b"x" * 1000, b'"}'])
        response = client.post("/v1/completions", content=pieces)
        assert response.status_code == 413
        assert refused(client, 503, prompt="x", n=3)["code"] == "overloaded"
        complete(client, prompt="x", n=2, max_tokens=1)
        complete(client, prompt="x", n=2, max_tokens=1)


def test_a_key_is_asked_for_where_there_is_one(server):
    with serving(Service(server, api_key="s3cret")) as client:
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "é"}):
            raw = {name: value.encode() for name, value in headers.items()}
            response = client.get("/v1/models", headers=raw)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        right = {"authorization": "Bearer s3cret"}
        assert client.get("/v1/models", headers=right).status_code == 200
        assert client.get("/health").status_code == 200


def test_a_signal_ends_the_server_in_bounded_time_and_tells_its_readers(server):
    service = Service(server)
    listener = http_run.bind("127.0.0.1", 0)
    host, port = listener.getsockname()
    said = []

    def read():
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as own:
            body = MANY | {"stream": True, "n": 256}
            with own.stream("POST", "/v1/completions", json=body) as response:
                for line in response.iter_lines():
                    if not said:
                        os.kill(os.getpid(), signal.SIGTERM)
                    said.append(line)

    reader = threading.Thread(target=read)
    kept = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        http_run.run(service, listener, grace=0.05, ready=reader.start)
        ours = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, kept)
    reader.join(10)
    assert not reader.is_alive()
    assert ours.__name__ == "<lambda>"
    said = [line for line in said if line]
    assert "shuts down" in said[-2]
    assert said[-1] == "data: [DONE]"
    settled(server)
    with pytest.raises(OSError), socket.create_connection((host, port), timeout=1):
        pass


def test_a_port_that_is_taken_is_a_sentence():
    with http_run.bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1 port {port}"):
            http_run.bind("127.0.0.1", port)
    for host, port in (("127.0.0.1", 70_000), ("127.0.0.1", -1), ("300.1.1.1", 0)):
        with pytest.raises(ValueError, match=f"cannot listen on {host} port {port}"):
            http_run.bind(host, port)


@pytest.fixture
def command(server, monkeypatch):
    """Runs `jspec serve` on the shared server; what was given to what it calls."""
    given = {}

    def serve(target, **options):
        given.update(options, target=target)
        return contextlib.nullcontext(server)

    def run(service, listener, *, grace, ready):
        given.update(service=service, port=listener.getsockname()[1], grace=grace)
        ready()

    monkeypatch.setattr(jspec, "serve", serve)
    monkeypatch.setattr(http_run, "run", run)

    def call(*words):
        done = CliRunner().invoke(cli.app, ["serve", *words])
        return done, given

    return call


def test_the_command_passes_on_what_it_was_told_and_says_where_it_is(command):
    words = (
        "--target a/b --port 0 --model-name own --method ngram -k 3 --max-batch 2 "
        "--max-model-len 64 --kv-pages 9 --no-prefix-cache --dtype float32 --seed 4 "
        "--grace 1.5 --kernels reference"
    )
    done, given = command(*words.split())
    assert done.exit_code == 0, done.output
    assert given.pop("service").names[0] == "own"
    port = given.pop("port")
    assert f"own at http://127.0.0.1:{port}/v1 (method ngram" in done.stdout
    assert given == {
        "target": "a/b",
        "method": "ngram",
        "drafter": None,
        "num_speculative_tokens": 3,
        "max_batch": 2,
        "max_model_len": 64,
        "kv_pages": 9,
        "prefix_cache": False,
        "dtype": "float32",
        "seed": 4,
        "grace": 1.5,
        "draft_sampling": "auto",
        "method_options": None,
        "schedule": None,
        "verification": "standard",
        "kernels": "reference",
    }


def test_the_command_refuses_in_one_line_before_it_loads_anything(command):
    for words, sentence in (
        (("--port", "70000"), "ports run from 0 to 65535"),
        (("--port", "0", "--api-key", " "), "--api-key"),
    ):
        done, given = command(*words)
        assert done.exit_code == 2
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert not given


@pytest.mark.parametrize("package", ["uvicorn", "starlette", "prometheus_client"])
def test_without_the_extra_the_command_says_how_to_get_it(
    command, monkeypatch, package
):
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.startswith("jspec.server.http"):
            monkeypatch.delitem(sys.modules, name)
    for name in ("http", "http_run"):
        monkeypatch.delattr(f"jspec.server.{name}")
    monkeypatch.setitem(sys.modules, package, None)
    done, given = command()
    assert done.exit_code == 2
    assert done.stderr == (
        f"jspec: the HTTP server needs {package}: pip install 'jspec[server]'\n"
    )
    assert not given


@pytest.mark.slow
def test_the_real_command_serves_and_ends_with_status_0_at_sigterm(servers):
    words = ("serve", "--target", servers.paths["target"], "--port", "0")
    few = ("--max-batch", "1", "--max-model-len", "64", "-k", "2")
    started = subprocess.Popen(
        [sys.executable, "-c", "from jspec.cli import main; main()", *words, *few],
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            line = started.stdout.readline()
            base = line.split(" at ")[1].split("/v1")[0]
            with httpx.Client(base_url=base) as own:
                complete(own, prompt="ab", model="target", **GREEDY)
            started.send_signal(signal.SIGTERM)
            assert started.wait(30) == 0
        finally:
            started.kill()


def test_openais_own_client_understands_all_of_it(client):
    openai = pytest.importorskip("openai", reason="the client is not installed")
    base = f"{str(client.base_url).rstrip('/')}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as own:
        assert [model.id for model in own.models.list()] == ["tiny"]
        asked = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0,
            "max_tokens": 8,
        }
        whole = own.chat.completions.create(**asked)
        stream = own.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **asked
        )
        pieces = list(stream)
        text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        assert text == whole.choices[0].message.content
        assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
        with pytest.raises(openai.BadRequestError, match="best_of"):
            own.completions.create(model="tiny", prompt="x", best_of=2)
        with pytest.raises(openai.NotFoundError, match="nope"):
            own.completions.create(model="nope", prompt="x")
