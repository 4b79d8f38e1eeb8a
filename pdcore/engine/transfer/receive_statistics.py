"""What a decode rank's session tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from pdcore.engine.transfer.failures import FailureStatistics
from pdcore.engine.transfer.gauges import PeerDown
from pdcore.engine.transfer.prefill_link import PrefillLink


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


def peer_down(link: PrefillLink) -> PeerDown:
    """What is said of a link that is down."""
    peer = link.identity
    return PeerDown(
        instance_id=peer.instance_id,
        incarnation=peer.incarnation,
        rank=f"{peer.dp}.{peer.cp}.{peer.tp}",
        why=link.liveness.down,
    )
