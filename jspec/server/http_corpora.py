"""Corpora over HTTP: listed, added and removed by name."""

import dataclasses
import json
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jspec.server.http_requests import Refusal
from jspec.server.local import Server

__all__ = ["Corpora"]


class Corpora:
    """The endpoints of one server's corpora."""

    def __init__(
        self, server: Server, read: Callable[[Request], Awaitable[bytes]]
    ) -> None:
        """Serves nothing yet.

        Args:
          server: whose.
          read: a body, unless it is too large.
        """
        self._server = server
        self._read = read

    async def listed(self, request: Request) -> Response:
        """Every corpus and how far it is."""
        corpora = [dataclasses.asdict(one) for one in self._server.corpora()]
        return JSONResponse({"object": "list", "data": corpora})

    async def one(self, request: Request) -> Response:
        """Begins to load a corpus, or forgets it."""
        name = request.path_params["name"]
        if request.method == "DELETE":
            try:
                self._server.remove_corpus(name)
            except ValueError as error:
                raise Refusal(str(error), status=404, code="no_corpus") from None
            return JSONResponse({"name": name, "deleted": True})
        documents = _documents(await self._read(request))
        try:
            self._server.add_corpus(name, documents)
        except ValueError as error:
            raise Refusal(str(error), param="documents") from None
        return JSONResponse({"name": name, "status": "loading"}, 202)


def _documents(body: bytes) -> list[str]:
    try:
        asked = json.loads(body)
    except ValueError:
        raise Refusal("the body is not JSON") from None
    if not isinstance(asked, dict) or set(asked) != {"documents"}:
        raise Refusal("the body must be an object with 'documents' and no more")
    documents = asked["documents"]
    texts = isinstance(documents, list)
    if not texts or not all(isinstance(text, str) for text in documents):
        raise Refusal("documents must be a list of strings", param="documents")
    return documents
