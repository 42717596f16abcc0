"""What an HTTP body asks for: prompts and parameters, or one sentence of refusal."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jspec.params import UNSUPPORTED, SamplingParams

__all__ = ["INERT", "REFUSED", "Asked", "Refusal", "parse"]

MOST_ANSWERS = 256
"""Prompts times `n`, in one request."""

MOST: Mapping[str, int] = MappingProxyType(
    {
        "messages": 2048,
        "stop": 64,
        "stop_token_ids": 64,
        "bad_words": 64,
        "logit_bias": 1024,
    }
)
"""Entries of a list or mapping."""

INERT = frozenset(
    {"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "user"}
)
"""Accepted and without effect: they say who asks, why, or how it is billed."""

REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": (),
        "best_of": (1,),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "grammar": (),
        "guided_choice": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_regex": (),
        "json_schema": (),
        "logprobs": (False,),
        "lora": (),
        "modalities": (["text"],),
        "parallel_tool_calls": (False, True),
        "prediction": (),
        "prompt_logprobs": (),
        "reasoning_effort": (),
        "regex": (),
        "response_format": ({"type": "text"},),
        "store": (False,),
        "suffix": ("",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
        "verbosity": (),
        "web_search_options": (),
    }
)
"""Known and not supported, unless the value is one of these, which ask for nothing."""

SAMPLING = frozenset(
    field.name
    for field in dataclasses.fields(SamplingParams)
    if field.name not in {*UNSUPPORTED, *REFUSED, "max_tokens"}
)
"""Fields that are passed on as they are."""

COMMON = SAMPLING | {
    "max_completion_tokens",
    "max_tokens",
    "model",
    "return_token_ids",
    "stream",
    "stream_options",
}

COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions if none is given, as at OpenAI."""

ROLES = ("system", "developer", "user", "assistant")


class Refusal(Exception):
    """A request that is not served.

    Attributes:
      status: of the HTTP response.
      message: one sentence.
      param: the field it is about.
      code: a word for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        """Says why, and how HTTP says it."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


