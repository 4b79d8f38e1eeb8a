"""How busy an instance is: one sample, a few words of it in a header, and how fast tokens come. Pure.

Samples are told in three ways, and never enter the followed keyspace: ``GET /load`` is one, ``GET /load/stream`` goes on
telling them, and every answer to a generation request has the short form in ``x-pdcore-load``. Whoever reads one
decides how long it is worth something.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from pdcore.engine.messages import PeerDown, Stats
from pdcore.engine.state import LeaderState
from pdcore.topology.keys import RankPosition

HEADER: Final = "x-pdcore-load"
WINDOW_S: Final = 5.0
MOST_PEERS: Final = 16
"""So many prefill instances at most are named in the header, which has no room for more."""

StatsByRank = Mapping[RankPosition, Stats]


class Load:
    """Tokens per second over the last :data:`WINDOW_S`, from what the ranks have counted.

    Mutable: ``_counts`` (the newest of each rank), ``_totals`` (when they changed, to which sums, oldest first).
    """

    def __init__(self) -> None:
        self._counts: dict[RankPosition, tuple[int, int]] = {}
        self._totals: deque[tuple[float, int, int]] = deque()

    def heard(self, rank: RankPosition, stats: Stats, now: float) -> None:
        """``rank`` has said these figures; a count that went back is a rank's that started anew."""
        self._counts[rank] = (stats.prefill_tokens, stats.output_tokens)
        prefill, output = (sum(counts) for counts in zip(*self._counts.values(), strict=True))
        self._totals.append((now, prefill, output))
        self._forget(now)

    def tokens_s(self, now: float) -> tuple[float, float]:
        """Prompt tokens computed and tokens generated, each per second."""
        self._forget(now)
        if len(self._totals) < 2:
            return 0.0, 0.0
        since, *before = self._totals[0]
        _, *after = self._totals[-1]
        took_s = max(now - since, 0.1)
        prefill, output = (
            max(0.0, (last - first) / took_s) for first, last in zip(before, after, strict=True)
        )
        return prefill, output

    def _forget(self, now: float) -> None:
        """One entry that is older than the window stays, as where it begins."""
        while len(self._totals) > 1 and now - self._totals[1][0] > WINDOW_S:
            self._totals.popleft()


def load_sample(state: LeaderState, stats: StatsByRank, tokens_s: tuple[float, float]) -> dict[str, object]:
    """``dp`` holds the figures of each DP group, ``peers_down`` every prefill rank that some rank does not reach."""
    prefill_s, output_s = tokens_s
    return {
        "instance_id": state.instance_id,
        "incarnation": state.incarnation,
        "in_flight": state.in_flight,
        "prefill_tokens_s": round(prefill_s, 1),
        "output_tokens_s": round(output_s, 1),
        "dp": {
            str(rank.dp): {
                "kv_blocks_total": values.kv_blocks_total,
                "kv_blocks_used": values.kv_blocks_used,
                "kv_blocks_quarantined": values.kv_blocks_quarantined,
                "kv_blocks_free": _free(values),
                "waiting": _waiting(values),
                "transfer": values.transfer,
                "running": values.running,
            }
            for rank, values in sorted(stats.items())
            if rank.cp == rank.tp == 0
        },
        "peers_down": [msgspec.structs.asdict(peer) for peer in _down(stats)],
    }


def load_header(state: LeaderState, stats: StatsByRank, tokens_s: tuple[float, float]) -> str:
    """The same in one line of JSON, summed over DP groups; ``peers_down`` are (instance, incarnation) pairs."""
    groups = [values for rank, values in stats.items() if rank.cp == rank.tp == 0]
    peers = sorted({(peer.instance_id, peer.incarnation) for peer in _down(stats)})
    document = {
        "in_flight": state.in_flight,
        "waiting": sum(map(_waiting, groups)),
        "running": sum(values.running for values in groups),
        "kv_free": sum(map(_free, groups)),
        "kv_total": sum(values.kv_blocks_total for values in groups),
        "prefill_tokens_s": round(tokens_s[0], 1),
        "output_tokens_s": round(tokens_s[1], 1),
        "peers_down": peers[:MOST_PEERS],
    }
    return json.dumps(document, separators=(",", ":"))  # escapes what is not ASCII, as a header needs it


def _free(values: Stats) -> int:
    return max(0, values.kv_blocks_total - values.kv_blocks_used - values.kv_blocks_quarantined)


def _waiting(values: Stats) -> int:
    return values.bootstrap + values.prealloc + values.retracted


def _down(stats: StatsByRank) -> Iterable[PeerDown]:
    found = {
        (peer.instance_id, peer.incarnation, peer.rank): peer
        for values in stats.values()
        for peer in values.peers_down
    }
    return [peer for _, peer in sorted(found.items())]
