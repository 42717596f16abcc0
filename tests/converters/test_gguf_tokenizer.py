"""The tokenizer out of a GGUF file is right to the token.

`smollm2_tokens.json`: ids that llama.cpp (llama-cpp-python 0.3.36) gives for
SmolLM2-135M-Instruct, special tokens parsed, no bos.
"""

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import pre_tokenizers

from converters import convert
from converters.gguf_tokenizer import PRE_TOKENIZERS, token_count, tokenizer_files
from jspec import targets
from jspec.tokenizer import Tokenizer

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["1 2", "12 3", "123 4", "h e", "Ġ he"]
TOKENS = [
    *LETTERS,
    *(merge.replace(" ", "") for merge in MERGES),
    "<|end|>",
    "<tool>",
    "[PAD264]",
    "[PAD265]",
]
KINDS = [1] * (len(TOKENS) - 4) + [3, 4, 5, 5]
END = len(TOKENS) - 4


def source(**keys):
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 128,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": END,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.chat_template": "{{ messages[0].content }}{{ eos_token }}",
    }
    keys = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    return SimpleNamespace(metadata=metadata | keys, file=Path("m.gguf"))


def read(folder, **keys):
    for name, content in tokenizer_files(source(**keys)).items():
        (folder / name).write_bytes(content)
    return Tokenizer(folder)


def pieces(tokenizer, text):
    return [tokenizer.tokens[i] for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["1", "2", "3", "4", "Ġhe"]),
        ("qwen2", ["1", "2", "3", "4", "Ġhe"]),
        ("tekken", ["1", "2", "3", "4", "Ġhe"]),
        ("gpt-2", ["1234", "Ġhe"]),
    ],
)
def test_the_pre_tokenizer_named_decides_what_may_merge(tmp_path, pre, expected):
    tokenizer = read(tmp_path, pre=pre, add_bos_token=False)
    assert pieces(tokenizer, "1234 he") == expected


def test_llama3_takes_three_digits_and_begins_with_bos(tmp_path):
    tokenizer = read(tmp_path, pre="llama-bpe")
    assert pieces(tokenizer, "1234") == ["<|end|>", "123", "4"]
    silent = read(tmp_path, pre="llama-bpe", add_bos_token=False)
    assert pieces(silent, "1234") == ["123", "4"]


def test_qwen2_composes_characters(tmp_path):
    composed = read(tmp_path, pre="qwen2")
    assert composed.encode("e\u0301") == composed.encode("\u00e9")


def test_special_and_user_defined_tokens_are_whole(tmp_path):
    tokenizer = read(tmp_path)
    assert pieces(tokenizer, "he<|end|><tool>he") == ["he", "<|end|>", "<tool>", "he"]
    ids = tokenizer.encode("he<|end|><tool>")
    assert tokenizer.decode(ids) == "he<tool>"
    assert tokenizer.eos_ids == (END,)
    assert tokenizer.render([{"role": "user", "content": "x"}]) == "x<|end|>"


def test_padding_rows_are_no_tokens(tmp_path):
    assert token_count(source()) == len(TOKENS) - 2
    assert read(tmp_path).size == len(TOKENS) - 2


def test_sentence_pieces_merge_by_score_and_fall_back_to_bytes(tmp_path):
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    words = ["▁", "a", "b", "▁a", "ab", "▁ab"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words]
    tokenizer = read(
        tmp_path,
        model="llama",
        tokens=tokens,
        token_type=[2, 3, 3] + [6] * 256 + [1] * len(words),
        scores=[0.0] * 259 + [-9.0, -8.0, -7.0, -1.0, -2.0, -3.0],
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
    )
    assert pieces(tokenizer, "ab a") == ["<s>", "▁ab", "▁a"]
    assert pieces(tokenizer, "é")[1:] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab é")) == "ab é"
    joined = b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode("ab é")[1:])
    assert joined.decode() == " ab é"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"pre": "klingon"}, "the pre-tokenizer is 'klingon'"),
        ({"pre": None}, "no pre-tokenizer is named"),
        ({"model": "bert"}, "the tokenizer model 'bert' is not supported"),
    ],
)
def test_an_unknown_tokenizer_is_refused_by_name(keys, sentence):
    with pytest.raises(ValueError, match=sentence):
        tokenizer_files(source(**keys))


def test_a_file_without_tokens_has_no_tokenizer():
    assert tokenizer_files(source(model="none")) == {}
    assert set(PRE_TOKENIZERS) >= {"smollm", "qwen2", "llama-bpe"}


@pytest.mark.slow
def test_smollm2_is_tokenised_as_llama_cpp_does(tmp_path):
    file = targets._installed() or targets._downloaded(tmp_path, progress=False)
    assert not zipfile.is_zipfile(file)
    convert(file, tmp_path / "here")
    tokenizer = Tokenizer(tmp_path / "here")
    recorded = Path(__file__).with_name("smollm2_tokens.json")
    for entry in json.loads(recorded.read_text(encoding="utf-8")):
        assert tokenizer.encode(entry["text"]) == entry["ids"], entry["text"]
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.size == 49_152
    assert tokenizer.render([{"role": "user", "content": "Hi 12"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
        "Hugging Face<|im_end|>\n<|im_start|>user\nHi 12<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
