"""Tombstones of rooms that ended: bounded, with a time to live. Pure.

The other half of a room that arrives late is refused at once, with the reason, instead of waiting for a deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pdcore.engine.transfer.failures import Reason
from pdcore.errors import ErrorCode

TOMBS_MOST: Final = 4096
TOMB_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Tomb:
    """Why a room is over."""

    code: ErrorCode
    message: str
    reason: Reason
    until: float


class Tombs:
    """By room, oldest first."""

    def __init__(self) -> None:
        self._tombs: OrderedDict[int, Tomb] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tombs)

    def put(self, room: int, code: ErrorCode, message: str, reason: Reason, now: float) -> None:
        """``room`` is over; an older reason is replaced."""
        self._tombs[room] = Tomb(code, message, reason, now + TOMB_S)
        self._tombs.move_to_end(room)
        while len(self._tombs) > TOMBS_MOST:
            self._tombs.popitem(last=False)

    def get(self, room: int, now: float) -> Tomb | None:
        """Why ``room`` is over, None when nobody remembers."""
        tomb = self._tombs.get(room)
        return tomb if tomb is not None and tomb.until > now else None

    def expire(self, now: float) -> None:
        """Let go of what is too old."""
        while self._tombs and next(iter(self._tombs.values())).until <= now:
            self._tombs.popitem(last=False)
