"""Which requests are late, without looking at those that are not."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

_MOST_GARBAGE: Final = 64


class Deadlines:
    """Instants by request id. A cancelled one leaves at its instant, or earlier when they outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._instants: dict[str, float] = {}

    def add(self, request_id: str, instant: float) -> None:
        """Watch a request that is not watched yet."""
        self._instants[request_id] = instant
        heapq.heappush(self._heap, (instant, request_id))

    def cancel(self, request_id: str) -> None:
        """Watch it no longer."""
        del self._instants[request_id]
        if len(self._heap) > 2 * len(self._instants) + _MOST_GARBAGE:
            self._heap = [(instant, name) for name, instant in self._instants.items()]
            heapq.heapify(self._heap)

    def due(self, now: float) -> Iterator[str]:
        """Watched requests whose instant has come; each is watched until it is cancelled, but named only once."""
        while self._heap and self._heap[0][0] <= now:
            instant, request_id = heapq.heappop(self._heap)
            if self._instants.get(request_id) == instant:
                yield request_id
