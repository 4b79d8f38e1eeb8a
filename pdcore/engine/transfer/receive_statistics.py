"""What a decode rank's session tells of itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pdcore.engine.transfer.failures import FailureStatistics
from pdcore.engine.transfer.gauges import PeerDown, SideGauges
from pdcore.engine.transfer.prefill_link import PrefillLink
from pdcore.engine.transfer.receive_ledger import ReceiveLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveStatistics:
    """``handoffs`` are neither arrived nor drained. ``rooms`` counts parts that wait for their KV, ``quarantined`` those
    that are over but whose memory may still be written; these and ``in_doubt`` are 0 when nothing is open."""

    slots_total: int
    slots_used: int
    handoffs: int
    rooms: int
    quarantined: int
    in_doubt: int
    unanswered: int
    peers: int
    peers_down: tuple[PeerDown, ...]
    malformed: int
    failures: FailureStatistics

    @property
    def gauges(self) -> SideGauges:
        """The part that every side has."""
        return SideGauges(
            slots_total=self.slots_total,
            slots_used=self.slots_used,
            rooms=self.handoffs,
            peers_down=self.peers_down,
            failures=self.failures,
        )

    def __str__(self) -> str:
        return (
            f"{self.rooms} rooms, {self.quarantined} quarantined ({self.in_doubt} in doubt), "
            f"{self.slots_used}/{self.slots_total} slots, {self.peers} peers"
        )


def statistics_of(
    ledger: ReceiveLedger,
    links: Collection[PrefillLink],
    *,
    handoffs: int,
    slots_total: int,
    malformed: int,
    failures: FailureStatistics,
) -> ReceiveStatistics:
    """Counts of this instant."""
    held = [entry for entry in ledger if entry.held]
    return ReceiveStatistics(
        slots_total=slots_total,
        slots_used=ledger.slots_used,
        handoffs=handoffs,
        rooms=sum(not entry.request_over for entry in held),
        quarantined=sum(entry.request_over for entry in held),
        in_doubt=sum(entry.in_doubt for entry in held),
        unanswered=len(ledger) - len(held),
        peers=len(links),
        peers_down=tuple(_peer_down(link) for link in links if link.liveness.down),
        malformed=malformed,
        failures=failures,
    )


def _peer_down(link: PrefillLink) -> PeerDown:
    peer = link.identity
    return PeerDown(
        instance_id=peer.instance_id,
        incarnation=peer.incarnation,
        rank=f"{peer.dp}.{peer.cp}.{peer.tp}",
        why=link.liveness.down,
    )
