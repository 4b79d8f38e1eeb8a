"""What a rank's side of hand-offs tells of itself, whatever its role."""

from __future__ import annotations

from dataclasses import dataclass

from pdcore.engine.transfer.failures import FailureStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDown:
    """A prefill rank that does not answer, or whose writes do not arrive."""

    instance_id: str
    incarnation: str
    rank: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SideGauges:
    """``rooms`` counts hand-offs that are not over for the session, quarantined ones included; ``failures`` are totals
    since it opened."""

    slots_total: int = 0
    slots_used: int = 0
    rooms: int = 0
    peers_down: tuple[PeerDown, ...] = ()
    failures: FailureStatistics | None = None
