"""A prefill leader's side of the room directory: says which DP rank took a room, and that a room is over.

What is to stand is said and never awaited; a task of its own makes the store agree, as many rooms in one write as
have gathered. Trouble with the store shows in :meth:`RoomWriter.statistics` and heals by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock, SystemClock
from pdcore.errors import StoreError, StoreUnavailable
from pdcore.registry.lease import retry_after_s
from pdcore.registry.rooms import names
from pdcore.registry.rooms.awaited import Awaited
from pdcore.registry.rooms.table import Batch, RoomTable

log = telemetry.logger(__name__)

LEAVE_S: Final = 3.0


class Writing(Protocol):
    """How batches reach one kind of store."""

    limit: int
    """Most puts and deletes of one batch."""

    @property
    def leases(self) -> int:
        """How many leases it holds."""
        ...

    async def write(self, batch: Batch) -> None:
        """Write all of it. Raises StoreError; it may have been written all the same."""
        ...

    async def keep(self) -> None:
        """Renew what is due and let go of what is idle. Raises StoreError."""
        ...

    def released(self, rooms: Iterable[int]) -> None:
        """These rooms are over but still stand."""
        ...

    def take_gone(self) -> tuple[int, ...]:
        """The rooms that have vanished with their lease since the last call."""
        ...

    def next_at(self) -> float:
        """When :meth:`keep` has something to do next."""
        ...

    async def withdraw(self, rooms: tuple[int, ...]) -> None:
        """Remove everything at once; ``rooms`` may stand. Raises StoreError."""
        ...

    async def close(self) -> None:
        """Close what this opened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatistics:
    """Where a writer stands. ``doomed`` are over but may still stand."""

    live: int
    unwritten: int
    doomed: int
    leases: int
    store_error: str | None


class RoomWriter:
    """Keeps one instance's rooms in the directory for the length of an ``async with``; leaving removes them.

    Mutable: ``_table``, ``_written`` (who waits for which room to stand), ``_failures``, ``_store_error``.
    """

    def __init__(self, writing: Writing, table: RoomTable, *, clock: Clock | None = None) -> None:
        self._writing = writing
        self._table = table
        self._clock = clock or SystemClock()
        self._written: Awaited[int, None] = Awaited(names.MOST_AWAITED)
        self._news = asyncio.Event()
        self._failures = 0
        self._store_error: str | None = None
        self._open = AsyncExitStack()

    def __repr__(self) -> str:
        state = "writing" if self._store_error is None else f"not writing ({self._store_error})"
        return f"<RoomWriter {state}, {len(self._table)} rooms>"

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(running_beside(self._run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._open.__aexit__(kind, error, trace)
        finally:
            await self._withdraw()
            await self._writing.close()

    def put(self, rooms: Mapping[int, int]) -> None:
        """DP rank by room; of a room put twice the newest counts. ValueError, and StoreRefused when too many are open."""
        names.check(rooms.items())
        self._table.put(rooms, self._clock.now())
        self._news.set()

    def release(self, rooms: Iterable[int]) -> None:
        """These rooms are over; one that is not open is no error."""
        self._end(rooms)
        self._news.set()

    def get(self, room: int) -> int | None:
        """The DP rank of an open room, whether it stands already or not."""
        return self._table.get(room)

    async def wait_written(self, rooms: Iterable[int], timeout_s: float) -> None:
        """Return once these open rooms stand. Raises StoreUnavailable with the last error when that takes longer."""
        pending = [room for room in rooms if not self._table.is_written(room)]
        if pending and len(await self._written.wait(pending, timeout_s)) < len(pending):
            raise StoreUnavailable(self._store_error or f"rooms were not written within {timeout_s:g} s")

    def statistics(self) -> WriterStatistics:
        """Where it stands now."""
        return WriterStatistics(
            live=len(self._table),
            unwritten=self._table.unwritten,
            doomed=self._table.doomed,
            leases=self._writing.leases,
            store_error=self._store_error,
        )

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._step()
            except StoreError as error:
                self._failures += 1
                self._note_store(str(error))
            else:
                self._failures = 0
                self._note_store(None)
            await self._pause()

    async def _step(self) -> None:
        now = self._clock.now()
        self._end(self._table.ended(now))
        if now >= self._writing.next_at():
            try:
                await self._writing.keep()
            finally:
                self._table.gone(self._writing.take_gone())
        batch = self._table.batch(self._clock.now(), self._writing.limit)
        if len(batch):
            await self._write(batch)

    def _end(self, rooms: Iterable[int]) -> None:
        self._writing.released(self._table.release(rooms, self._clock.now()))

    async def _write(self, batch: Batch) -> None:
        written = False
        try:
            await self._writing.write(batch)
            written = True
        finally:
            if not written:
                self._table.failed(self._clock.now())
            self._table.gone(self._writing.take_gone())
        for room in self._table.written():
            self._written.arrived(room, None)

    async def _pause(self) -> None:
        """Until there is something to write or to keep; after a failure, until the next try."""
        now = self._clock.now()
        if self._failures:
            await self._clock.sleep(retry_after_s(self._failures, random.random()))
            return
        idle_s = min(self._table.next_at(now), self._writing.next_at()) - now
        async with running_beside(self._ring_after(idle_s)):
            await self._news.wait()

    async def _ring_after(self, seconds: float) -> None:
        if seconds < float("inf"):
            await self._clock.sleep(max(0.0, seconds))
            self._news.set()

    async def _withdraw(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._writing.withdraw(self._table.standing)
        except (StoreError, TimeoutError) as error:
            log.info("rooms left to expire", rooms=len(self._table.standing), reason=str(error))

    def _note_store(self, error: str | None) -> None:
        """Log a change of state, not every failure."""
        if (error is None) != (self._store_error is None):
            if error is None:
                log.info("store takes rooms again")
            else:
                log.warning("store does not take our rooms; trying on", reason=error)
        self._store_error = error
