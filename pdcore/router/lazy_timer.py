"""Timers for instants that move on all the time, and that hardly ever come: made, moved and dropped for every request.

Moving one later costs an attribute. Below them all there is one timer of the event loop, which goes round while
anything is set and looks at those whose turn it is; so they ring up to :data:`TICK_S` late, and never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

TICK_S: Final = 0.02


def _nothing() -> None:
    """What a timer that was cancelled would call."""


class LazyTimer:
    """Calls ``call`` once the instant last given to :meth:`set` has passed, by ``now``'s clock.

    It has its turn at the earliest instant that was ever asked for, looks, and is given another if that has moved. So
    ``at``, while it is set, may simply be written over with a later instant.
    """

    __slots__ = ("_call", "_now", "_round", "_turn", "_turn_at", "at")

    def __init__(self, call: Callable[[], object], now: Callable[[], float]) -> None:
        self._call = call
        self._now = now
        self.at: float | None = None
        self._round: _Round | None = None
        self._turn = 0
        self._turn_at = 0.0

    def set(self, at: float | None) -> None:
        """Call at ``at``, or not at all."""
        self.at = at
        if at is not None and (self._round is None or at < self._turn_at):
            self._give_turn(at)

    def cancel(self) -> None:
        """Leave nothing behind; it is not set again."""
        self.at = None
        self._call = _nothing  # mostly whoever has this timer, who would never be freed otherwise
        if self._round is not None:
            self._round.drop(self, self._turn)
            self._round = None

    def _give_turn(self, at: float) -> None:
        if self._round is not None:
            self._round.drop(self, self._turn)
        self._turn_at = at
        self._round = _round_of(asyncio.get_running_loop())
        self._turn = self._round.add(self, at - self._now())

    def look(self) -> None:
        """It is this timer's turn."""
        self._round = None
        if self.at is None:
            return
        if self._now() < self.at:
            self._give_turn(self.at)
        else:
            self.at = None
            self._call()


class _Round:
    """The timers of one loop by the tick at which each has its turn. Mutable: ``_turns``, ``_reached``, ``_goes``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._turns: dict[int, dict[LazyTimer, None]] = {}
        self._reached = 0
        self._goes = False

    def add(self, timer: LazyTimer, after_s: float) -> int:
        """Give ``timer`` its turn at the first tick that is not before ``after_s``; which one that is."""
        now = self.loop.time()
        if not self._goes:
            self._goes, self._reached = True, int(now / TICK_S)
            self.loop.call_later(TICK_S, self._go)
        turn = int((now + max(0.0, after_s)) / TICK_S) + 1
        timers = self._turns.get(turn)
        if timers is None:
            timers = self._turns[turn] = {}
        timers[timer] = None
        return turn

    def drop(self, timer: LazyTimer, turn: int) -> None:
        """``timer`` does without its ``turn``."""
        timers = self._turns[turn]
        del timers[timer]
        if not timers:
            del self._turns[turn]

    def _go(self) -> None:
        now = int(self.loop.time() / TICK_S)
        try:
            for turn in self._passed(now):
                self._reached = turn - 1  # should this one fail, the next round begins with it
                while timers := self._turns.get(turn):
                    timer = next(iter(timers))
                    self.drop(timer, turn)
                    timer.look()
            self._reached = now
        finally:
            self._goes = bool(self._turns)
            if self._goes:
                self.loop.call_later(TICK_S, self._go)

    def _passed(self, now: int) -> Iterable[int]:
        passed = range(self._reached + 1, now + 1)
        if len(passed) <= len(self._turns):
            return passed
        return sorted(turn for turn in self._turns if turn <= now)  # the loop stood still for long


_latest: _Round | None = None


def _round_of(loop: asyncio.AbstractEventLoop) -> _Round:
    """The loop's own; a process has one loop at a time, so the one that was asked for last is remembered."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = _Round(loop)
    return _latest
