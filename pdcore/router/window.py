"""How many of something there were in the last ten seconds, a bucket per second. Pure: instants are passed in.

One addition and one comparison each: it is asked for every request.
"""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 10


class Window:
    """A count that forgets. Instants never go back by more than the window; one that does counts as now."""

    __slots__ = ("_buckets", "_second", "_total")

    def __init__(self) -> None:
        self._buckets = [0] * WINDOW_S
        self._second = 0
        self._total = 0

    def add(self, now: float, count: int = 1) -> None:
        """``count`` more happened at ``now``."""
        self._forget(now)
        self._buckets[self._second % WINDOW_S] += count
        self._total += count

    def total(self, now: float) -> int:
        """What was added in the ten seconds, by whole seconds, that end with the one of ``now``."""
        self._forget(now)
        return self._total

    def _forget(self, now: float) -> None:
        second = int(now)
        if second <= self._second:
            return
        for passed in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._total -= self._buckets[passed % WINDOW_S]
            self._buckets[passed % WINDOW_S] = 0
        self._second = second
