"""What a local cluster still waits for, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pdcore.topology.topology import Topology


def waiting_for(instance_ids: Iterable[str], router_id: str, topology: Topology) -> tuple[str, ...]:
    """One phrase per member that is not ready yet; empty when all are."""
    reasons = [reason for instance_id in instance_ids if (reason := _instance(instance_id, topology))]
    if router_id not in topology.routers:
        reasons.append(f"{router_id} (starting)")
    return tuple(reasons)


def _instance(instance_id: str, topology: Topology) -> str | None:
    instance = topology.instances.get(instance_id)
    if instance is None:
        return f"{instance_id} (starting)"
    if instance.ready:
        return None
    return f"{instance_id} ({'; '.join(instance.why_not_ready)})"
