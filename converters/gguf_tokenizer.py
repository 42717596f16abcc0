"""The tokenizer inside a GGUF file, as the files Hugging Face would have shipped.

GGUF keeps tokens, merges and the *name* of the pre-tokenizer. What a name stands for
is a table here; an unknown name is refused, as a guess would tokenise almost right.
"""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from converters.sources import Gguf

__all__ = ["PRE_TOKENIZERS", "token_count", "tokenizer_files"]

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def _digits() -> list[Any]:
    return [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]


def _plain() -> list[Any]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


PRE_TOKENIZERS: Mapping[str, list[Any]] = {
    "smollm": _digits(),
    "gpt-2": _plain(),
    "qwen2": _split(QWEN2),
    "llama-bpe": _split(LLAMA3),
    "llama3": _split(LLAMA3),
    "llama-v3": _split(LLAMA3),
    "tekken": _split(TEKKEN),
}
NORMALIZERS: Mapping[str, Any] = {"qwen2": normalizers.NFC()}
WHOLE_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""A piece that is a token is taken whole, whatever the merges say."""
BEGINS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""A text begins with bos where the file does not say."""


def token_count(source: Gguf) -> int | None:
    """How many of the file's tokens are tokens; the rest pads the embedding."""
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    kinds = source.metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    count = len(tokens)
    while count and kinds[count - 1] == UNUSED and tokens[count - 1].startswith("[PAD"):
        count -= 1
    return count


def tokenizer_files(source: Gguf) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and the chat template; `{}` if none.

    Raises:
      ValueError: the kind of tokenizer, or its pre-tokenizer, is not known.
    """
    metadata = source.metadata
    kind = metadata.get("tokenizer.ggml.model")
    count = token_count(source)
    if kind in (None, "none", "no_vocab") or count is None:
        return {}
    if kind == "gpt2":
        tokenizer, begins = _byte_level(source, count)
    elif kind == "llama":
        tokenizer, begins = _sentence_piece(source, count)
    else:
        raise ValueError(
            f"{source.file}: the tokenizer model {kind!r} is not supported; "
            "gpt2 and llama are"
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    added = [
        AddedToken(tokens[i], special=kinds[i] != USER, normalized=False)
        for i in range(count)
        if kinds[i] in (CONTROL, USER) or (kinds[i] == UNKNOWN and kind == "llama")
    ]
    tokenizer.add_tokens(added)
    special = {
        name: tokens[i]
        for name, key in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        )
        if (i := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None
        and i < count
    }
    begins = metadata.get("tokenizer.ggml.add_bos_token", begins)
    ends = metadata.get("tokenizer.ggml.add_eos_token", False)
    parts = [special["bos"]] if begins and "bos" in special else []
    parts += ["$A"]
    parts += [special["eos"]] if ends and "eos" in special else []
    if len(parts) > 1:
        second = [f"{part}:1" if part != "$A" else "$B:1" for part in parts]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=parts,
            pair=[f"{part}:0" for part in parts] + second,
            special_tokens=[
                (part, tokenizer.token_to_id(part)) for part in parts if part != "$A"
            ],
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(
            f"{metadata['general.architecture']}.context_length"
        ),
        **{f"{name}_token": token for name, token in special.items()},
    }
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(config),
    }
    template = metadata.get("tokenizer.chat_template")
    if template:
        files["chat_template.jinja"] = template.encode()
    return files


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _byte_level(source: Gguf, count: int) -> tuple[Tokenizer, bool]:
    """Byte-level BPE, as GPT-2 introduced it."""
    metadata = source.metadata
    name = metadata.get("tokenizer.ggml.pre")
    if name not in PRE_TOKENIZERS:
        found = (
            "no pre-tokenizer is named"
            if name is None
            else f"the pre-tokenizer is {name!r}"
        )
        raise ValueError(
            f"{source.file}: {found} (tokenizer.ggml.pre); known are "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    tokens = metadata["tokenizer.ggml.tokens"][:count]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=name in WHOLE_FIRST,
        )
    )
    if name in NORMALIZERS:
        tokenizer.normalizer = NORMALIZERS[name]
    steps = PRE_TOKENIZERS[name]
    tokenizer.pre_tokenizer = (
        steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, name in BEGINS


def _sentence_piece(source: Gguf, count: int) -> tuple[Tokenizer, bool]:
    """SentencePiece's BPE: pieces with scores, unknown characters as bytes."""
    metadata = source.metadata
    tokens = metadata["tokenizer.ggml.tokens"][:count]
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None:
        raise ValueError(f"{source.file} lacks the key tokenizer.ggml.scores")
    kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    vocab = {token: i for i, token in enumerate(tokens)}
    merges: list[tuple[str, str, float]] = []
    for i, token in enumerate(tokens):
        if kinds[i] != NORMAL:
            continue
        halves = [
            (token[:at], token[at:], scores[i])
            for at in range(1, len(token))
            if token[:at] in vocab and token[at:] in vocab
        ]
        merges += sorted(halves, key=lambda half: (vocab[half[0]], vocab[half[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(left, right) for left, right, _ in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = metadata.get("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if spaced else replace
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", 1, 0)] if spaced else steps
    )
    return tokenizer, True
