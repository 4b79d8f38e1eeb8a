"""``/pdcore/revision``: up to which revision this router knows the keyspace, waiting until that is far enough."""

from __future__ import annotations

import math
from typing import Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdcore.errors import ApiError
from pdcore.registry.follower import Follower

HIGHEST_REVISION: Final = (1 << 63) - 1
LONGEST_WAIT_S: Final = 60.0
USUAL_WAIT_S: Final = 10.0
MAX_WAITING: Final = 64


class RevisionEndpoint:
    """Answers ``{revision, store_id, view_age_seconds}`` once the revision is at least ``at_least``.

    504 when it is not within ``timeout_s``, 429 while too many wait already. Mutable state: how many wait.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._waiting = 0

    async def get(self, request: Request) -> Response:
        at_least = _revision(request.query_params)
        timeout_s = _timeout_s(request.query_params)
        if self._waiting >= MAX_WAITING:
            raise ApiError(
                "rate_limited", f"{MAX_WAITING} requests wait for a revision already", retry_after_s=1
            )
        self._waiting += 1
        try:
            revision = await self._follower.wait_for(at_least, timeout_s)
        except TimeoutError as late:
            why = f"the view is at revision {self._follower.revision}, not {at_least}, after {timeout_s:g} s"
            raise ApiError("deadline_exceeded", why) from late
        finally:
            self._waiting -= 1
        age = self._follower.view_age_s()
        return JSONResponse(
            {
                "revision": revision,
                "store_id": self._follower.topology.store_id,
                "view_age_seconds": round(age, 3) if math.isfinite(age) else None,
            }
        )


def _revision(query: QueryParams) -> int:
    given = query.get("at_least", "0")
    revision = (
        int(given) if given.isascii() and given.isdigit() and len(given) <= 19 else HIGHEST_REVISION + 1
    )
    if revision > HIGHEST_REVISION:
        why = f"at_least must be a whole number from 0 to {HIGHEST_REVISION}, got {given[:32]!r}"
        raise ApiError("invalid_request", why, param="at_least")
    return revision


def _timeout_s(query: QueryParams) -> float:
    given = query.get("timeout_s", str(USUAL_WAIT_S))
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= LONGEST_WAIT_S:
        why = f"timeout_s must be seconds from 0 to {LONGEST_WAIT_S:g}, got {given[:32]!r}"
        raise ApiError("invalid_request", why, param="timeout_s")
    return timeout_s
