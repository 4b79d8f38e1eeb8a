"""Which members have fallen silent. Pure: instants are passed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SILENCE_IN_TTLS: Final = 2


@dataclass(slots=True)
class Beats:
    """The last sign of life of every member that beats; silent after ``limit_s`` without one."""

    limit_s: float
    _last: dict[str, float] = field(default_factory=dict)

    def heard(self, member: str, now: float) -> None:
        """A beat, or another proof of life (its start, its record put for the first time)."""
        self._last[member] = now

    def seen(self, member: str, now: float) -> None:
        """A proof of life of a member that may not beat at all: one that does not stays out."""
        if member in self._last:
            self._last[member] = now

    def forget(self, member: str) -> None:
        """It exited, or will not beat any more."""
        self._last.pop(member, None)

    def silent(self, now: float) -> frozenset[str]:
        """Members whose last beat is older than the limit."""
        return frozenset(member for member, last in self._last.items() if now - last > self.limit_s)

    def next_silence(self, now: float) -> float | None:
        """When the next member that is not silent yet would be, None if none can."""
        ends = [last + self.limit_s for last in self._last.values() if now - last <= self.limit_s]
        return min(ends, default=None)
