"""What callers of a server see, with and without drafting: R-numbers are of docs."""

import asyncio
import dataclasses
import functools
import itertools
import threading

import pytest

from jspec.params import SamplingParams
from tests.serving import EOS, PROMPTS, TOKENS, greedy, settled

DRAFTING = ("ngram", "self", "near")


def same(one, other):
    """Whether two completions are one, but for what drafting brought."""
    for name in ("token_ids", "text", "finish_reason"):
        assert getattr(one, name) == getattr(other, name)
    assert one.usage.completion_tokens == other.usage.completion_tokens


@functools.cache
def distinct(servers, count):
    """A prompt whose greedy answer begins with so many different tokens; and them."""
    for prompt in itertools.product("abcdefghij", repeat=2):
        done = servers.plain("".join(prompt), greedy(count + 8))
        if len(set(done.token_ids[:count])) == count and EOS not in done.token_ids:
            return "".join(prompt), done.token_ids
    raise AssertionError("no prompt has an answer of different tokens")


def one(server, prompt, params):
    """A completion, and that its stream says the same."""
    [done] = server.generate(prompt, params)
    chunks = list(server.stream(prompt, params))
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert [i for chunk in chunks for i in chunk.token_ids] == done.token_ids
    assert [c.finish_reason for c in chunks if c.finish_reason] == [done.finish_reason]
    assert chunks[-1].finish_reason
    assert done.usage.completion_tokens == len(done.token_ids)
    assert done.speculation.accepted <= done.usage.completion_tokens
    return done


@pytest.mark.parametrize("kind", DRAFTING)
def test_greedy_text_equals_plain_decoding(servers, kind):
    params = greedy(60)
    ours = servers[kind].generate(list(PROMPTS), params)
    for prompt, done in zip(PROMPTS, ours, strict=True):
        same(done, servers.plain(prompt, params))
    assert sum(done.speculation.drafted for done in ours) > 0


@pytest.mark.parametrize("kind", ["self", "ngram"])
@pytest.mark.parametrize("place", range(1, 11))
def test_r01_r07_a_stop_token_ends_the_text_wherever_it_lies_in_a_block(
    servers, kind, place
):
    prompt, answer = distinct(servers, 10)
    params = greedy(16, stop_token_ids=[answer[place - 1]])
    done = one(servers[kind], prompt, params)
    assert (done.token_ids, done.finish_reason) == (answer[:place], "stop")
    same(done, servers.plain(prompt, params))
    tau = done.usage.completion_tokens / done.speculation.rounds
    assert done.speculation.tau == tau


@pytest.mark.parametrize("kind", ["plain", "self"])
def test_the_models_own_end_counts_unless_it_is_ignored(servers, kind):
    prompt, _ = distinct(servers, 10)
    lift = {EOS: 100.0}
    done = one(servers[kind], prompt, greedy(8, ignore_eos=False, logit_bias=lift))
    assert (done.token_ids, done.finish_reason, done.text) == ([EOS], "stop", "")
    ignored = one(servers[kind], prompt, greedy(8, logit_bias=lift))
    assert (ignored.token_ids, ignored.finish_reason) == ([EOS] * 8, "length")


@pytest.mark.parametrize("kind", DRAFTING)
@pytest.mark.parametrize("limit", range(1, 7))
def test_r02_exactly_max_tokens_are_returned(servers, kind, limit):
    prompt, answer = distinct(servers, 10)
    done = one(servers[kind], prompt, greedy(limit))
    assert (done.token_ids, done.finish_reason) == (answer[:limit], "length")


@pytest.mark.parametrize("length", range(3, 10))
def test_r04_r06_usage_and_counters_are_what_was_delivered(servers, length):
    prompt = [40 + i for i in range(length)]
    done = one(servers["self"], prompt, greedy(8))
    numbers = done.speculation
    assert done.usage.prompt_tokens == length
    assert done.usage.completion_tokens == len(done.token_ids) == 8
    assert numbers.accepted + numbers.rounds == 8
    assert sum(numbers.accepted_per_position) == numbers.accepted
    assert sum(numbers.drafted_per_position) == numbers.drafted


