"""A timer for instants that move on all the time: moving one later costs an attribute, not a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls ``call`` once the instant last given to :meth:`set` has passed, by ``now``'s clock.

    The timer below it rings at the earliest instant that was ever asked for, looks, and is wound anew if that has moved.
    """

    __slots__ = ("_at", "_call", "_now", "_timer", "_timer_at")

    def __init__(self, call: Callable[[], object], now: Callable[[], float]) -> None:
        self._call = call
        self._now = now
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def set(self, at: float | None) -> None:
        """Call at ``at``, or not at all."""
        self._at = at
        if at is not None and (self._timer is None or at < self._timer_at):
            self._wind(at)

    def cancel(self) -> None:
        """Leave nothing behind."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wind(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._now()), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._now() < self._at:
            self._wind(self._at)
        else:
            self._at = None
            self._call()
