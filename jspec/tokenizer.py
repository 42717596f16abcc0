"""Text to token ids and back, out of a checkpoint's own tokenizer files."""

import datetime
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import tokenizers

__all__ = ["Tokenizer"]


class Tokenizer:
    """What tokenizer.json says, with the chat template that came along.

    Reads `tokenizer.json` itself, whose post-processor alone says what begins and
    ends a text, as in transformers 5 (`add_bos_token` beside it counts for nothing).
    A directory without one goes through transformers' `AutoTokenizer`, which knows
    the older containers.
    """

    def __init__(self, path: str | Path) -> None:
        """Reads the tokenizer in a directory.

        Raises:
          ValueError: there is none, or it cannot be read.
        """
        self._path = Path(path)
        self._settings = _object(self._path / "tokenizer_config.json")
        self._backend = _backend(self._path)
        self._bytes = _byte_rule(json.loads(self._backend.to_str()))
        added = self._backend.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added.items()}

    @functools.cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token to id, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    @functools.cached_property
    def tokens(self) -> dict[int, str]:
        """Id to token, in order of ids."""
        pairs = sorted((i, token) for token, i in self.vocabulary.items())
        return dict(pairs)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.tokens, default=-1) + 1

    @functools.cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text, as checkpoint and tokenizer name them."""
        manifest = _object(self._path / "jspec.json").get("config", {})
        generation = _object(self._path / "generation_config.json")
        named: list[int] = list(manifest.get("eos_token_ids", ()))
        listed = generation.get("eos_token_id")
        if listed is not None:
            named += listed if isinstance(listed, list) else [listed]
        token = self._special("eos_token")
        if token is not None and token in self.vocabulary:
            named.append(self.vocabulary[token])
        return tuple(dict.fromkeys(named))

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, where there is one."""
        token = self._special("bos_token")
        return None if token is None else self.vocabulary.get(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; special tokens written in it count as themselves."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; bytes that are no character yet become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], **variables: Any
    ) -> list[int]:
        """The ids of a conversation, up to where the model is to answer.

        Args:
          messages: each with "role" and "content".
          variables: of the template, such as `tools` or `enable_thinking`.

        Raises:
          ValueError: there is no chat template, or it refuses the messages.
        """
        text = self.render(messages, **variables)
        return self.encode(text, add_special_tokens=False)

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a conversation, up to where the model is to answer."""
        if self._template is None:
            raise ValueError(
                f"{self._path} has no chat template: give the prompt as text"
            )
        special = {
            f"{name}_token": self._special(f"{name}_token") or ""
            for name in ("bos", "eos", "unk", "pad")
        }
        plain = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        values = {"add_generation_prompt": True, "tools": None, "documents": None}
        try:
            return self._template.render(
                messages=plain, **(values | special | variables)
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refuses: {error}") from error

    @functools.cached_property
    def has_chat_template(self) -> bool:
        """Whether messages can be given."""
        return self._template is not None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; none for an id that is no token.

        Put together they are the text. (A SentencePiece tokenizer's text begins with
        a space that `decode` takes away.)
        """
        if token in self._added:
            return self._added[token].encode()
        piece = self.tokens.get(token)
        if piece is None:
            return b""
        if self._bytes == "level":
            table = _byte_table()
            if all(c in table for c in piece):
                return bytes(table[c] for c in piece)
        if self._bytes == "fallback":
            if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes.fromhex(piece[3:5])
            return piece.replace("▁", " ").encode()
        return piece.encode()

    def is_added(self, token: int) -> bool:
        """Whether an id was added to the vocabulary, as special tokens are."""
        return token in self._added

    def fingerprint(self) -> str:
        """The same for two tokenizers just when every id is the same token in both."""
        digest = hashlib.sha256()
        for i, token in self.tokens.items():
            digest.update(f"{i}\0{token}\0".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def first_difference(self, other: "Tokenizer") -> str | None:
        """A sentence on the first id that is not the same token in both; or `None`."""
        for i in range(max(self.size, other.size)):
            here, there = self.tokens.get(i), other.tokens.get(i)
            if here != there:
                ours = "no token" if here is None else repr(here)
                theirs = "no token" if there is None else repr(there)
                return f"token {i} is {ours} in one and {theirs} in the other"
        return None

    def _special(self, name: str) -> str | None:
        token = self._settings.get(name)
        if isinstance(token, Mapping):
            token = token.get("content")
        if token is None:
            token = _object(self._path / "special_tokens_map.json").get(name)
            token = token.get("content") if isinstance(token, Mapping) else token
        return token

    @functools.cached_property
    def _template(self) -> jinja2.Template | None:
        file = self._path / "chat_template.jinja"
        text: Any = None
        if file.is_file():
            text = file.read_text(encoding="utf-8")
        else:
            text = self._settings.get("chat_template")
            if text is None:
                text = _object(self._path / "chat_template.json").get("chat_template")
        if isinstance(text, list):
            named = {entry["name"]: entry["template"] for entry in text}
            text = named.get("default")
        return None if text is None else _environment().from_string(text)


def _object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    return parsed if isinstance(parsed, dict) else {}


def _backend(path: Path) -> tokenizers.Tokenizer:
    file = path / "tokenizer.json"
    if file.is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        return backend
    if not any((path / name).is_file() for name in ("tokenizer.model", "vocab.json")):
        raise ValueError(f"{path} holds no tokenizer")
    try:
        tokenizer: Any = _auto_tokenizer().from_pretrained(path, use_fast=True)
        return tokenizer.backend_tokenizer
    except Exception as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"transformers cannot read the tokenizer in {path}: {line}"
        ) from error


def _auto_tokenizer() -> Any:
    """transformers' `AutoTokenizer`, imported where it is needed, which takes seconds.

    Its advice that models need PyTorch is withheld, and nothing else: we use none.
    """
    logger = logging.getLogger("transformers")

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("PyTorch was not found")

    logger.addFilter(wanted)
    try:
        from transformers import AutoTokenizer
    finally:
        logger.removeFilter(wanted)
    return AutoTokenizer


def _byte_rule(settings: Mapping[str, Any]) -> str:
    decoder = settings.get("decoder") or {}
    kinds = {step["type"] for step in decoder.get("decoders", [decoder]) if step}
    if "ByteLevel" in kinds:
        return "level"
    return "fallback" if kinds & {"ByteFallback", "Metaspace"} else "plain"


@functools.cache
def _byte_table() -> dict[str, int]:
    """GPT-2's printable character for each byte, the other way round."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + n): byte for n, byte in enumerate(hidden)}


TAGS = {"generation"}
"""What `_Generation` reads."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model wrote; it prints what it holds."""

    tags = TAGS

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """As transformers sets it up, so that templates render alike."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    environment.filters["tojson"] = to_json
    names = cast(dict[str, Any], environment.globals)
    names |= {"raise_exception": refuse, "strftime_now": now}
    return environment