@pytest.mark.parametrize("kind", ["plain", "self", "ngram"])
@pytest.mark.parametrize("first", range(2, 9))
def test_r05_r09_a_stop_string_of_two_tokens_is_found_wherever_it_lies(
    servers, kind, first
):
    prompt = "stop strings"
    allowed = {i: 20.0 * ((7 * i) % 5) for i in range(64, 90)}
    base = greedy(14, logit_bias={**dict.fromkeys(range(TOKENS), -100.0), **allowed})
    base = dataclasses.replace(base, frequency_penalty=2.0, presence_penalty=2.0)
    answer = servers.plain(prompt, base)
    assert len(answer.text) == len(answer.token_ids) == 14
    text = answer.text[first : first + 2]
    end = answer.text.index(text)
    done = one(servers[kind], prompt, dataclasses.replace(base, stop=text))
    assert done.text == answer.text[:end]
    assert done.token_ids == answer.token_ids[: end + 2]
    assert done.finish_reason == "stop"
    never = dataclasses.replace(base, stop=text[0] + "\n")
    same(one(servers[kind], prompt, never), answer)


@pytest.mark.parametrize("kind", ["self", "ngram", "near"])
@pytest.mark.parametrize("least", [0, 3, 6, 7, 8])
def test_r11_min_tokens_counts_tokens_and_not_rounds(servers, kind, least):
    prompt, answer = distinct(servers, 10)
    params = greedy(12, min_tokens=least, stop_token_ids=[answer[6]])
    done = one(servers[kind], prompt, params)
    same(done, servers.plain(prompt, params))
    if least <= 6:
        assert (done.token_ids, done.finish_reason) == (answer[:7], "stop")
    else:
        assert len(done.token_ids) >= least
        assert answer[6] not in done.token_ids[:least]


@pytest.mark.parametrize("length", [1, 2, 24, 27, 30, 31])
def test_r12_near_the_models_limit_texts_end_as_in_plain_decoding(servers, length):
    prompts = [[50 + i for i in range(length)], [70, 71, 72]]
    for order in (prompts, prompts[::-1]):
        ours = servers["short self"].generate(order, greedy(100))
        plain = servers["short plain"].generate(order, greedy(100))
        for done, right, prompt in zip(ours, plain, order, strict=True):
            same(done, right)
            assert len(prompt) + len(done.token_ids) == 32
            assert done.finish_reason == "length"
            assert done.speculation.accepted == done.speculation.drafted


def test_r13_a_text_near_the_limit_leaves_the_pages_it_shares_alone(servers):
    server = servers["short self"]
    prompt = [60 + i for i in range(26)]
    plain = servers["short plain"].generate(prompt[:10], greedy(20))[0]
    server.generate(prompt, greedy(100))
    again = server.generate(prompt[:10], greedy(20))[0]
    assert again.usage.cached_tokens == 8
    same(again, plain)


@pytest.mark.parametrize("kind", ["plain", *DRAFTING])
def test_r16_an_empty_prompt_is_refused_and_short_ones_answered(servers, kind):
    server = servers[kind]
    for prompt in ("", []):
        with pytest.raises(ValueError, match="the prompt is empty"):
            server.submit(prompt)
    for prompt in ("x", "xy", [7], [7, 7]):
        same(one(server, prompt, greedy(20)), servers.plain(prompt, greedy(20)))


@pytest.mark.parametrize("kind", ["self 1", "ngram 1"])
def test_r17_one_drafted_token_is_enough(servers, kind):
    for prompt in PROMPTS[:3]:
        done = one(servers[kind], prompt, greedy(31))
        same(done, servers.plain(prompt, greedy(31)))
        assert len(done.speculation.drafted_per_position) <= 1
        if kind == "self 1":
            assert (done.speculation.rounds, done.speculation.accepted) == (16, 15)


