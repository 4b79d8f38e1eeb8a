"""A group's status as people and programs read it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.markup import escape
from rich.table import Table

from pdcore.group.control.applying import saved_spec
from pdcore.group.control.generation import frozen
from pdcore.group.control.members import Member
from pdcore.group.control.plan import Plan, moment
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import Slot
from pdcore.group.control.state import Facts, GroupState, is_ready, state_of
from pdcore.topology.records import Json
from pdcore.topology.topology import Topology

_COLUMNS: Final = (
    "member",
    "role",
    "generation",
    "state",
    "ready",
    "requests",
    "supervisor",
    "pid",
    "exits",
    "why",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One group: its state, and what it is made of. ``load`` counts requests by instance id, where routers told."""

    seen: Seen
    state: GroupState
    load: Mapping[str, int]


def facts_of(seen: Seen, package: str, *, kept: bool = False) -> Facts:
    """What the state of ``seen`` is judged by; ``kept`` where whoever asks starts members himself."""
    restart = seen.plan.restart
    leads_to = None if restart is None or restart.phase == "rolling_back" else restart.to
    found = seen.topology.groups.get(seen.group)
    saved = None if found is None else saved_spec(found.spec)
    return Facts(
        group=seen.group,
        plan=seen.plan,
        running=seen.generations.get(seen.plan.active),
        newest=None if saved is None else frozen(saved, seen.plan.active, package),
        slots=seen.slots,
        topology=seen.topology,
        package=package,
        coming=None if leads_to is None else seen.generations.get(leads_to),
        kept=kept,
    )


def status_of(seen: Seen, package: str, load: Mapping[str, int], *, kept: bool = False) -> Status:
    """The whole status; ``kept`` as :func:`facts_of` has it."""
    return Status(seen=seen, state=state_of(facts_of(seen, package, kept=kept)), load=load)


def document(status: Status) -> dict[str, Json]:
    """For programs."""
    seen, state, plan = status.seen, status.state, status.seen.plan
    return {
        "group": seen.group,
        "state": state.name,
        "sentence": state.sentence,
        "stale": state.stale,
        "active": plan.active,
        "candidate": plan.candidate,
        "roles": {
            role: {"desired": one.desired, "ready": one.ready, "draining": one.draining, "failed": one.failed}
            for role, one in state.roles.items()
        },
        "degradations": [{"code": one.code, "sentence": one.sentence} for one in state.degradations],
        "endpoints": list(endpoints(seen.group, plan, seen.topology)),
        "restart": _restart(plan),
        "last_restart": _last(plan),
        "members": [_member(status, one) for one in sorted(plan.known)],
    }


def endpoints(group: str, plan: Plan, topology: Topology) -> Iterator[str]:
    """Where clients ask: routers only. Engines answer HTTP too, and none of them can answer a whole request."""
    for member in sorted(plan.members):
        found = topology.routers.get(member.name_in(group)) if member.role == "router" else None
        if found is not None:
            yield found.url


def headline(status: Status) -> str:
    """The state in one line."""
    state, plan = status.state, status.seen.plan
    return (
        f"{status.seen.group}: {state.title}, generation {plan.active}: {state.sentence}{_stale(state, plan)}"
    )


def _stale(state: GroupState, plan: Plan) -> str:
    """That something saved waits, and for what; a restart is no advice where none can begin."""
    if not state.stale or plan.ending:
        return ""
    applies = "pdcore group restart applies it"
    if plan.restart is None:
        return f"; the saved spec is newer than what runs: {applies}"
    return f"; the saved spec is newer than what this leads to: {applies} once this is over"


def table(status: Status) -> Table:
    """For people."""
    made = Table(
        title=escape(headline(status)),
        caption="\n".join(map(escape, _notes(status))) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in _COLUMNS:
        numeric = column in {"generation", "requests", "pid", "exits"}
        made.add_column(
            column, justify="right" if numeric else "left", overflow="fold", no_wrap=column == "member"
        )
    for member in sorted(status.seen.plan.known):
        row = _member(status, member)
        made.add_row(*(escape(_shown(row[column])) for column in _COLUMNS))
    return made


def _notes(status: Status) -> Iterator[str]:
    counts = status.state.roles
    yield ", ".join(
        f"{role} {one.ready}/{one.desired}" + (f" ({one.draining} draining)" if one.draining else "")
        for role, one in counts.items()
    )
    for url in endpoints(status.seen.group, status.seen.plan, status.seen.topology):
        yield f"clients ask {url}"
    for one in status.state.degradations:
        yield f"{one.code}: {one.sentence}"


def _member(status: Status, member: Member) -> dict[str, Json]:
    seen = status.seen
    name = member.name_in(seen.group)
    slot = seen.slots.get(member)
    word = None if slot is None else slot.word
    return {
        "member": name,
        "role": member.role,
        "generation": member.generation or None,
        "state": _state(seen, member, slot),
        "ready": is_ready(seen.group, member, seen.topology, seen.slots),
        "requests": status.load.get(name),
        "supervisor": None if word is None else word.supervisor,
        "pid": None if word is None else word.pid,
        "exits": 0 if word is None else word.exits,
        "why": "" if word is None else word.why,
    }


def _state(seen: Seen, member: Member, slot: Slot | None) -> str:
    if member in seen.plan.leaving:
        return f"leaving until {moment(seen.plan.leaving[member])}"
    if slot is None:
        return "nobody runs it"
    if slot.failed:
        return "failed"
    return "held" if slot.word is None else slot.word.phase


def _restart(plan: Plan) -> dict[str, Json] | None:
    one = plan.restart
    if one is None:
        return None
    return {
        "kind": one.kind,
        "phase": one.phase,
        "before": one.before,
        "to": one.to,
        "by": one.by,
        "since": moment(one.since),
        "deadline": moment(one.deadline),
        "why": one.why,
    }


def _last(plan: Plan) -> dict[str, Json] | None:
    one = plan.last_restart
    return None if one is None else {"to": one.to, "result": one.result, "why": one.why, "at": moment(one.at)}


def _shown(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
