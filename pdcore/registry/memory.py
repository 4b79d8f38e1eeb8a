"""The store contract inside one process, for tests and for code that needs a keyspace without a server.

One :class:`MemoryStore` is the server and its client at once: everybody who shares a keyspace shares the object, and
the keyspace lives as long as it does. Leases end by the injected clock: their end is noticed by the next call, by a
watch that is waiting, or by :meth:`MemoryStore.expire_leases`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, Self

from pdcore.clock import Clock, SystemClock
from pdcore.errors import Compacted, LeaseGone, StoreUnavailable
from pdcore.registry.store import (
    Absent,
    Alive,
    Change,
    Committed,
    Condition,
    Delete,
    LeaseId,
    ModRevisionIs,
    Put,
    Revision,
    Snapshot,
    Stored,
    ValueIs,
    WatchMessage,
    Write,
    check_transaction,
)

HISTORY: Final = 10_000
ALIVE_S: Final = 4.0


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    ends_at: float
    keys: set[str] = field(default_factory=set)


class MemoryStore:
    """A keyspace in memory that keeps the last ``history`` revisions for watches.

    Mutable state: ``_entries``, ``_leases``, ``_revision``, ``_history`` with ``_compacted`` (the newest revision no
    longer kept), ``_broken`` (how often every watch was broken) and ``_changed``, which is set and replaced whenever a watch must
    look again. All of it is changed between two awaits, so no lock is needed.
    """

    def __init__(
        self, *, clock: Clock | None = None, history: int = HISTORY, alive_s: float = ALIVE_S
    ) -> None:
        self._clock = clock or SystemClock()
        self._alive_s = alive_s
        self._entries: dict[str, Stored] = {}
        self._leases: dict[LeaseId, _Lease] = {}
        self._next_lease = 1
        self._revision = 1
        self._compacted = 0
        self._broken = 0
        self._history: deque[Revision] = deque()
        self._history_limit = history
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<MemoryStore revision={self._revision} keys={len(self._entries)} leases={len(self._leases)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def list(self, prefix: str) -> Snapshot:
        """See :class:`~pdcore.registry.store.Store`."""
        self.expire_leases()
        entries = {key: self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)}
        return Snapshot(self._revision, entries)

    async def get(self, key: str) -> Stored | None:
        """See :class:`~pdcore.registry.store.Store`."""
        self.expire_leases()
        return self._entries.get(key)

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        """See :class:`~pdcore.registry.store.Store`."""
        self.expire_leases()
        check_transaction(conditions, writes)
        if not all(self._holds(condition) for condition in conditions):
            return Committed(False, self._revision)
        for write in writes:
            if isinstance(write, Put) and write.lease is not None and write.lease not in self._leases:
                raise LeaseGone(f"lease {write.lease} does not exist")
        self._apply(writes)
        return Committed(True, self._revision)

    async def grant(self, ttl_s: int) -> LeaseId:
        """See :class:`~pdcore.registry.store.Store`."""
        self.expire_leases()
        lease = LeaseId(self._next_lease)
        self._next_lease += 1
        self._leases[lease] = _Lease(ttl_s, self._clock.now() + ttl_s)
        self._wake()
        return lease

    async def keep_alive(self, lease: LeaseId) -> float:
        """See :class:`~pdcore.registry.store.Store`."""
        self.expire_leases()
        held = self._leases.get(lease)
        if held is None:
            raise LeaseGone(f"lease {lease} does not exist")
        held.ends_at = self._clock.now() + held.ttl_s
        return float(held.ttl_s)

    async def revoke(self, lease: LeaseId) -> None:
        """See :class:`~pdcore.registry.store.Store`."""
        self.expire_leases()
        self._end(lease)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        """See :class:`~pdcore.registry.store.Store`. A consumer further behind than the history gets Compacted."""
        async with aclosing(self._messages(prefix, after_revision)) as messages:
            yield messages

    def expire_leases(self) -> None:
        """End every lease whose time is over by the clock, one revision each."""
        now = self._clock.now()
        for lease in [lease for lease, held in self._leases.items() if held.ends_at <= now]:
            self._end(lease)

    def compact(self, revision: int) -> None:
        """Keep no history up to and including ``revision``."""
        self._compacted = max(self._compacted, min(revision, self._revision))
        while self._history and self._history[0].revision <= self._compacted:
            self._history.popleft()
        self._wake()

    def wipe(self) -> None:
        """Become an empty store that never had a revision, as a server with a new data directory does; watches break."""
        self._entries.clear()
        self._leases.clear()
        self._history.clear()
        self._revision, self._compacted = 1, 0
        self.cut()

    def cut(self) -> None:
        """Break every watch, as a lost connection does."""
        self._broken += 1
        self._wake()

    def _holds(self, condition: Condition) -> bool:
        stored = self._entries.get(condition.key)
        match condition:
            case Absent():
                return stored is None
            case ValueIs(value=value):
                return stored is not None and stored.value == value
            case ModRevisionIs(mod_revision=mod_revision):
                return stored is not None and stored.mod_revision == mod_revision

    def _apply(self, writes: tuple[Write, ...]) -> None:
        revision = self._revision + 1
        changes = tuple(change for write in writes if (change := self._write(write, revision)) is not None)
        if not changes:
            return
        self._revision = revision
        self._history.append(Revision(revision, changes))
        if len(self._history) > self._history_limit:
            self._compacted = self._history.popleft().revision
        self._wake()

    def _write(self, write: Write, revision: int) -> Change | None:
        old = self._entries.pop(write.key, None)
        if old is not None and old.lease in self._leases:
            self._leases[old.lease].keys.discard(write.key)
        if isinstance(write, Delete):
            return None if old is None else Change(write.key, None)
        created = revision if old is None else old.create_revision
        stored = Stored(write.value, revision, created, write.lease)
        self._entries[write.key] = stored
        if write.lease is not None:
            self._leases[write.lease].keys.add(write.key)
        return Change(write.key, stored)

    def _end(self, lease: LeaseId) -> None:
        held = self._leases.pop(lease, None)
        if held is not None:
            self._apply(tuple(Delete(key) for key in sorted(held.keys)))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _messages(self, prefix: str, after_revision: int) -> AsyncGenerator[WatchMessage, None]:
        position, broken = after_revision, self._broken
        yield Alive(self._revision)
        while True:
            self.expire_leases()
            if broken != self._broken:
                raise StoreUnavailable("this watch was cut")
            if position < self._compacted:
                raise Compacted(self._compacted)
            fresh = self._kept_after(position)
            for revision in fresh:
                position = revision.revision
                seen = tuple(change for change in revision.changes if change.key.startswith(prefix))
                if seen:
                    yield Revision(position, seen)
                if broken != self._broken:
                    break
            if not fresh and not await self._wait_changed():
                yield Alive(self._revision)

    def _kept_after(self, position: int) -> tuple[Revision, ...]:
        newest_first = takewhile(lambda kept: kept.revision > position, reversed(self._history))
        return tuple(newest_first)[::-1]

    async def _wait_changed(self) -> bool:
        """Wait until something may have changed; False when nothing did for ``alive_s``."""
        changed = self._changed
        next_end = min((held.ends_at for held in self._leases.values()), default=float("inf"))
        patience = min(self._alive_s, max(0.0, next_end - self._clock.now()))
        try:
            async with asyncio.timeout(patience):
                await changed.wait()
        except TimeoutError:
            return patience < self._alive_s
        return True
