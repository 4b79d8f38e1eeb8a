"""What is to stand in the directory for one instance, and what has yet to be written so that it does. Pure.

Level-triggered: a put or a release changes what is wanted, :meth:`RoomTable.batch` says what to write next, and a
failed batch is simply due again. Deletes wait a moment for others, and a lease that ends takes its rooms along unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from pdcore.errors import StoreRefused

MOST_ROOMS: Final = 1 << 17
LINGER_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What to write in one go: DP ranks by room, and rooms to delete."""

    puts: Mapping[int, int] = field(default_factory=dict)
    deletes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.puts) + len(self.deletes)


@dataclass(frozen=True, slots=True)
class _Room:
    dp_rank: int
    ends_at: float


class RoomTable:
    """The rooms of one writer.

    A room put lives until it is released, or for ``lives_s``. With ``refresh_s`` it is written again that long after
    it was written last. Mutable, each in the order of time: ``_rooms`` (live), ``_unwritten`` (live, to be written),
    ``_standing`` (may be in the store; when it was written), ``_doomed`` (released but standing; when to delete). And
    ``_flying``, the batch whose fate is not known yet.
    """

    def __init__(
        self, *, most: int = MOST_ROOMS, lives_s: float = float("inf"), refresh_s: float = float("inf")
    ) -> None:
        self._most = most
        self._lives_s = lives_s
        self._refresh_s = refresh_s
        self._rooms: dict[int, _Room] = {}
        self._unwritten: dict[int, None] = {}
        self._standing: dict[int, float] = {}
        self._doomed: dict[int, float] = {}
        self._flying: Batch = Batch()

    def __len__(self) -> int:
        return len(self._rooms)

    @property
    def unwritten(self) -> int:
        """How many live rooms have yet to be written."""
        return len(self._unwritten)

    @property
    def doomed(self) -> int:
        """How many released rooms have yet to go."""
        return len(self._doomed)

    @property
    def standing(self) -> tuple[int, ...]:
        """Every room that may be in the store."""
        return tuple(self._standing)

    def get(self, room: int) -> int | None:
        """The DP rank of a live room."""
        live = self._rooms.get(room)
        return None if live is None else live.dp_rank

    def is_written(self, room: int) -> bool:
        """Whether this live room stands as it was put last."""
        pending = room in self._unwritten or room in self._flying.puts
        return room in self._rooms and not pending

    def put(self, rooms: Mapping[int, int], now: float) -> None:
        """These rooms are to stand; the newest DP rank counts. All of them or, with StoreRefused, none."""
        if len(self._rooms) + len(rooms.keys() - self._rooms.keys()) > self._most:
            raise StoreRefused(f"more than {self._most} rooms of one instance are open")
        for room, dp_rank in rooms.items():
            self._rooms.pop(room, None)  # put again, it is the youngest
            self._rooms[room] = _Room(dp_rank, now + self._lives_s)
            self._doomed.pop(room, None)
            self._unwritten.setdefault(room)

    def release(self, rooms: Iterable[int], now: float) -> tuple[int, ...]:
        """These rooms are over; those that were live."""
        released = tuple(room for room in rooms if self._rooms.pop(room, None) is not None)
        for room in released:
            self._unwritten.pop(room, None)
            if room in self._standing:
                self._doomed[room] = now + LINGER_S
        return released

    def ended(self, now: float) -> tuple[int, ...]:
        """The live rooms whose time is over, to be released."""
        return tuple(room for room, _ in takewhile(lambda item: item[1].ends_at <= now, self._rooms.items()))

    def batch(self, now: float, limit: int) -> Batch:
        """At most ``limit`` of what is to be written now; :meth:`written` or :meth:`failed` before the next one.

        From here on it may stand, whatever becomes of the write.
        """
        self._refresh(now)
        puts = {room: self._rooms[room].dp_rank for room in islice(self._unwritten, limit)}
        deletes = tuple(islice(self._overdue(now), limit - len(puts)))
        for room in puts:
            del self._unwritten[room]
            self._stand(room, now)
        for room in deletes:
            del self._doomed[room]
        self._flying = Batch(puts=puts, deletes=deletes)
        return self._flying

    def written(self) -> tuple[int, ...]:
        """The whole last batch is in the store; the rooms that stand as they were put last."""
        batch, self._flying = self._flying, Batch()
        for room in batch.deletes:
            if room not in self._rooms:
                self._standing.pop(room, None)
        return tuple(filter(self.is_written, batch.puts))

    def failed(self, now: float) -> None:
        """Nobody knows what of the last batch is in the store."""
        batch, self._flying = self._flying, Batch()
        for room in batch.puts:
            if room in self._rooms:
                self._unwritten.setdefault(room)
        for room in batch.deletes:
            if room not in self._rooms and room in self._standing:
                self._doomed[room] = now + LINGER_S

    def gone(self, rooms: Iterable[int]) -> None:
        """These rooms vanished from the store: the live ones are to be written again."""
        for room in rooms:
            self._standing.pop(room, None)
            self._doomed.pop(room, None)
            if room in self._rooms:
                self._unwritten.setdefault(room)

    def next_at(self, now: float) -> float:
        """When :meth:`batch` or :meth:`ended` has something; infinite when never unless somebody calls."""
        if self._unwritten:
            return now
        firsts = [
            *islice(self._doomed.values(), 1),
            *(room.ends_at for room in islice(self._rooms.values(), 1)),
            *(at + self._refresh_s for at in islice(self._standing.values(), 1)),
        ]
        return min(firsts, default=float("inf"))

    def _overdue(self, now: float) -> Iterator[int]:
        return (room for room, _ in takewhile(lambda item: item[1] <= now, self._doomed.items()))

    def _refresh(self, now: float) -> None:
        old = list(takewhile(lambda item: item[1] + self._refresh_s <= now, self._standing.items()))
        for room, _ in old:
            self._stand(room, now)
            if room in self._rooms:
                self._unwritten.setdefault(room)

    def _stand(self, room: int, now: float) -> None:
        self._standing.pop(room, None)
        self._standing[room] = now
