"""A store whose calls fail on demand, wrapped around a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, Self, TypeVar

from pdcore.clock import SystemClock
from pdcore.errors import StoreRefused, StoreUnavailable
from pdcore.registry.store import (
    Committed,
    Condition,
    LeaseId,
    Put,
    Snapshot,
    Store,
    Stored,
    WatchMessage,
    Write,
)

T = TypeVar("T")
Fault = Literal["lost request", "lost answer"]


class ManualClock(SystemClock):
    """Time that passes when told to; sleeping passes it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class FaultyStore:
    """Counts calls. The call numbered ``fail_at`` (from 0) times out: before it took effect, or after it did.

    ``down``: every call times out without effect. ``full``: puts and grants are refused, as by an etcd without space.
    """

    def __init__(self, store: Store, fail_at: int | None = None, fault: Fault = "lost answer") -> None:
        self._store = store
        self._fail_at = fail_at
        self._fault = fault
        self.calls = 0
        self.down = False
        self.full = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def list(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._store.list(prefix))

    async def get(self, key: str) -> Stored | None:
        return await self._call(lambda: self._store.get(key))

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        if self.full and any(isinstance(write, Put) for write in writes):
            raise StoreRefused("database space exceeded")
        return await self._call(lambda: self._store.commit(conditions, writes))

    async def grant(self, ttl_s: int) -> LeaseId:
        if self.full:
            raise StoreRefused("database space exceeded")
        return await self._call(lambda: self._store.grant(ttl_s))

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._call(lambda: self._store.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._call(lambda: self._store.revoke(lease))

    def watch(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        return self._store.watch(prefix, after_revision)

    async def _call(self, perform: Callable[[], Awaitable[T]]) -> T:
        number, self.calls = self.calls, self.calls + 1
        if self.down or (number == self._fail_at and self._fault == "lost request"):
            raise StoreUnavailable("no answer in time")
        result = await perform()
        if number == self._fail_at:
            raise StoreUnavailable("no answer in time")
        return result
