"""Which rooms hang on which lease, and when a lease is opened, renewed and let go. Pure.

A lease takes new rooms until it holds :data:`ROOMS_PER_LEASE` or has been open for :data:`OPEN_S`; then another one
does. A lease per room would run into the rate at which a store ends leases, one for all slows every put down. An old
lease is renewed while one of its rooms is live and let go with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pdcore.registry.store import LeaseId

ROOMS_PER_LEASE: Final = 1000
OPEN_S: Final = 30.0
RENEWALS_PER_TTL: Final = 3


@dataclass(slots=True)
class _Lease:
    closes_at: float
    renew_at: float
    ends_at: float
    taken: int = 0
    live: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)


class RoomLeases:
    """The leases of one writer. Mutable: ``_leases`` (each with its live rooms and those that are over but stand), ``_of_room``
    (where each of both hangs), ``_open``."""

    def __init__(self, ttl_s: int) -> None:
        self.ttl_s = ttl_s
        self._leases: dict[LeaseId, _Lease] = {}
        self._of_room: dict[int, LeaseId] = {}
        self._open: LeaseId | None = None

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def all(self) -> tuple[LeaseId, ...]:
        """Every lease not let go."""
        return tuple(self._leases)

    def open_for(self, rooms: int, now: float) -> LeaseId | None:
        """The lease that ``rooms`` more rooms hang on; None when another one has to be granted for them."""
        held = None if self._open is None else self._leases.get(self._open)
        if held is None or held.taken + rooms > ROOMS_PER_LEASE or now >= min(held.closes_at, held.ends_at):
            self._open = None
        return self._open

    def granted(self, lease: LeaseId, sent: float) -> None:
        """From now on new rooms hang on ``lease``, asked for at ``sent``."""
        self._leases[lease] = _Lease(sent + OPEN_S, sent + self.ttl_s / RENEWALS_PER_TTL, sent + self.ttl_s)
        self._open = lease

    def hang(self, lease: LeaseId, rooms: Iterable[int]) -> None:
        """These live rooms stand on ``lease``, and on no other any more."""
        for room in rooms:
            self.deleted(room)
            self._of_room[room] = lease
            self._leases[lease].live.add(room)
            self._leases[lease].taken += 1

    def released(self, room: int) -> None:
        """It stands, but nothing is kept alive for it."""
        lease = self._of_room.get(room)
        if lease is not None and room in self._leases[lease].live:
            self._leases[lease].live.remove(room)
            self._leases[lease].over.add(room)

    def deleted(self, room: int) -> None:
        """It stands on no lease any more."""
        lease = self._of_room.pop(room, None)
        if lease is not None:
            self._leases[lease].live.discard(room)
            self._leases[lease].over.discard(room)

    def due(self, now: float) -> tuple[LeaseId, ...]:
        """Those to renew now."""
        return tuple(lease for lease, held in self._leases.items() if held.live and now >= held.renew_at)

    def renewed(self, lease: LeaseId, sent: float, left_s: float) -> None:
        """It ends ``left_s`` after ``sent``."""
        held = self._leases[lease]
        held.renew_at, held.ends_at = sent + left_s / RENEWALS_PER_TTL, sent + left_s

    def idle(self, now: float) -> tuple[LeaseId, ...]:
        """Those to let go now: without a live room, and not taking any."""
        return tuple(
            lease for lease in self._leases if self._next_at(lease) <= now and not self._leases[lease].live
        )

    def forget(self, lease: LeaseId) -> tuple[int, ...]:
        """It is gone; the rooms that went with it."""
        held = self._leases.pop(lease, None)
        if self._open == lease:
            self._open = None
        if held is None:
            return ()
        rooms = (*held.live, *held.over)
        for room in rooms:
            del self._of_room[room]
        return rooms

    def next_at(self) -> float:
        """When something is :meth:`due` or :meth:`idle` next; infinite with no lease."""
        return min(map(self._next_at, self._leases), default=float("inf"))

    def _next_at(self, lease: LeaseId) -> float:
        held = self._leases[lease]
        if held.live:
            return held.renew_at
        return min(held.closes_at, held.renew_at) if lease == self._open else float("-inf")
