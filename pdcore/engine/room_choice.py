"""With ``--dp-rank-choice engine``: prefill says in the room directory which DP rank took a room, decode looks it up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pdcore.errors import ApiError, StoreRefused
from pdcore.registry.rooms.readers import RoomReader
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.topology.instance import Instance
from pdcore.topology.records import ROOM_DIRECTORY

ROOM_WAIT_S: Final = 5.0
"""A prefill leg says it at once, so that this is time for its way through router, store and watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLookup:
    """A decode leader's look into the directory, which is in ``directory`` (``store`` or ``redis``)."""

    reader: RoomReader
    directory: str
    wait_s: float = ROOM_WAIT_S

    async def dp_rank(self, prefill: Instance, room: int) -> int:
        """The DP rank of ``prefill`` that took ``room``. ApiError 503 when it has not said so in time."""
        where = prefill.record.extra.get(ROOM_DIRECTORY)
        if where != self.directory:
            raise _unavailable(
                f"{prefill.instance_id} says in the {where} which DP rank takes a room, this instance looks in the "
                f"{self.directory}: give both the same --redis"
            )
        try:
            found = await self.reader.resolve(prefill.instance_id, [room], self.wait_s)
        except StoreRefused as full:
            raise _unavailable(str(full)) from None
        if room not in found:
            trouble = self.reader.statistics().store_error
            why = "" if trouble is None else f" ({trouble})"
            raise _unavailable(
                f"{prefill.instance_id} has not said within {self.wait_s:g} s which DP rank took room {room}{why}"
            )
        if found[room] >= prefill.record.dp_size:
            raise _unavailable(
                f"{prefill.instance_id} has no DP rank {found[room]}, which room {room} is said to be at"
            )
        return found[room]


@contextmanager
def recorded(writer: RoomWriter, room: int, dp_rank: int) -> Iterator[None]:
    """While the block lasts, the directory says that ``room`` is at ``dp_rank``. ApiError 503 when it is full."""
    try:
        writer.put({room: dp_rank})
    except StoreRefused as full:
        raise _unavailable(str(full)) from None
    try:
        yield
    finally:
        writer.release([room])


def _unavailable(message: str) -> ApiError:
    return ApiError("backend_unavailable", message)
