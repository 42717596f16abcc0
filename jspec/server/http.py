"""The OpenAI-compatible HTTP server: completions, chat, models, health, metrics.

One `Service` is all of its endpoints, which share what runs, and hence is long; bodies
are read in `http_requests`, and written in `http_answers`.
"""

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jspec.params import Chunk, Completion
from jspec.server.http_answers import DONE, Writer, error_body, event
from jspec.server.http_corpora import Corpora
from jspec.server.http_metrics import Metrics
from jspec.server.http_requests import Asked, Refusal, parse
from jspec.server.local import Handle, Server, _singles

__all__ = ["Service"]

MOST_BYTES = 8 * 2**20
"""Of a body."""

MOST_LIVE = 1024
"""Answers that run or wait; more are refused with 503."""

GONE = 499
"""The status of a response that nobody reads any more."""


class Service:
    """A `jspec.Server` behind HTTP.

    Attributes:
      app: the ASGI application.
      names: the model's; the first is the one it says.
    """

    def __init__(
        self,
        server: Server,
        *,
        name: str | None = None,
        api_key: str | None = None,
        most_bytes: int = MOST_BYTES,
        most_live: int = MOST_LIVE,
    ) -> None:
        """Serves nothing yet.

        Args:
          server: which answers; whoever made it closes it.
          name: the model's; `None`: the last part of the target's path.
          api_key: what /v1 asks for as a bearer token; `None`: nothing.
          most_bytes: of a body.
          most_live: answers that run or wait at once.
        """
        target = str(server.settings["target"])
        self.names = (name or _short(target), target)
        self._server = server
        self._room = int(server.settings["max_model_len"])
        self._most_bytes = most_bytes
        self._most_live = most_live
        self._live: set[Handle] = set()
        self._metrics = Metrics(server.metrics)
        self._created = int(time.time())
        corpora = Corpora(server, self._read)
        routes: dict[str, tuple[Any, ...]] = {
            "/v1/completions": (self._completions, "POST"),
            "/v1/chat/completions": (self._chat, "POST"),
            "/v1/models": (self._models, "GET"),
            "/v1/models/{model:path}": (self._model, "GET"),
            "/v1/corpora": (corpora.listed, "GET"),
            "/v1/corpora/{name}": (corpora.one, "PUT", "DELETE"),
            "/health": (self._health, "GET"),
            "/metrics": (self._show_metrics, "GET"),
        }
        inner = Starlette(
            routes=[
                Route(path, endpoint, methods=methods)
                for path, (endpoint, *methods) in routes.items()
            ],
            exception_handlers={
                Refusal: _refuse,
                HTTPException: _refuse_path,
                Exception: _fail,
            },
        )
        self.app: ASGIApp = _Door(inner, set(routes), api_key, self._metrics)

    def abort(self) -> None:
        """Ends every answer; their readers are told."""
        for handle in tuple(self._live):
            handle.abort()

    async def _completions(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _model(self, request: Request) -> Response:
        self._know(request.path_params["model"])
        return JSONResponse(self._about())

    async def _health(self, request: Request) -> Response:
        failed = self._server._failed
        if failed is not None:
            return JSONResponse({"status": "failed", "error": failed}, 503)
        return JSONResponse({"status": "ok"})

    async def _show_metrics(self, request: Request) -> Response:
        text, kind = self._metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    def _about(self) -> dict[str, Any]:
        return {
            "id": self.names[0],
            "object": "model",
            "created": self._created,
            "owned_by": "jspec",
            "max_model_len": self._room,
            "method": self._server.method,
            "num_speculative_tokens": self._server.num_speculative_tokens,
        }

    def _know(self, model: str | None) -> None:
        if model is not None and model not in self.names:
            raise Refusal(
                f"the model {model[:256]!r} does not exist; this server has "
                f"{self.names[0]!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        started = time.perf_counter()
        try:
            body = await self._read(request)
            asked, handles = await _while_read(request.receive, self._begin(body, chat))
        except ClientDisconnect:
            return Response(status_code=GONE)
        writer = Writer(asked, self.names[0])
        if asked.stream:
            return _Stream(
                self._events(writer, handles, started), lambda: self._release(handles)
            )
        try:
            completions = await _while_read(
                request.receive, self._finish(handles, started)
            )
        except ClientDisconnect:
            return Response(status_code=GONE)
        finally:
            self._release(handles)
        for completion in completions:
            _check(completion)
        return JSONResponse(writer.whole(completions))

    async def _read(self, request: Request) -> bytes:
        large = Refusal(
            f"the body has more than {self._most_bytes} bytes",
            status=413,
            code="body_too_large",
        )
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most_bytes:
            raise large
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._most_bytes:
                raise large
        return bytes(body)

    async def _begin(self, body: bytes, chat: bool) -> tuple[Asked, list[Handle]]:
        """Submits in a thread: long prompts take long to encode."""
        work = asyncio.get_running_loop().run_in_executor(
            None, self._submit, body, chat
        )
        try:
            asked, handles = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_abort_result)
            raise
        self._live.update(handles)
        return asked, handles

    def _submit(self, body: bytes, chat: bool) -> tuple[Asked, list[Handle]]:
        asked = parse(body, chat=chat, room=self._room)
        self._know(asked.model)
        own = _singles(asked.params)
        if len(self._live) + len(asked.prompts) * len(own) > self._most_live:
            raise Refusal(
                f"the server is overloaded: {len(self._live)} answers run or wait",
                status=503,
                code="overloaded",
            )
        tokenizer = self._server.tokenizer
        handles: list[Handle] = []
        try:
            for prompt in asked.prompts:
                ids: Any = prompt
                if isinstance(prompt, str):
                    ids = tokenizer.encode(prompt)
                elif asked.chat:
                    ids = tokenizer.chat([m for m in prompt if isinstance(m, Mapping)])
                for params in own:
                    handles.append(self._server.submit(ids, params))
        except BaseException as error:
            _abort(handles)
            if isinstance(error, ValueError):
                raise Refusal(str(error)) from None
            if isinstance(error, RuntimeError):  # closed, or the engine failed
                raise Refusal(str(error), status=503, code="unavailable") from None
            raise
        return asked, handles

    async def _finish(
        self, handles: Sequence[Handle], started: float
    ) -> list[Completion]:
        async with contextlib.aclosing(self._chunks(handles, started)) as chunks:
            async for _ in chunks:
                pass
        return [handle.result() for handle in handles]

    async def _events(
        self, writer: Writer, handles: Sequence[Handle], started: float
    ) -> AsyncGenerator[bytes]:
        for index in range(len(handles)):
            for text in writer.opening(index):
                yield text
        async with contextlib.aclosing(self._chunks(handles, started)) as chunks:
            async for index, chunk in chunks:
                speculation = None
                if chunk.finish_reason is not None:
                    completion = handles[index].result()
                    speculation = completion.speculation
                    try:
                        _check(completion)
                    except Refusal as error:
                        body = error_body(error.message, error.status, code=error.code)
                        yield event(body)
                        yield DONE
                        return
                for text in writer.piece(index, chunk, speculation):
                    yield text
        for text in writer.closing([handle.result() for handle in handles]):
            yield text

    async def _chunks(
        self, handles: Sequence[Handle], started: float
    ) -> AsyncGenerator[tuple[int, Chunk]]:
        """The chunks of several answers as they come, each with its answer's index."""
        arrived: asyncio.Queue[tuple[int, Chunk]] = asyncio.Queue()

        async def pump(index: int, handle: Handle) -> None:
            first, tokens = None, 0
            async for chunk in handle:
                now = time.perf_counter()
                if chunk.token_ids and first is None:
                    first = now
                    self._metrics.first.observe(first - started)
                tokens += len(chunk.token_ids)
                if chunk.finish_reason is not None:
                    self._live.discard(handle)
                    self._metrics.whole.observe(now - started)
                    if first is not None and tokens > 1:
                        self._metrics.each.observe((now - first) / (tokens - 1))
                arrived.put_nowait((index, chunk))

        pumps = [asyncio.create_task(pump(i, h)) for i, h in enumerate(handles)]
        try:
            left = len(handles)
            while left:
                index, chunk = await arrived.get()
                left -= chunk.finish_reason is not None
                yield index, chunk
        finally:
            for task in pumps:
                task.cancel()

    def _release(self, handles: Sequence[Handle]) -> None:
        """Ends answers that still run: nobody reads them any more."""
        self._live.difference_update(handles)
        _abort(handles)


class _Door:
    """Asks for the key and counts responses."""

    def __init__(
        self, app: ASGIApp, paths: set[str], api_key: str | None, metrics: Metrics
    ) -> None:
        self._app = app
        self._paths = paths
        self._key = None if api_key is None else f"Bearer {api_key}".encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responses.labels(path, str(message["status"])).inc()
            await send(message)

        if self._key is not None and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._key):
                body = error_body(
                    "the API key is missing or wrong", 401, code="invalid_api_key"
                )
                refused = JSONResponse(
                    body, 401, headers={"www-authenticate": "Bearer"}
                )
                await refused(scope, receive, count)
                return
        await self._app(scope, receive, count)


