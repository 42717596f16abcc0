"""What a caller asks for and what comes back: frozen, checked, free of jax."""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

__all__ = [
    "UNSUPPORTED",
    "Chunk",
    "Completion",
    "FinishReason",
    "SamplingParams",
    "Speculation",
    "Usage",
    "refuse_unsupported",
]

type FinishReason = Literal["stop", "length", "abort", "error"]

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "logprobs": "log-probabilities",
        "json_schema": "structured output",
        "regex": "structured output",
        "grammar": "structured output",
        "lora": "adapters",
    }
)
"""Fields that this version cannot honour, and what each would need."""

GREEDY_BELOW = 1e-5
"""A lower temperature is 0: dividing logits by it would leave float32's range."""

type Rule = tuple[str, Callable[[Any], Any]]
"""What a value must be, as a phrase, and its normal form; `ValueError`: it is not."""


def _integer(low: int, high: float = math.inf) -> Callable[[Any], int]:
    def normal(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ValueError
        value = int(value)
        if not low <= value <= high:
            raise ValueError
        return value

    return normal


def _number(inside: Callable[[float], bool]) -> Callable[[Any], float]:
    def normal(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError
        value = float(value)
        if not (math.isfinite(value) and inside(value)):
            raise ValueError
        return value

    return normal


def _temperature(value: Any) -> float:
    value = _number(lambda t: t >= 0)(value)
    return 0.0 if value < GREEDY_BELOW else value


def _many(element: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def normal(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, list | tuple | set | frozenset):
            raise ValueError
        return tuple(element(item) for item in value)

    return normal


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _optional(normal: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else normal(value)


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ValueError
    token, bias = _integer(0), _number(lambda b: -100 <= b <= 100)
    return {token(key): bias(item) for key, item in value.items()}


def _schema(value: Any) -> str | dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else _text(value)


_PENALTY = ("a number from -2 to 2", _number(lambda p: -2 <= p <= 2))
_SEED = 2**64 - 1

_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "temperature": ("a finite number of at least 0 (0: greedy)", _temperature),
        "top_p": (
            "a number above 0 and at most 1 (1: every token)",
            _number(lambda p: 0 < p <= 1),
        ),
        "top_k": ("an integer of at least 0 (0: every token)", _integer(0, 2**31 - 1)),
        "min_p": (
            "a number from 0 to 1 (0: every token)",
            _number(lambda p: 0 <= p <= 1),
        ),
        "seed": (
            f"None or an integer from 0 to {_SEED}",
            _optional(_integer(0, _SEED)),
        ),
        "max_tokens": ("an integer of at least 1", _integer(1, 2**31 - 1)),
        "min_tokens": ("an integer of at least 0", _integer(0, 2**31 - 1)),
        "stop": ("a non-empty string or several of them", _many(_text)),
        "stop_token_ids": (
            "a list of token ids, integers of at least 0",
            _many(_integer(0, 2**31 - 1)),
        ),
        "ignore_eos": ("True or False", _flag),
        "logprobs": ("None or an integer of at least 0", _optional(_integer(0))),
        "presence_penalty": _PENALTY,
        "frequency_penalty": _PENALTY,
        "repetition_penalty": (
            "a finite number above 0 (1: none)",
            _number(lambda p: p > 0),
        ),
        "logit_bias": (
            "None or a mapping of token ids to numbers from -100 to 100",
            _optional(_bias),
        ),
        "bad_words": ("a non-empty string or several of them", _many(_text)),
        "json_schema": ("None, a JSON schema or its text", _optional(_schema)),
        "regex": ("None or a non-empty string", _optional(_text)),
        "grammar": ("None or a non-empty string", _optional(_text)),
        "num_speculative_tokens": (
            "None or an integer of at least 0",
            _optional(_integer(0)),
        ),
        "n": ("an integer of at least 1", _integer(1)),
        "lora": ("None or the name of an adapter", _optional(_text)),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request wants its text.

    Attributes:
      temperature: 0: greedy.
      top_p: the smallest set of likeliest tokens that holds this much probability.
      top_k: only so many of the likeliest tokens; 0: all.
      min_p: only tokens at least this share as likely as the likeliest.
      seed: the same seed gives the same text, whatever runs beside it.
      max_tokens: most tokens to emit.
      min_tokens: no stop token, and no stop string, before so many were emitted.
      stop: strings that end the text, which is cut before them.
      stop_token_ids: tokens that end the text besides the model's own.
      ignore_eos: go on past the model's end-of-text tokens.
      logprobs: so many of the likeliest tokens with each emitted one.
      presence_penalty: taken from the logits of tokens already emitted.
      frequency_penalty: the same, for each time they were.
      repetition_penalty: divides the logits of tokens of the prompt and the text.
      logit_bias: added to the logits of these tokens.
      bad_words: texts never to emit, at the start of a word or within one.
      json_schema: the text must be JSON of this schema.
      regex: the text must match.
      grammar: the text must be derivable.
      num_speculative_tokens: most drafted tokens a round; `None`: the server decides.
      n: answers to each prompt.
      lora: the adapter to use.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 128
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = dataclasses.field(default=None, hash=False)
    bad_words: str | Sequence[str] = ()
    json_schema: str | Mapping[str, Any] | None = dataclasses.field(
        default=None, hash=False
    )
    regex: str | None = None
    grammar: str | None = None
    num_speculative_tokens: int | None = None
    n: int = 1
    lora: str | None = None

    def __post_init__(self) -> None:
        """Brings every field to its normal form.

        Raises:
          ValueError: with one sentence for each field that cannot be right.
        """
        wrong = []
        for name, (right, normal) in _RULES.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, normal(value))
            except (ValueError, OverflowError):
                wrong.append(f"{name} must be {right}, not {value!r}")
        if not wrong and self.min_tokens > self.max_tokens:
            wrong.append(
                f"min_tokens must be at most max_tokens, {self.max_tokens}, "
                f"not {self.min_tokens}"
            )
        forms = [
            name
            for name in ("json_schema", "regex", "grammar")
            if getattr(self, name) is not None
        ]
        if len(forms) > 1:
            wrong.append(
                f"{' and '.join(forms)} are set, and a text can follow only one of them"
            )
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop`, always a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def refuse_unsupported(params: SamplingParams) -> None:
    """Refuses what this version would have to ignore.

    Raises:
      ValueError: naming every field of `UNSUPPORTED` that differs from its default.
    """
    asked = [
        field.name
        for field in dataclasses.fields(params)
        if field.name in UNSUPPORTED and getattr(params, field.name) != field.default
    ]
    if asked:
        reasons = ", ".join(f"{name} ({UNSUPPORTED[name]})" for name in asked)
        raise ValueError(f"this version of jspec does not support {reasons}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens read and delivered.

    Attributes:
      prompt_tokens: ids of the prompt.
      completion_tokens: ids delivered.
      cached_tokens: prompt tokens whose keys and values were already there.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speculation:
    """What drafting brought, counted on delivered tokens alone.

    A round that a stop or the limit cut counts only up to the cut: drafted tokens
    behind it are neither drafted nor accepted.

    Attributes:
      rounds: target passes that delivered something.
      drafted: drafted tokens that were judged or stood behind a refused one.
      accepted: those of them that were delivered.
      drafted_per_position: rounds that drafted at least so many tokens, from one on.
      accepted_per_position: rounds that delivered at least so many drafted tokens.
      tau: delivered tokens per target pass, the bonus included.
      lossy: whether drafts were kept by a rule that changes the output's law.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    tau: float = 0.0
    lossy: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a text as it grows.

    Attributes:
      text: whole characters; none that may yet belong to a stop string.
      token_ids: emitted with it. The text of the last may come with the next chunk.
      finish_reason: set on the last chunk alone.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """A finished text.

    Attributes:
      text: up to, and without, what ended it.
      token_ids: up to, and with, the token that ended it.
      finish_reason: "stop": a stop token or string; "length": `max_tokens` or the
        model's limit; "abort": the caller; "error": the server.
      logprobs: one entry per token, where they were asked for.
      usage: tokens read and delivered.
      speculation: what drafting brought.
      error: what went wrong, if `finish_reason` is "error".
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[Any] | None = None
    usage: Usage
    speculation: Speculation
    error: str | None = None
