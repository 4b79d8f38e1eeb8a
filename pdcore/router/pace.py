"""When the events of one stream went out: the time to the first, and how the others followed. Pure."""

from __future__ import annotations


class Pace:
    """Counts a stream's data events. Mutable state: the three fields, changed by the first two methods only."""

    __slots__ = ("count", "first_at", "last_at")

    def __init__(self) -> None:
        self.count = 0
        self.first_at = 0.0
        self.last_at = 0.0

    def events(self, count: int, now: float) -> None:
        """So many events go to the client."""
        if count:
            if not self.count:
                self.first_at = now
            self.last_at = now
            self.count += count

    def goes_on(self, now: float) -> None:
        """One event goes to the client that is not the first."""
        self.count += 1
        self.last_at = now

    def first_after_s(self, started: float) -> float | None:
        """From ``started`` to the first event; None without one."""
        return self.first_at - started if self.count else None

    def between_s(self) -> float | None:
        """The mean time between two events, which is a token's where an engine sends each as an event of its own."""
        return (self.last_at - self.first_at) / (self.count - 1) if self.count > 1 else None
