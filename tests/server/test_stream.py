"""However tokens arrive, the text is the same, whole and never past a stop string."""

import itertools
import random

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from jspec.engine.request import Emitted, Request
from jspec.params import SamplingParams
from jspec.server.stream import Detokenizer, TextReader, TextStream

END = 256
UNKNOWN = "\ufffd"
TEXTS = [
    "plain words, and more of them",
    "naïve café – “quotes” …",
    "你好世界。日本語のテキスト",
    "family: 👨‍👩‍👧‍👦 flag: 🇨🇭 wave: 👋🏽 done",
    "नमस्ते दुनिया, здравствуй, مرحبا",
    "  two  spaces \n\n\ttabs  ",
    "a�b",
]


class Bytes:
    """Every byte a token; `END` is special."""

    def __init__(self):
        self.most = 0

    def decode(self, ids, skip_special_tokens=False):
        assert skip_special_tokens
        self.most = max(self.most, len(ids))
        return bytes(i for i in ids if i < END).decode("utf-8", "replace")

    def encode(self, text):
        return list(text.encode())


class Real:
    """A tokenizer of the library that checkpoints use."""

    def __init__(self, backend):
        self.backend = backend

    def decode(self, ids, skip_special_tokens=False):
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def encode(self, text):
        return self.backend.encode(text).ids


def byte_level():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXTS[:3], trainer)
    return Real(backend)


def sentence_piece():
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁"]
    pieces += [*"abcdefghijklmnopqrstuvwxyz", "▁w", "or", "▁wor", "ds", "▁a"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "w"), ("o", "r"), ("▁w", "or"), ("d", "s"), ("▁", "a")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Real(backend)


TOKENIZERS = {
    "bytes": Bytes(),
    "byte level": byte_level(),
    "sentence piece": sentence_piece(),
}


def splits(ids, rng):
    while ids:
        n = rng.randint(1, 5)
        yield ids[:n]
        ids = ids[n:]


def streamed(tokenizer, ids, rng, **options):
    stream = TextStream(tokenizer, **options)
    pieces, kept = [], []
    for part in splits(list(ids), rng):
        piece = stream.push(part)
        pieces.append(piece.text)
        kept += part[: piece.kept]
        if piece.stopped:
            break
    else:
        pieces.append(stream.push([], "length").text)
    assert "".join(pieces) == stream.text
    return pieces, kept, stream


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text_of_all_ids_in_whole_characters(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text * 5)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    rng = random.Random(0)
    for _ in range(5):
        pieces, kept, _ = streamed(tokenizer, ids, rng)
        assert "".join(pieces) == whole
        assert kept == ids
        assert UNKNOWN in text or not any(UNKNOWN in piece for piece in pieces)


def test_an_emoji_of_four_tokens_comes_with_the_fourth():
    detokenizer = Detokenizer(Bytes())
    assert [detokenizer.push(i) for i in "👋".encode()] == ["", "", "", "👋"]


def test_tokens_that_never_end_a_character_still_give_whole_ones():
    class Pairs:
        def decode(self, ids, skip_special_tokens=False):
            return b"".join(pairs[i] for i in ids).decode("utf-8", "replace")

    text = "你好世界日本語" * 30
    whole = text.encode()
    cuts = [0, *range(2, len(whole), 3), len(whole)]
    pairs = [whole[a:b] for a, b in itertools.pairwise(cuts)]
    detokenizer = Detokenizer(Pairs())
    pieces = [detokenizer.push(i) for i in range(len(pairs))]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any(UNKNOWN in piece for piece in pieces)


def test_what_is_no_character_at_the_end_is_shown_at_the_end():
    stream = TextStream(Bytes())
    assert stream.push(list(b"a" + "👋".encode()[:3])).text == "a"
    assert stream.push([], "length").text == UNKNOWN


def test_what_turns_out_to_be_no_character_is_shown():
    stream = TextStream(Bytes())
    assert stream.push([0xE4, 0xBD]).text == ""
    assert stream.push(list(b"ab")).text == f"{UNKNOWN}ab"
    assert stream.push([0x80] * 9).text == UNKNOWN * 6


