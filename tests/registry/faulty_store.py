"""A store that fails on command, around one that does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Generic, Self, TypeVar

from pdcore.errors import StoreUnavailable
from pdcore.registry.store import (
    Committed,
    Condition,
    LeaseId,
    Revision,
    Snapshot,
    Store,
    Stored,
    WatchMessage,
    Write,
)

StoreT = TypeVar("StoreT", bound=Store)


class HurriedClock:
    """Time that runs ``speed`` times as fast as the real one, and jumps when ``ahead_s`` is raised."""

    def __init__(self, speed: float = 200.0) -> None:
        self.speed = speed
        self.ahead_s = 0.0

    def now(self) -> float:
        return time.monotonic() * self.speed + self.ahead_s

    def wall(self) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)


class FaultyStore(Generic[StoreT]):
    """Passes everything to a store, except while it is ``down`` and for what it was told to do
    to revisions of a watch: drop the next ones, repeat all of them, or hold them back behind proofs of life.

    A memory store must prove its life often: a watch breaks at its next message.
    """

    def __init__(self, store: StoreT) -> None:
        self.store = store
        self.down = False
        self.drop_revisions = 0
        self.repeat_revisions = False
        self.hold_revisions = False
        self.break_next_message = False
        self.during_list: Callable[[], Awaitable[object]] | None = None
        self.before_watch: Callable[[], Awaitable[object]] | None = None
        self.lists_total = 0
        self._held: list[WatchMessage] = []
        self._told: list[WatchMessage] = []

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.store.__aexit__(*exc_info)

    async def list(self, prefix: str) -> Snapshot:
        self._check()
        self.lists_total += 1
        snapshot = await self.store.list(prefix)
        if self.during_list is not None:
            await self.during_list()
        return snapshot

    async def get(self, key: str) -> Stored | None:
        self._check()
        return await self.store.get(key)

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        self._check()
        return await self.store.commit(conditions, writes)

    async def grant(self, ttl_s: int) -> LeaseId:
        self._check()
        return await self.store.grant(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> float:
        self._check()
        return await self.store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> None:
        self._check()
        await self.store.revoke(lease)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        self._check()
        if self.before_watch is not None:
            before, self.before_watch = self.before_watch, None
            await before()
        async with self.store.watch(prefix, after_revision) as messages:
            async with aclosing(self._passed_on(messages)) as passed:
                yield passed

    async def _passed_on(self, messages: AsyncIterator[WatchMessage]) -> AsyncGenerator[WatchMessage, None]:
        async for message in messages:
            self._check()
            if self.break_next_message:
                self.break_next_message = False
                raise StoreUnavailable("the watch was cut")
            for passed in self._tampered(message):
                yield passed

    def _tampered(self, message: WatchMessage) -> Sequence[WatchMessage]:
        if not isinstance(message, Revision):
            released = [] if self.hold_revisions else self._held
            self._held = self._held if self.hold_revisions else []
            return [message, *released]
        if self.drop_revisions:
            self.drop_revisions -= 1
            return []
        if self.hold_revisions:
            self._held.append(message)
            return []
        self._told.append(message)
        return [message, *reversed(self._told)] if self.repeat_revisions else [message]

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("the store is down")
