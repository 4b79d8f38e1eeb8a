"""Random bytes for names that nobody may guess or meet twice.

They are the kernel's own; it is asked for many at once, because the question costs more than the bytes. Every byte is
given out once.
"""

from __future__ import annotations

import os
from typing import Final

from pdcore.router.fields import MAX_ROOM

AHEAD_BYTES: Final = 4096


class Chance:
    """Mutable: the bytes that are left. Not to be shared with a forked process, which would give out the same ones."""

    __slots__ = ("_at", "_bytes")

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """``count`` fresh bytes, at most :data:`AHEAD_BYTES`."""
        end = self._at + count
        if end > len(self._bytes):
            self._bytes, end = os.urandom(AHEAD_BYTES), count
        self._at = end
        return self._bytes[end - count : end]


take: Final = Chance().take
"""The process's own."""


def fresh_room() -> int:
    """A room nobody used, with certainty enough: 63 random bits, never 0 ("not written")."""
    return (int.from_bytes(take(8), "big") & MAX_ROOM) or MAX_ROOM
