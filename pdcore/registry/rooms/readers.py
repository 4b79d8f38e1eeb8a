"""A decode leader's side of the room directory: which DP rank took a room, waiting for it if need be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStatistics:
    """Where a reader stands. ``evicted_total``: rooms forgotten because too many were known."""

    known: int
    awaited: int
    evicted_total: int
    store_error: str | None


class RoomReader(Protocol):
    """Opened by ``async with``; reads nothing before it is first asked."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def resolve(self, instance_id: str, rooms: Iterable[int], timeout_s: float) -> dict[int, int]:
        """DP rank by room, for those of ``rooms`` that were put by ``timeout_s`` from now.

        Returns as soon as it has all of them. Trouble with the store looks like rooms that are not there; it shows in
        :meth:`statistics`. Raises StoreRefused when too much is waited for already.
        """
        ...

    def statistics(self) -> ReaderStatistics:
        """Where it stands now."""
        ...