type Prompt = str | list[int] | list[dict[str, str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as it was understood.

    Attributes:
      chat: whether it came to /v1/chat/completions.
      model: the name it gave; `None`: none.
      prompts: texts, token ids or conversations.
      params: `n` answers to each of them.
      stream: as server-sent events.
      include_usage: an event with the usage at the end of a stream.
      return_token_ids: each choice says its ids.
    """

    chat: bool
    model: str | None
    prompts: list[Prompt]
    params: SamplingParams
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False


def parse(body: bytes, *, chat: bool, room: int) -> Asked:
    """Reads a body.

    Args:
      body: JSON.
      chat: messages are expected, not a prompt.
      room: most tokens of a text; a chat answer's limit if it names none.

    Raises:
      Refusal: it cannot be served; nothing in it is ignored but `INERT`.
    """
    fields = {name: v for name, v in _object(body).items() if v is not None}
    _refuse_fields(fields, {"messages"} if chat else {"prompt"})
    for name, most in MOST.items():
        value = fields.get(name)
        if isinstance(value, list | dict) and len(value) > most:
            raise _wrong(name, f"must have at most {most} entries, not {len(value)}")
    prompts: list[Prompt] = [_messages(fields)] if chat else _prompts(fields)
    params = _params(fields, room if chat else COMPLETION_TOKENS)
    if len(prompts) * params.n > MOST_ANSWERS:
        raise Refusal(
            f"a request can have {MOST_ANSWERS} answers, not {len(prompts)} prompts "
            f"times n = {params.n}",
            param="n",
        )
    stream = _flag(fields, "stream")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise _wrong("model", "must be a string")
    return Asked(
        chat=chat,
        model=model,
        prompts=prompts,
        params=params,
        stream=stream,
        include_usage=_include_usage(fields, stream),
        return_token_ids=_flag(fields, "return_token_ids"),
    )


def _wrong(name: str, what: str) -> Refusal:
    return Refusal(f"{name} {what}", param=name)


def _object(body: bytes) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise Refusal(f"the body has {twice!r} twice in one object")
        return found

    def constant(name: str) -> None:
        raise Refusal(f"the body has {name}, which is not JSON")

    try:
        parsed = json.loads(body, object_pairs_hook=pairs, parse_constant=constant)
        if b"\\u" in body:
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeError:
        raise Refusal("the body has half a surrogate pair or is not UTF-8") from None
    except RecursionError:
        raise Refusal("the body is nested too deeply") from None
    except ValueError as error:
        raise Refusal(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise Refusal("the body must be a JSON object")
    return parsed


def _refuse_fields(fields: Mapping[str, Any], own: set[str]) -> None:
    """Names every field that would otherwise be ignored."""
    left = {name: v for name, v in fields.items() if name not in COMMON | INERT | own}
    refused = [
        name
        for name, value in left.items()
        if name in REFUSED and not any(_same(value, idle) for idle in REFUSED[name])
    ]
    unknown = [name for name in left if name not in REFUSED]
    reasons = []
    if refused:
        reasons.append(f"support {', '.join(refused)}")
    if unknown:
        listed = ", ".join(name[:64] for name in unknown[:16])
        more = f" and {len(unknown) - 16} more" if len(unknown) > 16 else ""
        reasons.append(f"know {listed}{more}")
    if reasons:
        raise Refusal(
            f"this server does not {' and does not '.join(reasons)}",
            param=(refused + unknown)[0][:64],
            code="unsupported_parameter",
        )


def _same(value: Any, idle: Any) -> bool:
    return type(value) is type(idle) and value == idle


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, "must be true or false")
    return value


def _include_usage(fields: Mapping[str, Any], stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise _wrong("stream_options", "must be an object")
    if not stream:
        raise _wrong("stream_options", "needs stream to be true")
    left = [
        name
        for name, value in options.items()
        if name != "include_usage" and not (name == "include_obfuscation" and not value)
    ]
    if left:
        raise Refusal(
            f"this server does not support {', '.join(left)[:256]} of stream_options",
            param="stream_options",
            code="unsupported_parameter",
        )
    return _flag({n: v for n, v in options.items() if v is not None}, "include_usage")


def _params(fields: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    given = {name: fields[name] for name in SAMPLING if name in fields}
    limits = {
        name: fields[name]
        for name in ("max_tokens", "max_completion_tokens")
        if name in fields
    }
    if len(limits) == 2 and limits["max_tokens"] != limits["max_completion_tokens"]:
        raise Refusal(
            "max_tokens and max_completion_tokens are one limit, and differ",
            param="max_tokens",
        )
    given["max_tokens"] = next(iter(limits.values()), max_tokens)
    bias = given.get("logit_bias")
    if isinstance(bias, dict):
        try:
            given["logit_bias"] = {_token(key): value for key, value in bias.items()}
        except ValueError:
            raise _wrong("logit_bias", "must have token ids as its keys") from None
    try:
        return SamplingParams(**given)
    except ValueError as error:
        sentence = str(error)
        named = sentence.split(" ", 1)[0]
        raise Refusal(sentence, param=named if named in COMMON else None) from None


def _token(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 12):
        raise ValueError
    return int(key)


def _prompts(fields: Mapping[str, Any]) -> list[Prompt]:
    prompt = fields.get("prompt")
    right = "must be a string, a list of token ids, or a list of one or the other"
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _wrong("prompt", right)
    if _are_ids(prompt):
        return [prompt]
    if all(isinstance(p, str) for p in prompt) or all(
        isinstance(p, list) and _are_ids(p) for p in prompt
    ):
        return list(prompt)
    raise _wrong("prompt", right)


def _are_ids(ids: Sequence[Any]) -> bool:
    return all(isinstance(i, int) and not isinstance(i, bool) for i in ids)


def _messages(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "must be a list of at least one message")
    return [_message(f"messages[{i}]", m) for i, m in enumerate(messages)]


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise Refusal(f"{where} must be an object", param="messages")
    role = message.get("role")
    if role not in ROLES:
        raise Refusal(
            f"{where}.role must be one of {', '.join(ROLES)}", param="messages"
        )
    left = [
        name
        for name, value in message.items()
        if name not in ("role", "content") and value is not None and value != []
    ]
    if left:
        raise Refusal(
            f"this server does not support {', '.join(left)[:256]} of {where}",
            param="messages",
            code="unsupported_parameter",
        )
    role = "system" if role == "developer" else role
    return {"role": role, "content": _content(where, message.get("content"))}


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Refusal(
            f"{where}.content must be text or a list of parts", param="messages"
        )
    texts = []
    for part in content:
        known = isinstance(part, dict) and part.get("type") == "text"
        if not known or set(part) - {"type", "text"}:
            raise Refusal(
                f"{where}.content can only have parts with a type, 'text', and a text",
                param="messages",
                code="unsupported_parameter",
            )
        if not isinstance(part.get("text"), str):
            raise Refusal(f"{where}.content has a part without text", param="messages")
        texts.append(part["text"])
    return "\n".join(texts)