class _Stream(StreamingResponse):
    """Server-sent events; when the client leaves, the answers end."""

    def __init__(
        self, events: AsyncGenerator[bytes], release: Callable[[], None]
    ) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._events = events
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            async with contextlib.aclosing(self._events):
                await self.stream_response(send)

        try:
            with contextlib.suppress(ClientDisconnect):
                await _while_read(receive, write())
        finally:
            self._release()


async def _while_read[T](receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves.

    Raises:
      ClientDisconnect: it left.
    """

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.wait({task, left})


def _abort(handles: Sequence[Handle]) -> None:
    """Ends answers that still run."""
    for handle in handles:
        handle.abort()


def _abort_result(work: asyncio.Future[tuple[Asked, list[Handle]]]) -> None:
    if not work.cancelled() and work.exception() is None:
        _abort(work.result()[1])


def _check(completion: Completion) -> None:
    """Raises: the answer ended by no wish of its reader's."""
    if completion.finish_reason == "error":
        message = completion.error or "the server failed"
        raise Refusal(message, status=500, code="internal_error")
    if completion.finish_reason == "abort":
        raise Refusal("the server shuts down", status=503, code="unavailable")


def _short(target: str) -> str:
    """A name for a target: of a path its last part, anything else as it is."""
    path = target.rstrip("/")
    return path.rsplit("/", 1)[-1] if path.startswith(("/", ".", "~")) else path


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    body = error_body(error.message, error.status, param=error.param, code=error.code)
    later = {"retry-after": "1"} if error.status == 503 else None
    return JSONResponse(body, error.status, headers=later)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:256]}"
    message = f"there is no {what} ({error.detail})"
    return JSONResponse(
        error_body(message, error.status_code), error.status_code, error.headers
    )


async def _fail(request: Request, error: Exception) -> Response:
    message = f"the server failed: {type(error).__name__}"
    return JSONResponse(error_body(message, 500, code="internal_error"), 500)
