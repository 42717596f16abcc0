"""What HTTP answers: completions, events of streams and errors, in OpenAI's shapes."""

import dataclasses
import itertools
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from jspec.params import Chunk, Completion, Speculation
from jspec.server.http_requests import Asked

__all__ = ["DONE", "Writer", "error_body", "event"]

DONE = b"data: [DONE]\n\n"

KINDS = {401: "authentication_error", 404: "not_found_error"}


def event(body: Any) -> bytes:
    """A server-sent event. All in ASCII: some clients split lines at U+2028."""
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode()


def error_body(
    message: str, status: int, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error of this status."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": message,
            "type": KINDS.get(status, kind),
            "param": param,
            "code": code,
        }
    }


class Writer:
    """Writes one response, whole or in events; all of it has one id."""

    def __init__(self, asked: Asked, model: str) -> None:
        """Begins.

        Args:
          asked: what is answered.
          model: the name it is told.
        """
        self._asked = asked
        self._id = f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._model = model
        self._created = int(time.time())

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The response that is no stream."""
        choices = []
        for index, completion in enumerate(completions):
            text = completion.text
            message = {"role": "assistant", "content": text, "refusal": None}
            choices.append(
                {
                    "index": index,
                    **({"message": message} if self._asked.chat else {"text": text}),
                    "logprobs": None,
                    "finish_reason": completion.finish_reason,
                    **self._ids(completion.token_ids),
                    "speculation": dataclasses.asdict(completion.speculation),
                }
            )
        kind = "chat.completion" if self._asked.chat else "text_completion"
        return self._head(kind) | {"choices": choices} | self._totals(completions)

    def opening(self, index: int) -> list[bytes]:
        """What comes before an answer's text."""
        if not self._asked.chat:
            return []
        return [self._event(index, delta={"role": "assistant", "content": ""})]

    def piece(
        self, index: int, chunk: Chunk, speculation: Speculation | None
    ) -> list[bytes]:
        """A piece of an answer.

        Args:
          index: of the answer.
          chunk: the piece.
          speculation: what drafting brought, with the last piece.
        """
        ids = self._ids(chunk.token_ids)
        end: dict[str, Any] = {}
        if chunk.finish_reason is not None and speculation is not None:
            end = {
                "finish_reason": chunk.finish_reason,
                "speculation": dataclasses.asdict(speculation),
            }
        shown = bool(chunk.text or ids.get("token_ids"))
        if not self._asked.chat:
            if not (shown or end):
                return []
            return [self._event(index, text=chunk.text, **ids, **end)]
        events = []
        if shown:
            delta = {"content": chunk.text}
            events.append(self._event(index, delta=delta, **ids))
        if end:
            events.append(self._event(index, delta={}, **end))
        return events

    def closing(self, completions: Sequence[Completion]) -> list[bytes]:
        """What comes after all answers."""
        if not self._asked.include_usage:
            return [DONE]
        body = self._head(self._chunk_kind) | {"choices": []}
        return [event(body | self._totals(completions)), DONE]

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._asked.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _ids(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"token_ids": list(token_ids)} if self._asked.return_token_ids else {}

    def _event(self, index: int, **choice: Any) -> bytes:
        usage = {"usage": None} if self._asked.include_usage else {}
        blank = {"index": index, "logprobs": None, "finish_reason": None}
        body = self._head(self._chunk_kind) | {"choices": [blank | choice]}
        return event(body | usage)

    def _totals(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Tokens and drafting of all answers; a prompt counts once, whatever `n`."""
        read = [one.usage for one in completions[:: self._asked.params.n]]
        prompt = sum(usage.prompt_tokens for usage in read)
        emitted = sum(one.usage.completion_tokens for one in completions)
        return {
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": emitted,
                "total_tokens": prompt + emitted,
                "prompt_tokens_details": {
                    "cached_tokens": sum(usage.cached_tokens for usage in read)
                },
            },
            "speculation": dataclasses.asdict(
                _together([one.speculation for one in completions], emitted)
            ),
        }


def _together(parts: Sequence[Speculation], emitted: int) -> Speculation:
    rounds = sum(part.rounds for part in parts)

    def positions(counts: list[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, itertools.zip_longest(*counts, fillvalue=0)))

    return Speculation(
        rounds=rounds,
        drafted=sum(part.drafted for part in parts),
        accepted=sum(part.accepted for part in parts),
        drafted_per_position=positions([part.drafted_per_position for part in parts]),
        accepted_per_position=positions([part.accepted_per_position for part in parts]),
        tau=emitted / rounds if rounds else 0.0,
        lossy=any(part.lossy for part in parts),
    )
