"""How much of decode waits for prefill instances, and how much may. Pure; what is counted is the caller's.

A block, or a place in the batch, waits from its hand-off's admission until the KV has arrived or can never arrive any
more. So a peer that stops answering takes its share and no more, and all peers together leave the rest to requests
that run.
"""

from __future__ import annotations

from operator import add, sub

from pdcore.engine.kv.block_groups import within
from pdcore.engine.kv.blocks import Counts
from pdcore.engine.scheduler.request import Peer


class Backlog:
    """``total`` is what there is of each kind. Whoever has nothing waiting may have one hand-off, however large."""

    def __init__(self, total: Counts, *, peer_share: float, total_share: float) -> None:
        self._peer_most = tuple(int(count * peer_share) for count in total)
        self._most = tuple(int(count * total_share) for count in total)
        self._by_peer: dict[Peer, Counts] = {}
        self._hand_offs: dict[Peer, int] = {}
        self._sum: Counts = (0,) * len(total)

    def add(self, peer: Peer, counts: Counts) -> None:
        """So much begins to wait."""
        self._by_peer[peer] = _plus(self._by_peer[peer], counts) if peer in self._by_peer else counts
        self._hand_offs[peer] = self._hand_offs.get(peer, 0) + 1
        self._sum = _plus(self._sum, counts)

    def remove(self, peer: Peer, counts: Counts) -> None:
        """What one ``add`` said waits no longer."""
        self._hand_offs[peer] -= 1
        self._by_peer[peer] = _minus(self._by_peer[peer], counts)
        self._sum = _minus(self._sum, counts)
        if not self._hand_offs[peer]:
            del self._by_peer[peer], self._hand_offs[peer]

    def peer_has_room(self, peer: Peer, counts: Counts) -> bool:
        """Whether so much more stays within the peer's share."""
        waiting = self._by_peer.get(peer)
        return waiting is None or within(_plus(waiting, counts), self._peer_most)

    def has_room(self, counts: Counts, stuck: Counts | None = None) -> bool:
        """Whether so much more stays within what all may have together; with ``stuck``, beside that alone."""
        waiting = self._sum if stuck is None else stuck
        return not any(waiting) or within(_plus(waiting, counts), self._most)

    def of(self, peer: Peer) -> Counts:
        """What waits for ``peer``."""
        return self._by_peer.get(peer, (0,) * len(self._sum))


def _plus(a: Counts, b: Counts) -> Counts:
    return tuple(map(add, a, b))


def _minus(a: Counts, b: Counts) -> Counts:
    return tuple(map(sub, a, b))
