"""What happens to a member that exited by itself. Pure.

The first exit restarts at once, later ones wait 1, 2, 4 … 30 s; a run that lasted starts the count again. Exit status 2
means that the member was given what cannot work: starting it again would say the same, so everything ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MISCONFIGURED: Final = 2
LONGEST_DELAY_S: Final = 30.0
LASTING_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after ``delay_s``; ``failures`` short runs have happened in a row."""

    delay_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End everything with this exit status."""

    status: int


def decide(status: int, *, lived_s: float, failures: int) -> Restart | GiveUp:
    """The answer to an exit with ``status`` after ``lived_s``, when ``failures`` short runs came before it."""
    if status == MISCONFIGURED:
        return GiveUp(status)
    in_a_row = 1 if lived_s >= LASTING_S else failures + 1
    return Restart(delay_s(in_a_row), in_a_row)


def delay_s(failures: int) -> float:
    """How long to wait before the start that follows this many short runs in a row (at least one)."""
    return 0.0 if failures == 1 else float(min(2 ** min(failures - 2, 5), LONGEST_DELAY_S))
