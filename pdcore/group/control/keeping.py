"""What a supervisor does next about the members of a group: from what is seen and what it runs to steps. Pure.

Only the holder of a member's slot starts it. All slots that are free are claimed in one transaction, so that prefill and
decode start together or not at all. A member on its way out is stopped once it holds nothing, or when its time is up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pdcore.group.control.backoff import MISCONFIGURED, Exits
from pdcore.group.control.generation import Generation
from pdcore.group.control.members import ROUTERS, Member, MemberRole
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import SlotPhase, SlotWord
from pdcore.group.control.state import is_ready
from pdcore.topology.orders import DRAINED

CANNOT_START: Final = MISCONFIGURED
"""The exit status of a member that was not even started: what it was given cannot work here."""
ChildPhase = Literal["running", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSeen:
    """A process of ours."""

    phase: ChildPhase
    pid: int | None = None
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a supervisor knows of itself. ``whys`` tells what the newest end of a member was about."""

    supervisor: str
    children: Mapping[Member, ChildSeen] = field(default_factory=dict)
    exits: Mapping[Member, Exits] = field(default_factory=dict)
    whys: Mapping[Member, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """Take every one of these slots, or none."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the member's process."""

    member: Member


@dataclass(frozen=True, slots=True)
class Stop:
    """End the member's process in order; ``why`` is for the log."""

    member: Member
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give the slot back; nothing runs in it."""

    member: Member


@dataclass(frozen=True, slots=True)
class Say:
    """Write ``word`` into the slot."""

    member: Member
    word: SlotWord


Task = Claim | Spawn | Stop | Release | Say


def next_tasks(seen: Seen, own: Own) -> tuple[Task, ...]:
    """Everything that can be done now; nothing when all that is wanted runs."""
    claimed = tuple(_claimable(seen, own))
    tasks: list[Task] = [Claim(claimed)] if claimed else []
    everybody = seen.plan.known | own.children.keys() | {one for one in seen.slots if seen.slots[one].mine}
    for member in sorted(everybody):
        tasks += _of_member(seen, own, member)
    return tuple(tasks)


def generation_of_member(seen: Seen, member: Member) -> Generation | None:
    """What ``member`` is started from; routers from the generation that takes the traffic."""
    number = seen.plan.active if member.generation == ROUTERS else member.generation
    return seen.generations.get(number)


def _claimable(seen: Seen, own: Own) -> Iterator[Member]:
    """Free slots of members that shall run, and those that were lost from under a running child."""
    for member in sorted(seen.plan.known):
        if member in seen.slots:
            continue
        shall_run = member in seen.plan.members and generation_of_member(seen, member) is not None
        if member in own.children or (shall_run and _depends_on_nobody(seen, member)):
            yield member


def _depends_on_nobody(seen: Seen, member: Member) -> bool:
    generation = generation_of_member(seen, member)
    role = None if generation is None else generation.roles.get(member.role)
    if role is None:
        return False
    roles: tuple[MemberRole, ...] = ("prefill", "decode", "router")
    needed = [one for one in roles if one in role.dependencies and one != member.role]
    number = seen.plan.active if member.generation == ROUTERS else member.generation
    return all(
        any(is_ready(seen.group, one, seen.topology, seen.slots) for one in seen.plan.of(role_needed, number))
        for role_needed in needed
    )


def _of_member(seen: Seen, own: Own, member: Member) -> Iterator[Task]:
    child, slot = own.children.get(member), seen.slots.get(member)
    if child is not None:
        if child.phase == "running" and (why := _why_stop(seen, member)) is not None:
            yield Stop(member, why)
    elif slot is not None and slot.mine:
        if member not in seen.plan.members:
            yield Release(member)
            return
        if _may_start(seen, own, member):
            yield Spawn(member)
    if slot is not None and slot.mine and (word := _word(seen, own, member)) != slot.word:
        yield Say(member, word)


def _may_start(seen: Seen, own: Own, member: Member) -> bool:
    generation, exits = generation_of_member(seen, member), own.exits.get(member, Exits())
    if generation is None or member.role not in generation.roles:
        return False
    return exits.count == 0 or (generation.restart_on_error and seen.now >= exits.again_at)


def _why_stop(seen: Seen, member: Member) -> str | None:
    slot = seen.slots.get(member)
    if slot is not None and not slot.mine:
        return "another supervisor holds its slot"
    if member in seen.plan.members:
        return None
    until = seen.plan.leaving.get(member)
    if until is None:
        return "it is not wanted any more"
    if member.role == "router":
        return "it is taken away"
    found = seen.instance(member)
    if found is None or (not found.ready and not found.draining):
        return "it leaves and serves nobody"
    if found.record.extra.get(DRAINED) is True:
        return "it has finished what it held"
    return "its time to finish is up" if seen.now >= until else None


def _word(seen: Seen, own: Own, member: Member) -> SlotWord:
    child, exits = own.children.get(member), own.exits.get(member, Exits())
    serves = is_ready(seen.group, member, seen.topology, seen.slots)
    phase: SlotPhase = "waiting" if exits.count else "held"
    if child is not None:
        phase = child.phase
    failed = exits.failed and not serves
    return SlotWord(
        supervisor=own.supervisor,
        phase=phase,
        pid=None if child is None else child.pid,
        exits=exits.count,
        failed=failed,
        url=child.url if child is not None and child.phase == "running" else "",
        why=own.whys.get(member, "") if exits.count and not serves else "",
    )
