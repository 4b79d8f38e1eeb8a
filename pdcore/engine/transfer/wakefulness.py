"""How long a decode rank stays awake for what was announced. Pure.

A rank that sleeps needs longer to wake up, and to run code that has left the caches, than the rest of a hand-off takes.
So it stays awake from an announcement on until a slot came, ``MOST_S`` at most, and in all not more than ``SHARE`` of
its time: announcements that lead to nothing, or come faster than anybody could use, soon mean nothing.
"""

from __future__ import annotations

import math
from typing import Final

MOST_S: Final = 0.003
SHARE: Final = 0.1
SAVED_S: Final = 0.05
"""So much may be spent at once after a time without announcements."""


class Wakefulness:
    """``share`` 0 never stays awake: where there is one CPU, staying awake keeps others from working.

    Mutable: ``_since`` (since when it stays awake, infinity: it does not) and ``_left``, what may be spent, as of ``_at``.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._since = math.inf
        self._left = SAVED_S
        self._at = -math.inf

    def announced(self, now: float) -> None:
        """A slot is to be written in moments."""
        self._left = min(SAVED_S, self._left + (now - self._at) * self._share)
        self._at = now
        if self._share and self._left >= MOST_S and not self.is_awake(now):
            self.over(now)
            self._since = now

    def over(self, now: float) -> None:
        """What was waited for is here."""
        if self._since < math.inf:
            self._left -= min(now - self._since, MOST_S)
            self._since = math.inf

    def is_awake(self, now: float) -> bool:
        """Whether to look again instead of sleeping."""
        return self._since <= now < self._since + MOST_S
