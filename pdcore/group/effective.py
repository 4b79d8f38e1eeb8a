"""What each role really gets: the group's fields with the role's own on top, and where every value comes from. Pure.

Nothing here is saved with the spec; a generation freezes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from pdcore.group.flags import DATA_PARALLEL, PIPELINE_PARALLEL, TENSOR_PARALLEL, Flags
from pdcore.group.modes.mode import Mode
from pdcore.group.spec import OVERRIDES, GroupSpec, Overridable, Resources, RoleSpec, RouterProtocol

Source = Literal["user", "inherited", "mode", "derived"]

_ROUTER_INHERITS: Final = frozenset({"env", "worker_selector"})
_CUSTOM_ROUTER_INHERITS: Final = _ROUTER_INHERITS | {"image_name", "run_command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRole(Overridable):
    """One role with everything decided that the spec decides. ``sources`` has an entry for each field that is set."""

    name: str
    replicas: int
    dependencies: tuple[str, ...]
    resources: Resources | None
    protocol: RouterProtocol | None
    sources: Mapping[str, Source]

    @property
    def flags(self) -> Flags:
        """Its engine's flags."""
        return Flags.of(self.backend_parameters)

    @property
    def is_router(self) -> bool:
        return self.name == "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many ranks a member has. None where nobody said and it cannot be told from its cards."""

    tp: int | None
    dp: int | None
    pp: int | None

    @property
    def cards(self) -> int | None:
        """Accelerators of one member, when all three are known."""
        if self.tp is None or self.dp is None or self.pp is None:
            return None
        return self.tp * self.dp * self.pp


def effective_roles(spec: GroupSpec, mode: Mode) -> dict[str, EffectiveRole]:
    """Every role of ``spec`` by its name; of two with one name the first."""
    return {role.name: effective_role(spec, role, mode) for role in reversed(spec.roles)}


def effective_role(spec: GroupSpec, role: RoleSpec, mode: Mode) -> EffectiveRole:
    """``role`` with what it inherits. A router inherits no flags: only those written on it are appended."""
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {"name": "user", "replicas": "user"}
    inherits = _inherited_by(role, mode)
    for name in OVERRIDES:
        own, group = getattr(role, name), getattr(spec, name) if name in inherits else None
        values[name] = own if own is not None else group
        if values[name] is not None:
            sources[name] = "user" if own is not None else "inherited"
    if values["backend"] is None and role.name != "router":
        values["backend"], sources["backend"] = mode.backends[0], "mode"
    if role.protocol is None and mode.router_protocol is not None and role.name == "router":
        sources["protocol"] = "mode"
    elif role.protocol is not None:
        sources["protocol"] = "user"
    sources["dependencies"] = "derived" if role.dependencies is None else "user"
    return EffectiveRole(
        name=role.name,
        replicas=role.replicas,
        dependencies=dependencies_of(spec, role),
        resources=role.resources,
        protocol=role.protocol or (mode.router_protocol if role.name == "router" else None),
        sources=sources,
        **values,
    )


def dependencies_of(spec: GroupSpec, role: RoleSpec) -> tuple[str, ...]:
    """The roles that need a running member before ``role``: what it says, else all others for a router, none for others."""
    if role.dependencies is not None:
        return role.dependencies
    if role.name != "router":
        return ()
    return tuple(dict.fromkeys(other.name for other in spec.roles if other.name != "router"))


def parallelism_of(role: EffectiveRole) -> Parallelism:
    """What the flags declare; without any such flag a member of one machine has its cards' number as TP, and DP 1."""
    flags = role.flags
    tp, dp, pp = (flags.number(names) for names in (TENSOR_PARALLEL, DATA_PARALLEL, PIPELINE_PARALLEL))
    if role.backend == "pdcore":
        return Parallelism(tp=tp or 1, dp=dp or 1, pp=pp or 1)
    cards = pinned_cards(role)
    if (tp, dp, pp) == (None, None, None) and cards is not None and len(machines_of(role)) <= 1:
        return Parallelism(tp=cards, dp=1, pp=1)
    if tp is not None:
        return Parallelism(tp=tp, dp=dp or 1, pp=pp or 1)
    return Parallelism(tp=tp, dp=dp, pp=pp)


def pinned_cards(role: EffectiveRole) -> int | None:
    """How many accelerators a member gets, where its selector says so."""
    selector = role.gpu_selector
    if selector is None:
        return None
    if selector.gpus_per_replica is not None:
        return selector.gpus_per_replica
    if selector.gpu_ids and len(selector.gpu_ids) % role.replicas == 0:
        return len(selector.gpu_ids) // role.replicas
    return None


def machines_of(role: EffectiveRole) -> frozenset[str]:
    """The machines whose accelerators the role is pinned to."""
    ids = () if role.gpu_selector is None else role.gpu_selector.gpu_ids or ()
    return frozenset(one.partition(":")[0] for one in ids)


def _inherited_by(role: RoleSpec, mode: Mode) -> frozenset[str]:
    if role.name != "router":
        return frozenset(OVERRIDES)
    if mode.name == "custom" and role.protocol is None:
        return _CUSTOM_ROUTER_INHERITS
    return _ROUTER_INHERITS


FIELDS: Final = tuple(one.name for one in fields(EffectiveRole) if one.name != "sources")
