"""What readers are shown: the keyspace's topology with the suspects' last records in it, and who is in doubt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pdcore.registry.overlay.suspect import Overlay
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology, with_instances


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """``suspects`` are to be picked only when nothing confirmed has room, for the reason in ``why``. ``gone`` says of
    instances that the keyspace still shows why they are not to be picked at all."""

    topology: Topology
    suspects: frozenset[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    why: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def view(overlay: Overlay, topology: Topology) -> View:
    """``topology`` as its readers should see it; the very same one while nobody is suspect."""
    if not overlay.suspects:
        return View(topology=topology)
    shown: dict[str, Instance | None] = {}
    gone: dict[str, str] = {}
    why: dict[str, str] = {}
    for name, one in overlay.suspects.items():
        if one.standing in ("doubted", "kept"):
            why[name] = one.why
            if not one.listed:
                shown[name] = replace(one.instance, order=topology.orders.get(name))
        elif one.standing == "gone" and name in topology.instances:
            gone[name] = one.why
    return View(
        topology=with_instances(topology, shown),
        suspects=frozenset(why),
        gone=MappingProxyType(gone),
        why=MappingProxyType(why),
    )
