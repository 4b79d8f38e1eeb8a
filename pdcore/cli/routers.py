"""Asking every router of a view the same thing, all at once. Addresses come from the keyspace only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from pdcore.cli.pass_key import NO_KEY, PassKey
from pdcore.topology.topology import Topology

CONNECT_S: Final = 2.0
AT_ONCE: Final = 64
MAX_ANSWER_BYTES: Final = 8 << 20

Params = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A router's answer. ``document`` is None unless it is a JSON object."""

    status: int
    document: dict[str, Any] | None

    @classmethod
    def of(cls, status: int, body: bytes) -> Said:
        """What ``body`` is worth."""
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        return cls(status=status, document=found if isinstance(found, dict) else None)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """There is no answer, and why."""

    why: str


async def ask_routers(
    view: Topology, path: str, params: Params, *, timeout_s: float, key: PassKey = NO_KEY
) -> dict[str, Said | Unreachable]:
    """The answer of every router of ``view`` to ``GET {admin URL}{path}``, by router id in order."""
    limit = asyncio.Semaphore(AT_ONCE)
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
    async with key.client(timeout) as client:

        async def ask(admin_url: str) -> Said | Unreachable:
            async with limit:
                try:
                    async with asyncio.timeout(timeout_s):
                        return await _get(client, admin_url.rstrip("/") + path, params)
                except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                    return Unreachable(str(error) or type(error).__name__)

        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(ask(one.admin_url)) for name, one in sorted(view.routers.items())
            }
        return {name: task.result() for name, task in asked.items()}


async def _get(client: httpx.AsyncClient, url: str, params: Params) -> Said:
    async with client.stream("GET", url, params=params) as answer:
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                break
        return Said.of(answer.status_code, bytes(body))
