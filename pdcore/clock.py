"""Time as a value that is passed in.

Pure code takes ``now`` (monotonic seconds). Shells take a :class:`Clock`. Durations are floats named ``…_s``.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a shell may know of time."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for people and logs, never for deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


class SystemClock:
    """The machine's clocks. ``now`` is the function itself: it is asked many times for each request."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
