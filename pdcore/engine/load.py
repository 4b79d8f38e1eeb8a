"""How busy an instance is, as one sample. Pure.

Whoever asked decides how long it is worth something; it never enters the followed keyspace.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pdcore.engine.messages import PeerDown, Stats
from pdcore.engine.state import LeaderState
from pdcore.topology.keys import RankPosition


def load_sample(state: LeaderState, stats: Mapping[RankPosition, Stats]) -> dict[str, object]:
    """``dp`` holds the figures of each DP group, ``peers_down`` every prefill rank that some rank does not reach."""
    down: dict[tuple[str, str, str], PeerDown] = {
        (peer.instance_id, peer.incarnation, peer.rank): peer
        for values in stats.values()
        for peer in values.peers_down
    }
    return {
        "instance_id": state.instance_id,
        "incarnation": state.incarnation,
        "in_flight": state.in_flight,
        "dp": {
            str(rank.dp): {
                "kv_blocks_total": values.kv_blocks_total,
                "kv_blocks_used": values.kv_blocks_used,
                "kv_blocks_quarantined": values.kv_blocks_quarantined,
                "waiting": values.bootstrap + values.prealloc + values.retracted,
                "transfer": values.transfer,
                "running": values.running,
            }
            for rank, values in sorted(stats.items())
            if rank.cp == rank.tp == 0
        },
        "peers_down": [msgspec.structs.asdict(peer) for _, peer in sorted(down.items())],
    }
