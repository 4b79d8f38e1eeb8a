"""What placeholders stand for: facts of the group, of a member's place, and of its peers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from pdcore.group.effective import EffectiveRole, Parallelism, Source, machines_of, parallelism_of
from pdcore.group.flags import DATA_PARALLEL, PIPELINE_PARALLEL, TENSOR_PARALLEL
from pdcore.group.modes.mode import Catalogue, Mode
from pdcore.group.modes.placeholders import Fact
from pdcore.group.spec import KvLoadFailurePolicy

WRITTEN: Final[Mapping[str, Source]] = {
    "model_path": "inherited",
    "model_name": "inherited",
}
"""Facts that a person wrote about the group; all others are derived."""
_PARALLELISM: Final = (*TENSOR_PARALLEL, *DATA_PARALLEL, *PIPELINE_PARALLEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortBand:
    """``count`` ports from ``base`` on."""

    base: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What holds for every member of a generation. ``python`` is the interpreter that has pdcore."""

    group: str
    generation: int | None
    model: str
    model_name: str
    policy: KvLoadFailurePolicy
    roles: Mapping[str, EffectiveRole]
    python: str | None = "python3"
    store: str | None = None
    cluster: str | None = None
    ascend_connector: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one member is: what is None or missing is not known, and whoever needs it cannot be started.

    ``port`` is its HTTP port, ``net_device`` the interface that carries KV, ``run_dir`` where files are written for it,
    ``accelerators`` how many it has.
    """

    instance_id: str | None = None
    worker_ip: str | None = None
    net_device: str | None = None
    port: int | None = None
    bands: Mapping[str, PortBand] = field(default_factory=dict)
    run_dir: str | None = None
    accelerators: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A prefill or decode member that a router is told of."""

    role: str
    ip: str
    port: int
    bands: Mapping[str, PortBand] = field(default_factory=dict)


def facts_of(
    catalogue: Catalogue, mode: Mode, group: GroupFacts, role: EffectiveRole, place: Place
) -> dict[str, Fact]:
    """Everything that is known for one member of ``role``."""
    known: dict[str, Fact | None] = {
        "group": group.group,
        "generation": group.generation,
        "group_id": None if group.generation is None else f"{group.group}-{group.generation}",
        "model_path": group.model,
        "model_name": group.model_name,
        "kv_load_failure_policy": group.policy,
        "python": group.python,
        "store": group.store,
        "cluster": group.cluster,
        "ascend_connector": group.ascend_connector,
        "role": role.name,
        "runner_image": role.image_name,
        "router.protocol": role.protocol,
        "instance_id": place.instance_id,
        "worker_ip": place.worker_ip,
        "net_device": place.net_device,
        "port": place.port,
        "run_dir": place.run_dir,
        **_lease(catalogue, mode),
        **_bands("ports", place.bands),
        **_roles(group.roles, place.accelerators),
    }
    return {name: fact for name, fact in known.items() if fact is not None}


def peer_facts(peer: Peer) -> dict[str, Fact]:
    """What is known of one peer."""
    host = f"[{peer.ip}]" if ":" in peer.ip else peer.ip
    url = f"http://{host}:{peer.port}"
    return {
        "peer.role": peer.role,
        "peer.ip": peer.ip,
        "peer.host": host,
        "peer.port": peer.port,
        "peer.url_encoded": quote(url, safe=""),
        **_bands("peer.ports", peer.bands),
    }


def sizes_of(role: EffectiveRole, accelerators: int | None) -> Parallelism:
    """What ``role`` declares or is pinned to, else what a member with so many ``accelerators`` on one machine gets."""
    said = parallelism_of(role)
    if (
        said.tp is None
        and not declares_parallelism(role)
        and accelerators is not None
        and len(machines_of(role)) <= 1
    ):
        return Parallelism(tp=accelerators, dp=1, pp=1)
    return said


def declares_parallelism(role: EffectiveRole) -> bool:
    """Whether any of the role's own flags says how its ranks are laid out."""
    return role.flags.last(_PARALLELISM) is not None


def source_of(names: list[str]) -> Source:
    """Where a word comes from whose placeholders have these ``names``."""
    if not names:
        return "mode"
    sources = {WRITTEN.get(name, "derived") for name in names}
    return sources.pop() if len(sources) == 1 else "derived"


def _lease(catalogue: Catalogue, mode: Mode) -> dict[str, Fact]:
    lease = catalogue.lease_of(mode)
    if lease is None or lease.parameter is None or lease.platform_default_s is None:
        return {}
    seconds = lease.platform_default_s
    return {lease.parameter: seconds}


def _bands(prefix: str, bands: Mapping[str, PortBand]) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for name, band in bands.items():
        found |= {f"{prefix}.{name}": band.base, f"{prefix}.{name}.count": band.count}
    return found


def _roles(roles: Mapping[str, EffectiveRole], accelerators: int | None) -> dict[str, Fact | None]:
    found: dict[str, Fact | None] = {}
    for name, role in roles.items():
        found[f"roles.{name}.replicas"] = role.replicas
        if role.is_router:
            continue
        sizes = sizes_of(role, accelerators)
        found |= {
            f"roles.{name}.tp_size": sizes.tp,
            f"roles.{name}.dp_size": sizes.dp,
            f"roles.{name}.pp_size": sizes.pp,
        }
    return found