@pytest.mark.parametrize("name", TOKENIZERS)
def test_noise_gives_the_same_text_however_it_arrives(name):
    rng = random.Random(1)
    for _ in range(8):
        ids = [rng.randrange(1, 257) for _ in range(150)]
        texts = {
            streamed(TOKENIZERS[name], ids, random.Random(seed))[2].text
            for seed in range(3)
        }
        assert len(texts) == 1


@pytest.mark.parametrize(
    "ids",
    [
        list(b"word ") * 200,
        [0x80] * 1000,
        [END] * 1000,
        [0xE4, END] * 500,
        [0xE4] + [END] * 1000,
    ],
)
def test_the_cost_of_a_token_does_not_grow(ids):
    tokenizer = Bytes()
    streamed(tokenizer, ids, random.Random(0))
    assert tokenizer.most <= 66


def test_noise_is_all_shown():
    _, _, stream = streamed(Bytes(), [0x80] * 500, random.Random(0))
    assert stream.text == UNKNOWN * 500


def test_special_tokens_are_ids_and_not_text():
    stream = TextStream(Bytes())
    piece = stream.push([*b"ab", END, *b"c", END], "stop")
    assert (piece.text, piece.kept, piece.stopped) == ("abc", 5, False)


def test_a_stop_token_is_not_text_even_if_it_could_be():
    assert TextStream(Bytes()).push(list(b"abc"), "stop").text == "ab"
    assert TextStream(Bytes()).push(list(b"abc"), "length").text == "abc"


def test_the_prompt_decides_whether_a_text_begins_with_a_space():
    tokenizer = TOKENIZERS["sentence piece"]
    prompt, words = tokenizer.encode("a"), tokenizer.encode("words a")
    alone = TextStream(tokenizer).push(words, "length").text
    behind = TextStream(tokenizer, context=prompt).push(words, "length").text
    assert (alone, behind) == ("words a", " words a")


def test_a_context_that_begins_within_a_character_does_no_harm():
    context = "你".encode()[1:] + b"a"
    stream = TextStream(Bytes(), context=list(context))
    assert stream.push(list("你b".encode()), "length").text == "你b"


STOPPED = [
    ("one two three", ("two",), "one ", "one two"),
    ("one two three", ("o t", "tw"), "one ", "one tw"),
    ("one two three", ("three", "e"), "on", "one"),
    ("aaab", ("aab",), "a", "aaab"),
    ("ababac", ("abac",), "ab", "ababac"),
    ("xabc", ("abc", "bc", "c"), "x", "xabc"),
    ("xabc", ("abc", "b"), "xa", "xab"),
    ("two", ("two",), "", "two"),
    ("say 👋 now", ("👋",), "say ", "say 👋"),
    ("one two", ("twox", "onex"), "one two", "one two"),
    ("one tw", ("two",), "one tw", "one tw"),
    ("a\n\nb", ("\n\n",), "a", "a\n\n"),
]


@pytest.mark.parametrize(("text", "stop", "shown", "kept"), STOPPED)
def test_text_ends_before_the_stop_string_and_ids_with_it(text, stop, shown, kept):
    tokenizer = Bytes()
    for seed in range(20):
        pieces, ids, stream = streamed(
            tokenizer, tokenizer.encode(text), random.Random(seed), stop=stop
        )
        assert ("".join(pieces), ids) == (shown, tokenizer.encode(kept))
        assert stream.ended


@pytest.mark.parametrize("seed", range(30))
def test_any_stop_is_found_as_a_search_of_the_whole_text_finds_it(seed):
    rng = random.Random(seed)
    tokenizer = Bytes()
    text = "".join(rng.choice("abé") for _ in range(40))
    stop = tuple(
        "".join(rng.choice("abé") for _ in range(rng.randint(1, 5)))
        for _ in range(rng.randint(1, 3))
    )
    least = rng.choice([0, 0, 7])
    ends = [
        (i, -len(s))
        for i in range(1, len(text) + 1)
        for s in stop
        if text[:i].endswith(s) and len(text[:i].encode()) > least
    ]
    end, length = min(ends, default=(len(text), 0))
    pieces, ids, _ = streamed(
        tokenizer, tokenizer.encode(text), rng, stop=stop, min_tokens=least
    )
    assert "".join(pieces) == text[: end + length]
    assert ids == tokenizer.encode(text[:end])


