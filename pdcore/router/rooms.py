"""The external names that clients give their rooms.

A client's ``bootstrap_room`` never reaches an engine. While its request runs it is claimed, so that the same name is
not served twice at once: always within this router, and across routers by a key under this router's lease, skipped
and counted when the store is away. A router that dies takes its claims along with its lease.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from pdcore.errors import ApiError, StoreError
from pdcore.registry.store import Absent, Delete, LeaseId, Put, Store, ValueIs
from pdcore.telemetry import logger
from pdcore.topology.keys import Keyspace

MOST_LEFT: Final = 4096
TAKE_BACK_S: Final = 0.5  # a slow store must not hold back an answer that is complete

Release = Callable[[], Awaitable[None]]

_log = logger(__name__)


class ClientRooms:
    """The client rooms this router serves now.

    Mutable state: ``_here`` (rooms being served) and ``_left`` (marks that may still stand in the store, because
    taking them back failed; replaced when the room is claimed here again, gone with the lease in any case).
    """

    def __init__(
        self,
        store: Store,
        keyspace: Keyspace,
        *,
        lease: Callable[[], LeaseId | None],
        on_skipped: Callable[[], None],
    ) -> None:
        self._store = store
        self._prefix = f"{keyspace.side}client_rooms/"
        self._lease = lease
        self._on_skipped = on_skipped
        self._here: set[int] = set()
        self._left: dict[int, bytes] = {}

    @asynccontextmanager
    async def claimed(self, room: int) -> AsyncIterator[Release]:
        """Hold ``room`` inside the block, or until what it yields is called; 409 when another request holds it.

        A client that has its whole answer may use the name again at once, so the claim has to go before the last
        byte does.
        """
        if room in self._here:
            raise _taken(room)
        self._here.add(room)
        marks: list[bytes] = []

        async def release() -> None:
            while marks:
                await self._take_back(room, marks.pop())
            self._here.discard(room)

        try:
            marks += await self._put(room)
            yield release
        finally:
            await release()

    async def while_claimed(self, room: int, work: Callable[[Release], Awaitable[None]]) -> None:
        """Run ``work`` while ``room`` is :meth:`claimed`."""
        async with self.claimed(room) as release:
            await work(release)

    async def _put(self, room: int) -> list[bytes]:
        """What may stand in the store now."""
        lease = self._lease()
        if lease is None:
            self._on_skipped()
            return []
        key, mark, left = f"{self._prefix}{room}", secrets.token_hex(8).encode(), self._left.get(room)
        try:
            done = await self._store.commit((Absent(key),), (Put(key, mark, lease),))
            if not done.succeeded and left is not None:
                done = await self._store.commit((ValueIs(key, left),), (Put(key, mark, lease),))
        except StoreError as away:
            _log.warning("client room not claimed", room=room, reason=str(away))
            self._on_skipped()
            return [mark]
        if not done.succeeded:
            raise _taken(room)
        self._left.pop(room, None)
        return [mark]

    async def _take_back(self, room: int, mark: bytes) -> None:
        """Also after a failed claim: a put that timed out may have happened."""
        key = f"{self._prefix}{room}"
        self._left[room] = mark
        while len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]
        try:
            async with asyncio.timeout(TAKE_BACK_S):
                await self._store.commit((ValueIs(key, mark),), (Delete(key),))
            self._left.pop(room, None)
        except (StoreError, TimeoutError) as away:
            _log.warning("client room stays claimed until the lease ends", room=room, reason=str(away))


def _taken(room: int) -> ApiError:
    return ApiError("room_in_use", f"bootstrap_room {room} is in use", param="bootstrap_room")
