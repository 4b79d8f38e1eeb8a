"""Who holds requests at which instance, and how long that instance has sent nothing to any of them.

Mutable state: ``_watched``, one entry per instance with open legs; changed between two awaits only.
"""

from __future__ import annotations

from typing import Protocol

from pdcore.router.pick import InstanceKey


class Holder(Protocol):
    """One open leg."""

    def froze(self) -> None:
        """Its instance is known not to answer."""
        ...


class Watched:
    """One instance. ``heard_at``: when anything last came from it, to be set by whoever heard."""

    __slots__ = ("heard_at", "holders")

    def __init__(self, heard_at: float) -> None:
        self.heard_at = heard_at
        self.holders: dict[Holder, None] = {}


class Vigil:
    """Every open leg by the instance it is at."""

    def __init__(self) -> None:
        self._watched: dict[InstanceKey, Watched] = {}

    def begin(self, key: InstanceKey, holder: Holder, now: float) -> Watched:
        """``holder`` waits for ``key`` from now on."""
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = Watched(now)
        watched.holders[holder] = None
        return watched

    def end(self, key: InstanceKey, holder: Holder) -> None:
        """It does not any more."""
        watched = self._watched[key]
        del watched.holders[holder]
        if not watched.holders:
            del self._watched[key]

    def quiet(self, now: float, after_s: float) -> list[InstanceKey]:
        """The instances that have sent nothing to anybody for ``after_s``; each is named once in that time."""
        found = [key for key, one in self._watched.items() if now - one.heard_at >= after_s]
        for key in found:
            self._watched[key].heard_at = now
        return found

    def fail(self, key: InstanceKey) -> None:
        """Tell every leg at ``key`` that its instance does not answer."""
        watched = self._watched.get(key)
        for holder in tuple(watched.holders) if watched is not None else ():
            holder.froze()
