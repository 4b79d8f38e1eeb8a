"""The keyspace's word that an incarnation, or a part of it, has died or left: its parents hear it by the watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pdcore.engine.peers import View
from pdcore.topology.topology import Topology

FOREVER_S: Final = 3600.0
_FINAL: Final = frozenset({"died", "left", "drained", "ordered"})


def has_lost_a_rank(seen: Topology, instance_id: str, incarnation: str) -> bool:
    """Whether the incarnation stands, but without a rank, which died."""
    departed, instance = seen.departures.get(instance_id), seen.instances.get(instance_id)
    return (
        departed is not None
        and (departed.incarnation, departed.reason) == (incarnation, "died")
        and instance is not None
        and instance.incarnation == incarnation
        and len(instance.ranks) < instance.record.world_size
    )


def has_departed(seen: Topology, instance_id: str, incarnation: str) -> bool:
    """Whether the incarnation is gone, or a rank of it, for a reason that nobody comes back from."""
    departed, instance = seen.departures.get(instance_id), seen.instances.get(instance_id)
    if departed is None or departed.incarnation != incarnation or departed.reason not in _FINAL:
        return False
    gone = instance is None or instance.incarnation != incarnation
    return gone or has_lost_a_rank(seen, instance_id, incarnation)


async def wait_until(view: View, holds: Callable[[Topology], bool]) -> Topology:
    """The first topology for which it ``holds``, however long that takes."""
    while True:
        try:
            return await view.wait_until(holds, FOREVER_S)
        except TimeoutError:
            continue
