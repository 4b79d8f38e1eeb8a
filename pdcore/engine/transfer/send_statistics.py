"""Counts of a prefill rank's session, as its tests and its gauges read them."""

from __future__ import annotations

from dataclasses import dataclass

from pdcore.engine.transfer.failures import FailureStatistics
from pdcore.engine.transfer.gauges import SideGauges


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStatistics:
    """``rooms`` have a leg, ``stashed`` wait for theirs, ``writing`` and ``queued`` count writes, ``pinned`` rooms whose
    source may still be read; all of these are 0 when nothing is open."""

    rooms: int
    stashed: int
    writing: int
    pinned: int
    peers: int
    malformed: int
    strays: int
    dropped: int
    failures: FailureStatistics

    def gauges(self) -> SideGauges:
        """The same for whoever asks every side."""
        return SideGauges(rooms=self.rooms + self.stashed + self.writing, failures=self.failures)
