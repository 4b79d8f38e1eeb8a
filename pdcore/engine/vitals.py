"""Whether the ranks of an instance live and get on, by what they say. Pure.

A rank says its figures at least once a second, between steps. Neither a long step nor a busy machine is a trouble: it
takes silence, or a step count that stands while requests run, of :attr:`Vitals.limit_s`. It is over when nothing has
been wrong for :data:`STEADY_S`, so that a rank at the limit does not go to and fro.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pdcore.engine.messages import Stats
from pdcore.topology.keys import RankPosition

STEADY_S: Final = 2.0


@dataclass(slots=True)
class _Rank:
    heard_at: float
    advanced_at: float
    steps: int = 0
    running: int = 0


class Vitals:
    """Knows nothing of a rank until it has first been heard, which is for others to wait for."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._ranks: dict[RankPosition, _Rank] = {}
        self._trouble: str | None = None
        self._wrong_at = float("-inf")

    def heard(self, rank: RankPosition, stats: Stats, now: float) -> None:
        """``rank`` has said these figures."""
        known = self._ranks.setdefault(rank, _Rank(now, now))
        self.trouble(now)
        if stats.steps != known.steps or not stats.running:
            known.advanced_at = now
        known.heard_at, known.steps, known.running = now, stats.steps, stats.running

    def trouble(self, now: float) -> str | None:
        """What is wrong, as a sentence, or None."""
        found = next(iter(self._wrong(now)), None)
        if found is not None:
            self._trouble, self._wrong_at = found, now
        elif now - self._wrong_at >= STEADY_S:
            self._trouble = None
        return self._trouble

    def _wrong(self, now: float) -> Iterable[str]:
        for rank, known in self._ranks.items():
            silent_s, still_s = now - known.heard_at, now - known.advanced_at
            if silent_s > self.limit_s:
                yield f"rank {rank} has said nothing for {silent_s:.0f} s"
            elif known.running and still_s > self.limit_s:
                yield f"rank {rank} has done no step for {still_s:.0f} s with {known.running} requests running"
