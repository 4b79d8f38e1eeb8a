"""``/workers``: the engines at fixed addresses listed, added and removed, in the words of the Rust routers.

Their ``regular`` worker is our unified instance. Changes are accepted (202) and hold at once for new requests; a new
engine is used when it answers. Whoever may call this decides where prompts go, so it belongs behind the admin door.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdcore.config.targets import Target, TargetRole, target
from pdcore.errors import ApiError
from pdcore.registry.overlay.fleet import Fleet
from pdcore.router.fixed.fleet import FixedFleet, TooMany
from pdcore.router.load import Ledger
from pdcore.router.models import named

MAX_BYTES: Final = 16 << 10
WorkerType = Literal["prefill", "decode", "regular"]

_ROLES: Final[Mapping[WorkerType, TargetRole]] = {
    "prefill": "prefill",
    "decode": "decode",
    "regular": "unified",
}
_TYPES: Final[Mapping[TargetRole, WorkerType]] = {role: kind for kind, role in _ROLES.items()}


class NewWorker(msgspec.Struct, forbid_unknown_fields=True):
    """What to add. What an engine runs on makes no difference here; only HTTP is spoken."""

    url: str
    worker_type: WorkerType = "regular"
    bootstrap_port: int | None = None
    connection_mode: Literal["http"] = "http"
    runtime_type: str | None = None


class WorkersEndpoint:
    """The handlers over one fixed fleet. ``fleet`` says whom the network speaks against."""

    def __init__(self, fixed: FixedFleet, fleet: Fleet, ledger: Ledger) -> None:
        self._fixed = fixed
        self._fleet = fleet
        self._ledger = ledger

    async def list(self, _: Request) -> Response:
        """All of them."""
        counts = Counter(_TYPES[one.role] for one in self._fixed.targets.values())
        return JSONResponse(
            {
                "workers": [self._shown(name) for name in sorted(self._fixed.targets)],
                "total": len(self._fixed.targets),
                "stats": {f"{kind}_count": counts[kind] for kind in _ROLES},
            }
        )

    async def add(self, request: Request) -> Response:
        """Take one in."""
        made = _target(await _body(request))
        try:
            name = await self._fixed.add(made)
        except TooMany as wrong:
            raise ApiError("rate_limited", str(wrong)) from wrong
        return _accepted(
            name, url=made.url, location=f"/workers/{name}", message="it is used when it answers"
        )

    async def get(self, request: Request) -> Response:
        """One of them, by id or URL."""
        return JSONResponse(self._shown(self._named(request)))

    async def remove(self, request: Request) -> Response:
        """Give one no new requests."""
        name = self._named(request)
        url = self._fixed.targets[name].url
        await self._fixed.remove(name)
        return _accepted(name, url=url, message="what it is working on may end")

    def _named(self, request: Request) -> str:
        asked = unquote(str(request.path_params["worker_id"]))
        for name, one in self._fixed.targets.items():
            if asked in (name, one.url):
                return name
        raise ApiError("not_found", f"there is no worker {asked[:256]!r}")

    def _shown(self, name: str) -> dict[str, object]:
        one, standing = self._fixed.targets[name], self._fixed.standing(name)
        suspect = self._fleet.overlay.suspects.get(name)
        why = standing.why if suspect is None else suspect.why
        models = named(standing.models)
        return {
            "id": name,
            "url": one.url,
            "worker_type": _TYPES[one.role],
            "is_healthy": standing.is_up and suspect is None,
            "load": self._ledger.in_flight(name),
            "model_id": models[0] if models else None,
            "models": models,
            "bootstrap_port": self._fixed.bootstrap_port(name),
            "connection_mode": "http",
            **({"reason": why} if why else {}),
        }


def _accepted(name: str, **more: str) -> Response:
    return JSONResponse({"status": "accepted", "worker_id": name, **more}, status_code=202)


def _target(new: NewWorker) -> Target:
    role = _ROLES[new.worker_type]
    port = new.bootstrap_port
    if port is not None and role != "prefill":
        raise ApiError(
            "invalid_request", "only a prefill worker has a bootstrap port", param="bootstrap_port"
        )
    try:
        return target(role, new.url if port is None else f"{new.url},bootstrap={port}")
    except ValueError as wrong:
        raise ApiError("invalid_request", f"url: {wrong}", param="url") from wrong


async def _body(request: Request) -> NewWorker:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise ApiError("body_too_large", f"the body is larger than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=NewWorker)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise ApiError("invalid_request", f"the body is no worker: {wrong}") from wrong
