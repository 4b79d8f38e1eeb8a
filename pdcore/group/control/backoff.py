"""When a member that ended by itself is started again, and when that has become an error. Pure.

The first start again is at once, the next after 10, 20, 40 … 300 s: a crash may be an accident, several in a row
are not. Three within five minutes are an error, which is told and does not stop the trying. Status 2 is one at once:
the member says that what it was given cannot work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MISCONFIGURED: Final = 2
FIRST_DELAY_S: Final = 10.0
LONGEST_DELAY_S: Final = 300.0
LASTING_S: Final = 300.0
"""A run this long starts the count again."""
LOOP_EXITS: Final = 3
LOOP_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Exits:
    """Ends in a row that nobody asked for: when, newest last. ``failed``: it is an error."""

    at: tuple[float, ...] = ()
    failed: bool = False

    @property
    def count(self) -> int:
        return len(self.at)

    def after(self, now: float, *, status: int, lived_s: float) -> Exits:
        """With one more end, with ``status`` after a run of ``lived_s``."""
        at = (now,) if lived_s >= LASTING_S else (*self.at[-63:], now)
        recent = sum(now - one <= LOOP_WITHIN_S for one in at)
        return Exits(at, failed=status == MISCONFIGURED or recent >= LOOP_EXITS)

    @property
    def again_at(self) -> float:
        """When to start it again."""
        return 0.0 if not self.at else self.at[-1] + delay_s(self.count)


def delay_s(exits: int) -> float:
    """How long to wait before the start that follows this many ends in a row (at least one)."""
    return 0.0 if exits == 1 else min(FIRST_DELAY_S * 2.0 ** min(exits - 2, 10), LONGEST_DELAY_S)
