"""The state of a group: one pure function of its records, its slots and the view.

A member counts as ready when it is registered, complete, serves and is not on its way out. Readiness is judged before
failure: what serves is not in error, however many of its members are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pdcore.group.control.generation import Generation
from pdcore.group.control.members import ENGINE_ROLES, ROLES, Member, MemberRole, of_role
from pdcore.group.control.plan import Plan
from pdcore.group.control.slots import Slot
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology

StateName = Literal["pending", "partial", "running", "error"]
TITLES: Final[Mapping[StateName, str]] = {
    "pending": "Pending",
    "partial": "Partially ready",
    "running": "Running",
    "error": "Error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCount:
    """Members of one role: wished for, ready, on their way out, in error."""

    desired: int
    ready: int
    draining: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """Something that is not as it should be although the group may serve."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """``sentence`` says what it waits for, or that it serves. ``stale``: a saved spec waits for a restart, which is none
    that is under way."""

    name: StateName
    sentence: str
    roles: Mapping[MemberRole, RoleCount]
    stale: bool
    degradations: tuple[Degradation, ...]

    @property
    def title(self) -> str:
        return TITLES[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a state is judged by. ``newest`` is what the saved spec would be if it were frozen now, ``coming`` what a
    restart under way leads to. ``kept``: whoever asks starts members himself."""

    group: str
    plan: Plan
    running: Generation | None
    newest: Generation | None
    slots: Mapping[Member, Slot]
    topology: Topology
    package: str
    coming: Generation | None = None
    kept: bool = False


def state_of(facts: Facts) -> GroupState:
    """The state, with everything a person is told beside it."""
    counts = {role: _count(facts, role) for role in ROLES}
    name = _name(counts, needs_all=facts.running is not None and facts.running.readiness == "all")
    ahead = facts.coming or facts.running
    stale = facts.newest is not None and ahead is not None and facts.newest.digest != ahead.digest
    return GroupState(
        name=name,
        sentence=_sentence(facts, counts, name),
        roles=counts,
        stale=stale,
        degradations=tuple(_degradations(facts, counts, name)),
    )


def is_ready(group: str, member: Member, topology: Topology, slots: Mapping[Member, Slot]) -> bool:
    """Whether ``member`` could take requests if its generation were the active one.

    Who does not register is as ready as its supervisor says.
    """
    name, slot = member.name_in(group), slots.get(member)
    if slot is not None and slot.word is not None and slot.word.url:
        return True
    if member.role == "router":
        return name in topology.routers
    found = topology.instances.get(name)
    return found is not None and _is_this(group, member, found) and found.ready and not found.draining


def _is_this(group: str, member: Member, found: Instance) -> bool:
    record = found.record
    return (record.group, record.generation, record.role) == (group, member.generation, member.role)


def _count(facts: Facts, role: MemberRole) -> RoleCount:
    plan = facts.plan
    living = plan.of(role)
    return RoleCount(
        desired=plan.replicas.get(role, 0),
        ready=sum(is_ready(facts.group, one, facts.topology, facts.slots) for one in living),
        draining=len(of_role(plan.leaving, plan.active, role)),
        failed=sum(one in facts.slots and facts.slots[one].failed for one in living),
    )


def _name(counts: Mapping[MemberRole, RoleCount], *, needs_all: bool) -> StateName:
    wanted = [one for one in counts.values() if one.desired]
    if wanted and all(one.ready >= (one.desired if needs_all else 1) for one in wanted):
        return "running"
    if any(one.ready for one in wanted):
        return "partial"
    return "error" if any(one.failed for one in wanted) else "pending"


def _sentence(facts: Facts, counts: Mapping[MemberRole, RoleCount], name: StateName) -> str:
    if facts.plan.ending:
        left = len(facts.plan.known)
        return f"is being deleted; {left} {'member has' if left == 1 else 'members have'} still to leave"
    if facts.plan.restart is not None and name != "running":
        return f"{_restart_sentence(facts)}; {_waits_for(facts, counts)}"
    if name == "running":
        return _restart_sentence(facts) or "serves"
    if name == "error":
        failed = sum(one.failed for one in counts.values())
        wanted = sum(one.desired for one in counts.values())
        return f"{failed} of {wanted} members failed: {'; '.join(_failures(facts)) or 'no cause is known'}"
    return _waits_for(facts, counts)


def _waits_for(facts: Facts, counts: Mapping[MemberRole, RoleCount]) -> str:
    needs_all = facts.running is not None and facts.running.readiness == "all"
    missing = [
        f"{role} ({one.ready} of {one.desired} ready)"
        for role, one in counts.items()
        if one.desired and one.ready < (one.desired if needs_all else 1)
    ]
    if not facts.kept and not facts.slots and not any(one.ready for one in counts.values()):
        return f"waits for somebody to start its members: pdcore up, for {', '.join(missing) or 'none'}"
    failures = list(_failures(facts))
    return f"waits for {', '.join(missing) or 'nothing'}" + (
        f"; failed: {'; '.join(failures)}" if failures else ""
    )


def _restart_sentence(facts: Facts) -> str:
    restart = facts.plan.restart
    if restart is None:
        return ""
    doing = {
        "stopping": f"stops generation {restart.before} before it starts {restart.to}",
        "starting": f"starts generation {restart.to}"
        + (f" beside {restart.before}" if restart.kind == "blue-green" else ""),
        "switching": f"waits until every router sends to generation {restart.to}",
        "draining": f"drains generation {restart.before}",
        "rolling_back": f"goes back to generation {restart.before}: {restart.why}",
    }
    return f"restart: {doing[restart.phase]}"


def _failures(facts: Facts) -> Iterator[str]:
    for member in sorted(facts.plan.members):
        slot = facts.slots.get(member)
        if slot is not None and slot.word is not None and slot.word.failed:
            yield f"{member.name_in(facts.group)}: {slot.word.why or 'it wrote nothing'}"


def _degradations(
    facts: Facts, counts: Mapping[MemberRole, RoleCount], name: StateName
) -> Iterator[Degradation]:
    short = [role for role, one in counts.items() if one.ready < one.desired]
    if name == "running" and short:
        has = ":".join(str(counts[role].ready) for role in ENGINE_ROLES)
        wants = ":".join(str(counts[role].desired) for role in ENGINE_ROLES)
        yield Degradation(
            code="ratio_unmet",
            sentence=f"ratio {wants} (currently {has}), waiting for {', '.join(short)}",
        )
    if name != "error" and (failures := list(_failures(facts))):
        yield Degradation(code="members_failed", sentence="; ".join(failures))
    if facts.running is not None:
        yield from (Degradation(code=code, sentence=sentence) for code, sentence in facts.running.advice)
    if facts.running is not None and facts.running.package != facts.package:
        yield Degradation(
            code="package_differs",
            sentence=f"generation {facts.running.number} was made by version {facts.running.package}, "
            f"this is {facts.package}",
        )
    if facts.plan.last_restart is not None and facts.plan.last_restart.result != "done":
        last = facts.plan.last_restart
        yield Degradation(
            code="restart_not_done", sentence=f"the restart to {last.to} was {last.result}: {last.why}"
        )
    yield from _strangers(facts)


def _strangers(facts: Facts) -> Iterator[Degradation]:
    """Instances that say they are of this group and that nobody planned."""
    planned = {member.name_in(facts.group) for member in facts.plan.known}
    for name, found in sorted(facts.topology.instances.items()):
        if found.record.group == facts.group and name not in planned:
            yield Degradation(
                code="stranger",
                sentence=f"{name} says it is {found.role} of generation {found.record.generation}, "
                "and is no planned member",
            )
