"""Rooms in the keyspace's store, followed by one watch per process, which begins when somebody first asks.

Whatever breaks the watch, the rooms are listed anew: they are few and short-lived, and a list is right after any kind
of trouble.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock
from pdcore.errors import StoreError
from pdcore.registry.lease import retry_after_s
from pdcore.registry.rooms import names
from pdcore.registry.rooms.awaited import Awaited
from pdcore.registry.rooms.names import RoomName
from pdcore.registry.rooms.readers import ReaderStatistics
from pdcore.registry.store import Revision, Store
from pdcore.topology.keys import Keyspace

log = telemetry.logger(__name__)

MOST_KNOWN: Final = 1 << 18


class StoreReader:
    """Resolves rooms of any instance. ``store`` is open and the caller's.

    Mutable: ``_known`` (oldest first), ``_evicted`` (how many were forgotten), ``_awaited`` (who waits for what).
    """

    def __init__(
        self, keyspace: Keyspace, store: Store, clock: Clock, *, most_known: int = MOST_KNOWN
    ) -> None:
        self._keyspace = keyspace
        self._prefix = names.prefix(keyspace)
        self._store = store
        self._clock = clock
        self._most_known = most_known
        self._known: dict[RoomName, int] = {}
        self._evicted = 0
        self._awaited: Awaited[RoomName, int] = Awaited(names.MOST_AWAITED)
        self._needed = asyncio.Event()
        self._store_error: str | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(running_beside(self._run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def resolve(self, instance_id: str, rooms: Iterable[int], timeout_s: float) -> dict[int, int]:
        """See :class:`~pdcore.registry.rooms.readers.RoomReader`."""
        self._needed.set()
        deadline = self._clock.now() + timeout_s
        wanted = [RoomName(instance_id, room) for room in rooms]
        found = await self._recall(wanted, timeout_s) if self._evicted else {}
        found |= {name: self._known[name] for name in wanted if name in self._known}
        missing = [name for name in wanted if name not in found]
        if missing:
            found |= await self._awaited.wait(missing, max(0.0, deadline - self._clock.now()))
        return {name.room: dp_rank for name, dp_rank in found.items()}

    def statistics(self) -> ReaderStatistics:
        """See :class:`~pdcore.registry.rooms.readers.RoomReader`."""
        return ReaderStatistics(
            known=len(self._known),
            awaited=len(self._awaited),
            evicted_total=self._evicted,
            store_error=self._store_error,
        )

    async def _run(self) -> None:
        await self._needed.wait()
        failures = 0
        while True:
            began = self._clock.now()
            try:
                await self._follow()
            except StoreError as error:
                self._note_store(str(error))
            failures = 1 if self._clock.now() - began > 1.0 else failures + 1
            await self._clock.sleep(retry_after_s(failures, random.random()))

    async def _follow(self) -> None:
        """Until the watch breaks."""
        snapshot = await self._store.list(self._prefix)
        self._known.clear()
        for key, stored in snapshot.entries.items():
            self._learn(key, stored.value)
        async with self._store.watch(self._prefix, snapshot.revision) as messages:
            self._note_store(None)
            async for message in messages:
                if isinstance(message, Revision):
                    for change in message.changes:
                        self._learn(change.key, None if change.stored is None else change.stored.value)

    def _learn(self, key: str, value: bytes | None) -> None:
        """A value that is no DP rank counts as none."""
        name = names.parse(key.removeprefix(self._prefix))
        if name is None:
            return
        self._known.pop(name, None)
        dp_rank = None if value is None else names.decode_rank(value)
        if dp_rank is None:
            return
        if len(self._known) >= self._most_known:
            del self._known[next(iter(self._known))]
            self._evicted += 1
        self._known[name] = dp_rank
        self._awaited.arrived(name, dp_rank)

    async def _recall(self, wanted: Iterable[RoomName], timeout_s: float) -> dict[RoomName, int]:
        """Ask the store for rooms that may have been known once; what it says of them in time."""
        found: dict[RoomName, int] = {}
        try:
            async with asyncio.timeout(timeout_s):
                for name in wanted:
                    if name not in self._known:
                        stored = await self._store.get(names.key(self._keyspace, name))
                        dp_rank = None if stored is None else names.decode_rank(stored.value)
                        if dp_rank is not None:
                            found[name] = dp_rank
        except (StoreError, TimeoutError) as error:
            log.info("rooms not recalled", reason=str(error))
        return found

    def _note_store(self, error: str | None) -> None:
        if (error is None) != (self._store_error is None):
            if error is None:
                log.info("rooms are followed again")
            else:
                log.warning("rooms are not followed; trying on", reason=error)
        self._store_error = error
