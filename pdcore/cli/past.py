"""Whom the commands ask about the past: the store, the journal if there is one, the routers' last hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx

from pdcore.cli.event_lines import shown_time
from pdcore.cli.moments import AtRevision, AtTime
from pdcore.cli.pass_key import NO_KEY, PassKey
from pdcore.config import CommonConfig
from pdcore.errors import StoreError
from pdcore.registry.connect import open_store
from pdcore.registry.history import History
from pdcore.registry.journal.reader import NotKept
from pdcore.registry.journal.running import journals
from pdcore.registry.ring import Remembered, read_remembered
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology

ANSWER_S: Final = 5.0
AT_ONCE: Final = 16
MAX_ANSWER_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Past:
    """An open store and what can be known of its past."""

    store: Store
    history: History
    key: PassKey = NO_KEY

    async def view(self, moment: AtRevision | AtTime) -> Topology:
        """The view then. Raises :class:`NotKept` saying what can be asked for."""
        if isinstance(moment, AtRevision):
            return await self.history.at(moment.revision)
        try:
            return await self.history.at_time(moment.time_ms)
        except NotKept as reason:
            return await self._view_of_a_router(moment.time_ms, reason)

    async def _view_of_a_router(self, time_ms: int, reason: NotKept) -> Topology:
        answers = await _ask_routers(await self.history.now(), time_ms, self.key)
        known = [answer for answer in answers if answer.time_ms is not None]
        if known:
            return max(known, key=lambda answer: answer.revision).topology
        oldest = [answer.oldest_ms for answer in answers if answer.oldest_ms is not None]
        journaled = await self.history.oldest_ms()
        oldest += [] if journaled is None else [journaled]
        raise NotKept(
            f"nobody knows the view of {shown_time(time_ms)} ({reason}); "
            + (
                f"the oldest time that works is {shown_time(min(oldest))}"
                if oldest
                else "neither a journal nor a router keeps times, so only the present works"
            )
        )


@asynccontextmanager
async def open_past(config: CommonConfig, key: PassKey = NO_KEY) -> AsyncIterator[Past]:
    """Open the store, and the journal's Redis if one is named; ``key`` is for routers."""
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(open_store(config.store_access))
        streams = None
        if config.redis_access is not None:
            streams = await opened.enter_async_context(journals(config.redis_access, config.cluster))
        yield Past(store, History(store, Keyspace(cluster=config.cluster), streams), key)


async def _ask_routers(view: Topology, time_ms: int, key: PassKey) -> list[Remembered]:
    """What each router that answers says about ``time_ms``."""
    limit = asyncio.Semaphore(AT_ONCE)
    async with key.client(ANSWER_S) as client:

        async def ask(admin_url: str) -> Remembered | None:
            async with limit:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        return await _fetch(client, f"{admin_url.rstrip('/')}/pdcore/history", time_ms)
                except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, StoreError):
                    return None  # another one may know; if none does, that is what the person is told

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(router.admin_url)) for router in view.routers.values()]
    return [answer for task in asked if (answer := task.result()) is not None]


async def _fetch(client: httpx.AsyncClient, url: str, time_ms: int) -> Remembered:
    async with client.stream("GET", url, params={"at_ms": time_ms}) as answer:
        answer.raise_for_status()
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise StoreError("the answer is too long")
    return read_remembered(bytes(body))