RULES = (
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 1.5, "repetition_penalty": 0.8},
    {"repetition_penalty": 1.5},
    {"logit_bias": {65: 5.0, 66: 4.9, 67: -100.0}},
    {"repetition_penalty": 1.3, "logit_bias": {65: 9.0}, "frequency_penalty": 0.7},
)


@pytest.mark.parametrize("kind", DRAFTING)
@pytest.mark.parametrize("rules", RULES)
def test_r23_penalties_and_biases_see_the_tokens_before_each_offset(
    servers, kind, rules
):
    params = greedy(24, **rules)
    for prompt in ("a a a", "the the the"):
        done = one(servers[kind], prompt, params)
        same(done, servers.plain(prompt, params))


def test_rules_bind_their_own_row_alone_and_not_the_rows_next_request(servers):
    server = servers["self"]
    params = [greedy(20), greedy(20, logit_bias={65: 100.0}), greedy(20)]
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[2]]
    for _ in range(3):
        done = server.generate(prompts, params)
        assert done[1].token_ids == [65] * 20
        for i in (0, 2):
            same(done[i], servers.plain(prompts[i], greedy(20)))
        prompts, params = prompts[::-1], params[::-1]


@pytest.mark.parametrize("kind", ["plain", *DRAFTING])
def test_r27_a_seed_decides_whatever_the_neighbours_order_and_batch(servers, kind):
    server, prompt = servers[kind], PROMPTS[0]
    drawn = functools.partial(SamplingParams, temperature=0.9, max_tokens=20)
    [alone] = server.generate(prompt, drawn(seed=1))
    seeds = [1, None, 2, 1, None, 3]
    for turn in range(3):
        order = seeds[turn:] + seeds[:turn]
        ours = server.generate([prompt] * 6, [drawn(seed=s) for s in order])
        texts = {}
        for seed, done in zip(order, ours, strict=True):
            assert all(0 <= i < TOKENS for i in done.token_ids)
            texts.setdefault(seed, []).append(done.token_ids)
        assert texts[1] == [alone.token_ids] * 2
        assert texts[2] != texts[1][:1]
        assert texts[None][0] != texts[None][1]
        beside = [prompt, PROMPTS[1], PROMPTS[2]]
        mixed = [drawn(seed=1), greedy(9), drawn(seed=5)]
        assert server.generate(beside, mixed)[0].token_ids == alone.token_ids


@pytest.mark.parametrize("kind", ["self", "ngram"])
def test_r10_what_a_stop_threw_away_does_not_move_the_next_draws(servers, kind):
    server, prompt = servers[kind], PROMPTS[4]
    params = SamplingParams(temperature=0.8, seed=11, max_tokens=24)
    [whole] = server.generate(prompt, params)
    for place in (1, 3, 4):
        stop = dataclasses.replace(params, stop_token_ids=[whole.token_ids[place]])
        [cut] = server.generate(prompt, stop)
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert server.generate(prompt, params)[0].token_ids == whole.token_ids


@pytest.mark.parametrize("kind", ["plain", *DRAFTING])
def test_r29_greedy_rows_do_not_notice_sampled_ones(servers, kind):
    params = [greedy(20), SamplingParams(temperature=0.7, top_k=9, max_tokens=20)] * 3
    ours = servers[kind].generate(list(PROMPTS), params)
    for i in (0, 2, 4):
        same(ours[i], servers.plain(PROMPTS[i], greedy(20)))


@pytest.mark.parametrize("kind", ["plain", *DRAFTING])
def test_r21_a_token_outside_the_requests_support_is_never_drawn(servers, kind):
    params = SamplingParams(temperature=1.5, top_k=1, max_tokens=30, ignore_eos=True)
    for prompt in PROMPTS[:3]:
        same(one(servers[kind], prompt, params), servers.plain(prompt, greedy(30)))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_r38_a_model_that_drafts_for_itself_is_always_right(servers, temperature):
    params = SamplingParams(
        temperature=temperature, top_k=20, seed=3, max_tokens=120, ignore_eos=True
    )
    for done in servers["self"].generate(["q", "ab", "a a", "x", "xyz"], params):
        assert done.speculation.drafted > 90
        assert done.speculation.accepted == done.speculation.drafted


