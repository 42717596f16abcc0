"""A `Service` on a port, until a signal ends it."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator

import uvicorn

from jspec.server.http import Service

__all__ = ["bind", "run"]

BACKSTOP = 5.0
"""Seconds a shutdown may take beyond its grace."""


class _Uvicorn(uvicorn.Server):
    """Ends answers that outlast the grace, so that their readers are told."""

    def __init__(
        self, config: uvicorn.Config, late: Callable[[], None], grace: float
    ) -> None:
        super().__init__(config)
        self._late = late
        self._grace = grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._grace, self._late)
        await super().shutdown(sockets)
        timer.cancel()


def bind(host: str, port: int) -> socket.socket:
    """Takes a port, before anything slow: nobody can connect yet.

    Raises:
      ValueError: it cannot be had.
    """
    try:
        if not 0 <= port < 2**16:  # some systems take it modulo 2**16
            raise OverflowError("ports run from 0 to 65535")
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise ValueError(f"cannot listen on {host} port {port}: {error}") from None
    return taken


def run(
    service: Service,
    listener: socket.socket,
    *,
    grace: float = 10.0,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; then no request is taken any more.

    Args:
      service: what answers.
      listener: from `bind`; closed at the end.
      grace: seconds in which running answers may end; then they are ended.
      ready: called when requests are accepted.
    """
    config = uvicorn.Config(
        service.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=int(grace + BACKSTOP),
    )
    front = _Uvicorn(config, service.abort, grace)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

    async def serve() -> None:
        task = asyncio.ensure_future(front.serve(sockets=[listener]))
        while not (front.started or task.done()):
            await asyncio.sleep(0.01)
        if ready is not None and not task.done():
            ready()
        await task

    with _calm_signals():
        asyncio.run(serve())
    service.abort()


@contextlib.contextmanager
def _calm_signals() -> Generator[None]:
    """uvicorn raises what it caught once more, at its end: that shall do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, lambda *_: None) for one in caught}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
