"""Rooms in the keyspace's store: many in one transaction that compares the claim, each on a room lease."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pdcore.clock import Clock
from pdcore.errors import LeaseGone, StoreRefused
from pdcore.registry.desired import Fence
from pdcore.registry.rooms import names
from pdcore.registry.rooms.leases import RoomLeases
from pdcore.registry.rooms.names import RoomName
from pdcore.registry.rooms.table import Batch
from pdcore.registry.store import Delete, LeaseId, Put, Store

ROOM_TTL_S: Final = 30
BATCH: Final = 100


class StoreWriting:
    """Writes for the instance of ``fence``. ``store`` is open and the caller's.

    Mutable: ``_leases``, ``_gone`` (rooms lost with their leases, not taken yet).
    """

    limit = BATCH

    def __init__(self, fence: Fence, store: Store, clock: Clock, *, ttl_s: int = ROOM_TTL_S) -> None:
        self._fence = fence
        self._store = store
        self._clock = clock
        self._leases = RoomLeases(ttl_s)
        self._gone: list[int] = []

    @property
    def leases(self) -> int:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        return len(self._leases)

    async def write(self, batch: Batch) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        lease = await self._open_lease(len(batch.puts)) if batch.puts else None
        puts = (Put(self._key(room), names.encode_rank(rank), lease) for room, rank in batch.puts.items())
        deletes = (Delete(self._key(room)) for room in batch.deletes)
        try:
            committed = await self._store.commit((self._fence.claimed,), (*puts, *deletes))
        except LeaseGone:
            self._lose(lease)
            raise
        if not committed.succeeded:
            raise StoreRefused(f"{self._fence.claim_key} is not {self._fence.incarnation}")
        if lease is not None:
            self._leases.hang(lease, batch.puts)
        for room in batch.deletes:
            self._leases.deleted(room)

    async def keep(self) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`. A lease that is let go takes its rooms along."""
        for lease in self._leases.due(self._clock.now()):
            sent = self._clock.now()
            try:
                self._leases.renewed(lease, sent, await self._store.keep_alive(lease))
            except LeaseGone:
                self._lose(lease)
        for lease in self._leases.idle(self._clock.now()):
            await self._store.revoke(lease)
            self._lose(lease)

    def released(self, rooms: Iterable[int]) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        for room in rooms:
            self._leases.released(room)

    def take_gone(self) -> tuple[int, ...]:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        gone, self._gone = tuple(self._gone), []
        return gone

    def next_at(self) -> float:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        return self._leases.next_at()

    async def withdraw(self, rooms: tuple[int, ...]) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        for lease in self._leases.all:
            await self._store.revoke(lease)
            self._leases.forget(lease)

    async def close(self) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`: the store is the caller's."""

    async def _open_lease(self, rooms: int) -> LeaseId:
        lease = self._leases.open_for(rooms, self._clock.now())
        if lease is None:
            sent = self._clock.now()
            lease = await self._store.grant(self._leases.ttl_s)
            self._leases.granted(lease, sent)
        return lease

    def _lose(self, lease: LeaseId | None) -> None:
        if lease is not None:
            self._gone += self._leases.forget(lease)

    def _key(self, room: int) -> str:
        return names.key(self._fence.keyspace, RoomName(self._fence.instance_id, room))