def test_r40_a_text_found_in_the_cache_is_drafted_for_as_well(servers):
    for kind in ("self", "near", "ngram"):
        server, prompt = servers[kind], [90 + i for i in range(24)]
        first, second = (server.generate(prompt, greedy(40))[0] for _ in range(2))
        same(first, second)
        assert second.speculation == first.speculation
        assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, 20)


@pytest.mark.parametrize("length", [5, 6, 7, 8])
@pytest.mark.parametrize("drafted", [None, 0])
def test_r40_r41_a_second_turn_finds_the_first_ones_text_with_its_drafts(
    servers, length, drafted
):
    server = servers["self"]
    text = [100 + length + (drafted is None) * 9 + i for i in range(length)]
    for turn in range(3):
        own = drafted if turn < 2 else None
        params = greedy(15, num_speculative_tokens=own)
        [done] = server.generate(text, params)
        assert done.speculation.accepted == done.speculation.drafted
        if turn:
            least = len(text) - 3 - 2 * 4 if drafted is None else 4 * (length // 4) - 4
            assert done.usage.cached_tokens >= least
        text = [*text, *done.token_ids, 40 + turn, 41 + turn]


def test_r41_plain_decoding_finds_all_full_pages_of_the_turn_before(servers):
    server, text = servers["plain"], [31, 32, 33, 34, 35]
    for turn in range(4):
        [done] = server.generate(text, greedy(12))
        assert done.usage.cached_tokens == (4 * ((len(text) - 2) // 4) if turn else 0)
        text = [*text, *done.token_ids, 7]


@pytest.mark.parametrize("kind", DRAFTING)
def test_r46_a_row_is_as_new_after_an_abort_at_any_moment(servers, kind):
    server = servers[kind]
    right = servers.plain(PROMPTS[0], greedy(40))
    for chunks in range(5):
        for chunk in itertools.islice(server.stream("aborted", greedy(60)), chunks):
            assert chunk.finish_reason is None
        handle = server.submit("aborted " * 8, greedy(50))
        handle.abort()
        same(server.generate(PROMPTS[0], greedy(40))[0], right)
        assert handle.result(10).finish_reason == "abort"
    settled(server)


@pytest.mark.parametrize("kind", ["self", "ngram"])
def test_r47_after_fifty_requests_and_fifty_aborts_all_pages_are_back(servers, kind):
    server = servers[kind]
    prompt = "the same prompt"
    [first] = server.generate(prompt, greedy(20))
    for _ in range(50):
        [last] = server.generate(prompt, greedy(20))
    handles = [server.submit(f"{prompt} {i}", greedy(100)) for i in range(50)]
    for handle in handles:
        handle.abort()
    for handle in handles:
        done = handle.result(60)
        assert done.finish_reason in ("abort", "length")
        assert done.usage.completion_tokens == len(done.token_ids)
    settled(server)
    [after] = server.generate(prompt, greedy(20))
    assert after.speculation == last.speculation == first.speculation
    same(after, first)


@pytest.mark.parametrize("kind", ["self", "near"])
def test_r53_a_requests_acceptance_does_not_change_with_the_batch(servers, kind):
    server = servers[kind]
    [alone] = server.generate(PROMPTS[4], greedy(30))
    for copies in (2, 4, 7):
        for done in server.generate([PROMPTS[4]] * copies, greedy(30)):
            assert done.speculation == alone.speculation


def test_r67_streams_of_any_bytes_are_the_whole_text(servers):
    for kind in ("plain", "self"):
        params = SamplingParams(temperature=1.0, seed=2, max_tokens=60, top_k=0)
        one(servers[kind], "bytes 🙂", params)
        bias = dict.fromkeys(servers[kind].tokenizer.encode('🙂"é'), 30.0)
        one(servers[kind], "bytes", dataclasses.replace(params, logit_bias=bias))


def test_requests_may_draft_less_than_the_server_and_not_more(servers):
    server = servers["self"]
    for k in range(5):
        done = one(server, PROMPTS[0], greedy(30, num_speculative_tokens=k))
        same(done, servers.plain(PROMPTS[0], greedy(30)))
        assert len(done.speculation.drafted_per_position) == k
    with pytest.raises(ValueError, match="num_speculative_tokens 5 exceeds"):
        server.submit("x", greedy(num_speculative_tokens=5))


def test_several_answers_stand_together_and_differ(servers):
    params = SamplingParams(n=3, seed=5, max_tokens=12)
    one, two = (servers["plain"].generate(["ab", "cd"], params) for _ in range(2))
    assert [d.token_ids for d in one] == [d.token_ids for d in two]
    assert len({tuple(d.token_ids) for d in one[:3]}) == 3
    with pytest.raises(ValueError, match="n=3 is for generate"):
        servers["plain"].submit("ab", params)


def test_a_conversation_is_rendered_by_the_template(servers):
    server = servers["plain"]
    chat = [{"role": "user", "content": "hi"}]
    [done] = server.generate(chat, greedy(5))
    [right] = server.generate("<|user|>hi<|assistant|>", greedy(5))
    same(done, right)
    assert len(server.generate([chat, chat], greedy(5))) == 2


def test_a_handle_is_read_again_by_many_and_from_threads(servers):
    handle = servers["self"].submit("many readers", greedy(40))
    found, results = [], []

    def read():
        found.append([c.text for c in handle])
        results.append(handle.result(20))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    read()
    handle.abort()
    assert len(found) == 9
    assert all(texts == found[0] for texts in found)
    assert all(done == results[0] for done in results)
    assert results[0].finish_reason == "length"


def test_a_result_that_is_not_there_yet_is_waited_for_no_longer_than_asked(servers):
    server = servers["plain"]
    handles = [server.submit("slow", greedy(120)) for _ in range(8)]
    with pytest.raises(TimeoutError, match=r"not complete after 0\.0 s"):
        handles[-1].result(0.0)
    assert all(handle.result(60).finish_reason == "length" for handle in handles)


def test_event_loops_get_the_same(servers):
    server = servers["self"]
    right = servers.plain("loop", greedy(30))

    async def work():
        chunks = [chunk async for chunk in server.astream("loop", greedy(30))]
        many = await asyncio.gather(
            *(server.agenerate("loop", greedy(30)) for _ in range(6))
        )
        handle = server.submit("loop", greedy(30))
        twice = [[chunk.text async for chunk in handle] for _ in range(2)]
        return "".join(c.text for c in chunks), many, twice

    text, many, twice = asyncio.run(work())
    assert text == right.text == "".join(twice[0]) == "".join(twice[1])
    for [done] in many:
        same(done, right)


def test_a_cancelled_task_aborts_its_requests(servers):
    server = servers["plain"]
    before = server.metrics()["requests"].get("abort", 0)

    async def work():
        prompts = [f"cancelled {i}" for i in range(20)]
        task = asyncio.create_task(server.agenerate(prompts, greedy(110)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert settled(server)["requests"]["abort"] > before


def test_a_thousand_short_requests_are_all_answered(servers):
    server = servers["ngram"]
    prompts = [[i % 200, i % 7, 3] for i in range(1000)]
    ours = server.generate(prompts, [greedy(1 + i % 3) for i in range(1000)])
    assert [len(done.token_ids) for done in ours] == [1 + i % 3 for i in range(1000)]
    again = server.generate(prompts[700], greedy(2))[0]
    assert ours[700].token_ids == again.token_ids
    settled(server)


BAD = (
    (b"ab", "a prompt is text, token ids or chat messages, not b'ab'"),
    ([1, True], "not a mixture"),
    ([-1], "prompt id -1 is not a token"),
    ([TOKENS], f"prompt id {TOKENS} is not a token"),
    ([1] * 128, "with max_model_len 128 it can have at most 127"),
    ([{"role": "user"}], "the chat template refuses"),
    ("\ud800", "surrogate"),
)


@pytest.mark.parametrize(("prompt", "why"), BAD)
def test_a_bad_prompt_is_refused_in_one_sentence_and_hurts_nobody(servers, prompt, why):
    server = servers["self"]
    neighbour = server.submit(PROMPTS[0], greedy(60))
    with pytest.raises(ValueError, match=why) as caught:
        server.submit(prompt, greedy(4))
    assert len(str(caught.value).splitlines()) == 1
    same(neighbour.result(30), servers.plain(PROMPTS[0], greedy(60)))


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (greedy(logprobs=2, regex="a"), r"logprobs \(log-prob.*regex \(structured"),
        (greedy(lora="a"), "lora"),
        (greedy(stop_token_ids=list(range(17))), "16 stop tokens"),
        (greedy(stop_token_ids=[TOKENS]), "stop_token_ids is not a token"),
        (greedy(logit_bias={TOKENS: 1.0}), "logit_bias or stop_token_ids"),
    ],
)
def test_r34_what_cannot_be_honoured_is_refused_by_name(servers, params, why):
    server = servers["self"]
    with pytest.raises(ValueError, match=why):
        server.submit("x", params)
    with pytest.raises(ValueError, match=why):
        server.generate(["x", "y"], [greedy(4), params])
    same(server.generate("x", greedy(4))[0], servers.plain("x", greedy(4)))


def contains(ids, word):
    return any(tuple(ids[i : i + len(word)]) == tuple(word) for i in range(len(ids)))


@pytest.mark.parametrize("method", ["plain", "self", "ngram"])
def test_r25_forbidden_words_bind_their_own_request_at_every_offset(servers, method):
    server = servers[method]
    free = servers.plain(PROMPTS[0], greedy(24)).token_ids
    words = [server.tokenizer.decode([free[3]]), server.tokenizer.decode(free[8:10])]
    words = [word for word in words if word.strip() and "\ufffd" not in word]
    assert words
    asked = [greedy(24), greedy(24, bad_words=words), greedy(24)]
    done = server.generate([PROMPTS[0]] * 3, asked)
    bound = servers["plain"].generate(PROMPTS[0], asked[1])[0]
    assert done[1].token_ids == bound.token_ids != free
    for word in words:
        assert word not in done[1].text
        sequence = server.tokenizer.encode(word, add_special_tokens=False)
        assert not contains(done[1].token_ids, sequence)
    assert done[0].token_ids == done[2].token_ids == free


def test_forbidden_words_beyond_the_limits_are_refused(servers):
    server = servers["plain"]
    with pytest.raises(ValueError, match="token sequences"):
        server.submit("x", greedy(4, bad_words=[f"{i}x{i}" for i in range(40)]))
    with pytest.raises(ValueError, match="it can have 8"):
        server.submit("x", greedy(4, bad_words="abcdefghijklmnop"))


def test_params_come_one_for_all_or_one_for_each(servers):
    server = servers["plain"]
    assert server.generate([], greedy()) == []
    with pytest.raises(ValueError, match="2 prompts came with 1 params"):
        server.generate(["a", "b"], [greedy()])
    with pytest.raises(ValueError, match="the prompt is empty"):
        server.generate(["a", ""], greedy())
    settled(server)


@pytest.mark.parametrize("kind", ["plain", "self", "ngram"])
def test_padding_tokens_are_never_emitted(servers, kind):
    params = SamplingParams(temperature=100.0, max_tokens=100, seed=1, ignore_eos=True)
    [done] = servers[kind].generate("padding", params)
    assert max(done.token_ids) < TOKENS
