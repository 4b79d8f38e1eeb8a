"""A group at known addresses, rendered member by member."""

from __future__ import annotations

from typing import Any, Final

from pdcore.group.effective import effective_roles
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.render.engine import render_engine
from pdcore.group.render.facts import GroupFacts, Peer, Place, PortBand
from pdcore.group.render.needs import needs_of
from pdcore.group.render.rendered import Rendered
from pdcore.group.render.router import render_router
from pdcore.group.spec import GroupSpec, spec_of

W: Final = "10.0.0.7"
NIC: Final = "eth1"
PORT: Final = 40000
BASE: Final = 40001
"""Where a member's first band begins; HTTP is at PORT."""


def spec(
    mode: str, *, prefill: Any = None, decode: Any = None, router: Any = None, **fields: Any
) -> GroupSpec:
    """A spec of one prefill, decode and router, with more said by each."""
    disaggregation = {"mode": mode, **fields.pop("disaggregation", {})}
    roles = [
        {"name": name, **(said or {})}
        for name, said in (("prefill", prefill), ("decode", decode), ("router", router))
    ]
    return spec_of(
        {"name": "g", "model": "/models/qwen", "disaggregation": disaggregation, "roles": roles, **fields}
    )


def group_facts(made: GroupSpec, **more: Any) -> GroupFacts:
    """Its first generation."""
    known: dict[str, Any] = {
        "group": made.name,
        "generation": 1,
        "model": made.model,
        "model_name": made.served_name,
        "policy": made.kv_load_failure_policy,
        "roles": effective_roles(made, catalogue().mode(made.mode)),
        "store": "etcd://10.0.0.1:2379",
        "cluster": "default",
        "ascend_connector": "MooncakeHybridConnector",
        **more,
    }
    return GroupFacts(**known)


def member(made: GroupSpec, role: str, *, peers: tuple[Peer, ...] = (), **place: Any) -> Rendered:
    """One member of ``role`` at W with every port that it needs."""
    modes = catalogue()
    mode = modes.mode(made.mode)
    facts = group_facts(made)
    one = facts.roles[role]
    bands: dict[str, PortBand] = {}
    base = BASE
    for need in needs_of(modes, mode, one, place.get("accelerators")):
        if need.name != "http" and need.count is not None:
            bands[need.name] = PortBand(base=base, count=need.count)
            base += need.count
    known: dict[str, Any] = {
        "instance_id": f"g-1-{role}-1",
        "worker_ip": W,
        "net_device": NIC,
        "port": PORT,
        "bands": bands,
        "run_dir": "/run/g",
        **place,
    }
    where = Place(**known)
    if role == "router":
        return render_router(modes, mode, facts, one, where, peers)
    return render_engine(modes, mode, facts, one, where)


def peers(bands: dict[str, int] | None = None) -> tuple[Peer, ...]:
    """Two prefills and a decode."""
    known = {name: PortBand(base=base) for name, base in (bands or {}).items()}
    return (
        Peer(role="decode", ip="10.0.0.9", port=40020),
        Peer(role="prefill", ip="10.0.0.8", port=40010, bands=known),
        Peer(role="prefill", ip="10.0.0.7", port=40000, bands=known),
    )
