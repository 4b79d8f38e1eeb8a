"""The keyspace's word that an incarnation, or a part of it, has died or left: its parents hear it by the watch."""

from __future__ import annotations

from typing import Final

from pdcore.engine.peers import View
from pdcore.topology.topology import Topology

FOREVER_S: Final = 3600.0
_FINAL: Final = frozenset({"died", "left", "drained", "ordered"})


def has_departed(seen: Topology, instance_id: str, incarnation: str) -> bool:
    """Whether some of the incarnation's keys are gone for a reason that nobody comes back from."""
    departed = seen.departures.get(instance_id)
    if departed is None or departed.incarnation != incarnation or departed.reason not in _FINAL:
        return False
    instance = seen.instances.get(instance_id)
    return instance is None or len(instance.ranks) < instance.record.world_size


async def wait_departed(view: View, instance_id: str, incarnation: str) -> None:
    """Return once :func:`has_departed`."""
    while True:
        try:
            await view.wait_until(lambda seen: has_departed(seen, instance_id, incarnation), FOREVER_S)
        except TimeoutError:
            continue
        return
