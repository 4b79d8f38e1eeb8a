"""The bootstrap protocol's five calls over HTTP. Errors are ``{"detail": sentence}``, with ``field`` where one is to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pdcore.errors import StoreRefused
from pdcore.registry.facade import bodies, documents
from pdcore.registry.facade.bodies import Wrong
from pdcore.registry.facade.bootstrap import Bootstrap, Differs, NotYet

MAX_BODY_BYTES: Final = 1 << 20
BODY_S: Final = 10.0
UNKNOWN: Final = -1
OK: Final[Mapping[str, object]] = {"status": "ok"}

_STATUS: Final[Mapping[type[Exception], int]] = {Wrong: 400, Differs: 409, NotYet: 503, StoreRefused: 503}
Handler = Callable[[Request], Awaitable[Response]]


def create_app(bootstrap: Bootstrap) -> Starlette:
    """The application of one instance."""
    calls = _Calls(bootstrap)
    routes = [
        Route("/bootstrap/register_rank", calls.register_rank, methods=["PUT"]),
        Route("/bootstrap/route", calls.route, methods=["GET"]),
        Route("/bootstrap/register_dp_rank", calls.register_dp_rank, methods=["POST"]),
        Route("/bootstrap/query_dp_ranks", calls.query_dp_ranks, methods=["POST"]),
        Route("/bootstrap/health", calls.health, methods=["GET"]),
    ]
    refusals = dict.fromkeys(_STATUS, _refused)
    return Starlette(routes=routes, exception_handlers={**refusals, HTTPException: _http_error})


class _Calls:
    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap

    async def register_rank(self, request: Request) -> Response:
        rank = bodies.parse_rank(bodies.decode(await _body(request)))
        await self._bootstrap.register(rank)
        return _json(OK)

    async def route(self, request: Request) -> Response:
        table = self._bootstrap.route()
        return _json({"detail": documents.NOT_READY}, 503) if table is None else _json(table)

    async def register_dp_rank(self, request: Request) -> Response:
        document = bodies.decode(await _body(request))
        self._bootstrap.put_room(*bodies.parse_dp_rank(document, self._bootstrap.dp_size))
        return _json(OK)

    async def query_dp_ranks(self, request: Request) -> Response:
        rooms = bodies.parse_query(bodies.decode(await _body(request)))
        found = await self._bootstrap.query(rooms)
        return _json({str(room): found.get(room, UNKNOWN) for room in rooms})

    async def health(self, request: Request) -> Response:
        return _json({**OK, "ready": self._bootstrap.route() is not None})


async def _body(request: Request) -> bytes:
    """The whole body; 413 when it is too long, 408 when it takes too long."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the caller left while it was sending") from None
    return bytes(body)


def _json(document: Mapping[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
    field = getattr(error, "field", None)
    return _json({"detail": str(error)} if field is None else {"detail": str(error), "field": field}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"detail": error.detail}, error.status_code)
