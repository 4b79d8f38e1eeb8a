"""Who has requests at which instance, and how long that instance has sent nothing to any of them.

Mutable state: ``_watched``, one entry per instance with open legs; changed between two awaits only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pdcore.router.pick import InstanceKey


@dataclass(slots=True)
class _Watched:
    heard_at: float
    legs: dict[WatchedLeg, None] = field(default_factory=dict)


class WatchedLeg:
    """One open leg; a context manager. ``on_frozen`` is called when its instance is known not to answer."""

    def __init__(
        self, vigil: Vigil, key: InstanceKey, now: Callable[[], float], on_frozen: Callable[[], None]
    ) -> None:
        self._vigil = vigil
        self._key = key
        self._now = now
        self.on_frozen = on_frozen
        self._watched: _Watched | None = None

    def heard(self) -> None:
        """A byte came."""
        if self._watched is not None:
            self._watched.heard_at = self._now()

    def __enter__(self) -> Self:
        self._watched = self._vigil._enter(self._key, self, self._now())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watched = None
        self._vigil._leave(self._key, self)


class Vigil:
    """Every open leg by the instance it is at."""

    def __init__(self) -> None:
        self._watched: dict[InstanceKey, _Watched] = {}

    def leg(self, key: InstanceKey, now: Callable[[], float], on_frozen: Callable[[], None]) -> WatchedLeg:
        """A leg to be watched inside its ``with`` block."""
        return WatchedLeg(self, key, now, on_frozen)

    def quiet(self, now: float, after_s: float) -> list[InstanceKey]:
        """The instances that have sent nothing to anybody for ``after_s``; each is named once in that time."""
        found = [key for key, one in self._watched.items() if now - one.heard_at >= after_s]
        for key in found:
            self._watched[key].heard_at = now
        return found

    def fail(self, key: InstanceKey) -> None:
        """Tell every leg at ``key`` that its instance does not answer."""
        watched = self._watched.get(key)
        for leg in tuple(watched.legs) if watched is not None else ():
            leg.on_frozen()

    def _enter(self, key: InstanceKey, leg: WatchedLeg, now: float) -> _Watched:
        watched = self._watched.setdefault(key, _Watched(now))
        watched.legs[leg] = None
        return watched

    def _leave(self, key: InstanceKey, leg: WatchedLeg) -> None:
        watched = self._watched[key]
        del watched.legs[leg]
        if not watched.legs:
            del self._watched[key]
