"""Whether an instance died while it held a request, by what is known of it now. Pure."""

from __future__ import annotations

from typing import Literal

from pdcore.registry.overlay.suspect import Overlay
from pdcore.router.pick import InstanceKey
from pdcore.topology.topology import Topology

Fate = Literal["lives", "left", "died"]
"""``left``: it went on purpose, so that nothing it held is to be blamed for it."""


def fate(topology: Topology, overlay: Overlay, key: InstanceKey, since: float) -> Fate | None:
    """What became of ``key``, against which something spoke at ``since``; None while nobody knows.

    ``topology`` is what readers are shown, suspects included.
    """
    name, incarnation = key
    suspect = overlay.suspects.get(name)
    if suspect is not None and suspect.key == key:
        if suspect.standing == "gone":
            return "died"
        return "lives" if suspect.standing == "kept" and suspect.heard_at > since else None
    shown = topology.instances.get(name)
    if shown is not None and shown.incarnation == incarnation:
        return "lives"
    departure = topology.departures.get(name)
    if departure is None or departure.incarnation != incarnation:
        return "died"
    return "died" if departure.reason in ("died", "silent") else "left"
