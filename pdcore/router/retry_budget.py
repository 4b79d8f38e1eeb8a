"""How many further attempts this router may make: retries must never become the load. Pure.

In ten seconds as many as the largest of: a fifth of the requests that came in that time; the legs that were open at
instances that were lost in that time, since each of those requests deserves its second chance; and a handful, because a
router without traffic has no fifth.
"""

from __future__ import annotations

from typing import Final

from pdcore.router.pick import InstanceKey
from pdcore.router.window import WINDOW_S, Window

SHARE: Final = 0.2
A_HANDFUL: Final = 10
MOST_LOST: Final = 1024


class RetryBudget:
    """Mutable: requests and retries of the window, who was lost with how many open legs until when, and ``denied``."""

    def __init__(self) -> None:
        self._requests = Window()
        self._retries = Window()
        self._lost: dict[InstanceKey, tuple[int, float]] = {}
        self.denied = 0

    def came(self, now: float) -> None:
        """A request came."""
        self._requests.add(now)

    def lost(self, key: InstanceKey, in_flight: int, now: float) -> None:
        """``key`` is lost, or seems so, with ``in_flight`` legs open. Of several reports the largest count stays."""
        before, _ = self._lost.pop(key, (0, 0.0))
        while len(self._lost) >= MOST_LOST:
            del self._lost[next(iter(self._lost))]
        self._lost[key] = (max(before, in_flight), now + WINDOW_S)

    def allowance(self, now: float) -> int:
        """How many retries there may be in the ten seconds that end ``now``."""
        self._lost = {key: held for key, held in self._lost.items() if now < held[1]}
        on_lost = sum(in_flight for in_flight, _ in self._lost.values())
        return max(A_HANDFUL, int(SHARE * self._requests.total(now)), on_lost)

    def take(self, now: float) -> bool:
        """Count one retry if the budget allows it; False, and nothing counted, if not."""
        if self._retries.total(now) >= self.allowance(now):
            self.denied += 1
            return False
        self._retries.add(now)
        return True
