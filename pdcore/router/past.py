"""``/pdcore/history``: what this router's view was at a time of the last hour."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pdcore.errors import ApiError
from pdcore.registry.ring import Ring, remembered

LATEST_MS: Final = 1 << 53


class PastEndpoint:
    """Answers ``{oldest_ms, time_ms, revision, keys}`` for ``at_ms``; only ``oldest_ms`` when it knows no more."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    async def get(self, request: Request) -> Response:
        return Response(remembered(self._ring, _at_ms(request.query_params)), media_type="application/json")


def _at_ms(query: QueryParams) -> int:
    given = query.get("at_ms", "")
    at_ms = int(given) if given.isascii() and given.isdigit() and len(given) <= 16 else LATEST_MS + 1
    if at_ms > LATEST_MS:
        why = f"at_ms must be milliseconds since 1970, got {given[:32]!r}"
        raise ApiError("invalid_request", why, param="at_ms")
    return at_ms