def test_only_what_may_begin_a_stop_string_is_held_back():
    stream = TextStream(Bytes(), stop=("stop",))
    shown = [stream.push([i]).text for i in b"a stand"]
    assert shown == ["a", " ", "", "", "sta", "n", "d"]


def test_a_token_may_hold_the_stop_string_and_more():
    class Words:
        def decode(self, ids, skip_special_tokens=False):
            return "".join([" go", " until the", " end.", " of it"][i] for i in ids)

    piece = TextStream(Words(), stop=("end",)).push([0, 1, 2, 3])
    assert (piece.text, piece.kept, piece.stopped) == (" go until the ", 3, True)


def test_what_was_held_back_is_shown_before_a_stop_token():
    stream = TextStream(Bytes(), stop=("stop",))
    assert stream.push(list(b"a st")).text == "a "
    assert stream.push([END], "stop").text == "st"


@pytest.mark.parametrize(
    ("least", "shown"), [(2, ""), (3, "aab"), (5, "aab"), (6, None)]
)
def test_a_stop_string_within_the_first_tokens_is_text(least, shown):
    stream = TextStream(Bytes(), stop=("aab",), min_tokens=least)
    piece = stream.push(list(b"aabaab"))
    if shown is None:
        assert not piece.stopped and stream.push([], "length").text == ""
        assert stream.text == "aabaab"
    else:
        assert piece.stopped and piece.text == shown


def test_a_text_ends_once():
    stream = TextStream(Bytes(), stop=("a",))
    stream.push(list(b"xa"))
    with pytest.raises(ValueError, match="has ended"):
        stream.push([1])


def read(text, rng, **params):
    chunks = []
    settings = SamplingParams(**params)
    stream = TextStream(
        Bytes(), stop=settings.stop_strings, min_tokens=settings.min_tokens
    )
    reader = TextReader(stream, chunks.append)
    one = Request(0, (1,), settings, reader)
    for part in splits(list(text.encode()), rng):
        one.take(Emitted(tokens=part, drafted=4, accepted=len(part) - 1))
    return one, chunks


@pytest.mark.parametrize("seed", range(20))
def test_text_ids_usage_and_stream_end_at_the_same_token(seed):
    one, chunks = read("one two three", random.Random(seed), stop="two")
    assert "".join(chunk.text for chunk in chunks) == "one "
    assert bytes(i for chunk in chunks for i in chunk.token_ids) == b"one two"
    assert one.token_ids == list(b"one two")
    assert one.usage.completion_tokens == 7
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert chunks[-1].finish_reason == one.finish_reason == "stop"
    assert one.speculation.tau * one.speculation.rounds == pytest.approx(7)


@pytest.mark.parametrize("limit", range(1, 14))
def test_the_limit_shows_what_was_held_back(limit):
    one, chunks = read(
        "one two tthree", random.Random(limit), stop="tt", max_tokens=limit
    )
    shown = "".join(chunk.text for chunk in chunks)
    assert shown == ("one two tthree"[:limit] if limit < 10 else "one two ")
    assert one.usage.completion_tokens == min(limit, 10)
    assert one.finish_reason == ("length" if limit < 10 else "stop")


def test_an_abort_shows_what_was_held_back():
    one, chunks = read("one tw", random.Random(0), stop="two")
    one.end("abort")
    assert "".join(chunk.text for chunk in chunks) == "one tw"
    assert chunks[-1].finish_reason == "abort"


def test_a_tokenizer_that_fails_ends_one_request_without_its_text():
    class Broken:
        def decode(self, ids, skip_special_tokens=False):
            raise KeyError(ids[-1])

    chunks = []
    reader = TextReader(TextStream(Broken()), chunks.append)
    one = Request(0, (1,), SamplingParams(), reader)
    one.take(Emitted(tokens=[5]))
    assert [(c.text, c.token_ids, c.finish_reason) for c in chunks] == [
        ("", [], "error")
    ]
