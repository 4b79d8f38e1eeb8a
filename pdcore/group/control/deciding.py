"""What a group's controller does next: from what is seen to steps, one change of the plan at a time. Pure.

Any number of controllers may decide at once: a step that changes the plan is written only if the plan is still the one
it was decided on, and orders can be given twice. So whoever is interrupted anywhere is continued by the next look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from pdcore.group.control.members import ENGINE_ROLES, ROLES, ROUTERS, Member, MemberRole, additional, of_role
from pdcore.group.control.plan import LastRestart, Plan, Restart, Result, engines_of
from pdcore.group.control.seen import Seen
from pdcore.group.control.state import is_ready
from pdcore.topology.orders import meaning
from pdcore.topology.records import OrderKind

KEPT_GENERATIONS: Final = 10
"""How many generations that are over stay to be read."""
ORPHAN_S: Final = 15.0
"""How long a member that nobody holds may outlive its time before it is ordered to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revise:
    """Write ``plan`` in place of the one that was seen."""

    plan: Plan
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Order one incarnation; ``undrain`` takes an order of ours back."""

    instance_id: str
    incarnation: str
    kind: OrderKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """Ask the candidate one real question, through a router."""

    generation: int
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRouters:
    """Find out whether every router of the view knows the store up to ``revision``."""

    revision: int


@dataclass(frozen=True, slots=True)
class AskLoad:
    """Find out how many requests each instance holds."""


@dataclass(frozen=True, slots=True)
class Erase:
    """Remove the group's keys: it was to go with its last member, and that one has left."""


@dataclass(frozen=True, slots=True)
class Prune:
    """Forget generations of which nothing is left."""

    numbers: tuple[int, ...]


Step = Revise | Erase | Prune | Command | Prove | AskRouters | AskLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What asking has brought. ``proven`` are proofs that were answered; ``load`` is None until it was asked for.

    ``routers_at``: the revision that every router of the view has confirmed.
    """

    proven: frozenset[str] = frozenset()
    not_proven: str = ""
    routers_at: int = 0
    not_switched: str = ""
    load: Mapping[str, int] | None = None


def next_steps(seen: Seen, evidence: Evidence) -> tuple[Step, ...]:
    """Everything that can be done now; nothing when the group is as its plan says."""
    revised = next(_revisions(seen, evidence), None)
    old = _forgettable(seen)
    return (*_orders(seen), *((Prune(old),) if old else ()), *(() if revised is None else (revised,)))


def signature(group: str) -> str:
    """By whom our orders are."""
    return f"group:{group}"


def _forgettable(seen: Seen) -> tuple[int, ...]:
    """All but the newest generations that no member is of and nobody may go back to."""
    restart = seen.plan.restart
    used = {seen.plan.active, seen.plan.candidate, *(one.generation for one in seen.plan.known)}
    if restart is not None:
        used |= {restart.before, restart.to}
    return tuple(sorted(seen.generations.keys() - used)[:-KEPT_GENERATIONS])


def _revisions(seen: Seen, evidence: Evidence) -> Iterator[Step]:
    gone = [one for one in sorted(seen.plan.leaving) if not seen.is_there(one)]
    if gone:
        names = ", ".join(one.name_in(seen.group) for one in gone)
        yield Revise(plan=seen.plan.forgetting(*gone), why=f"{names} left")
    if seen.plan.ending and not seen.plan.known:
        yield Erase()
    if seen.plan.restart is not None:
        yield from _restarting(seen, seen.plan.restart, evidence)
    if seen.plan.restart is None or (
        seen.plan.restart.kind == "stop-start" and seen.plan.restart.phase == "starting"
    ):
        yield from _growing(seen)
        for role in ROLES:
            yield from _shrinking(seen, role, evidence)


def _growing(seen: Seen) -> Iterator[Step]:
    """Everybody who is missing in one change, so that prefill and decode begin together."""
    plan = seen.plan
    added = [
        one for role in ROLES for one in _added(plan, role, plan.replicas.get(role, 0) - len(plan.of(role)))
    ]
    if added:
        names = ", ".join(one.name_in(seen.group) for one in added)
        yield Revise(plan=plan.with_members(*added), why=f"{names} shall run")


def _shrinking(seen: Seen, role: MemberRole, evidence: Evidence) -> Iterator[Step]:
    plan = seen.plan
    have = plan.of(role)
    surplus = len(have) - plan.replicas.get(role, 0)
    if surplus > 0 and role != "router" and evidence.load is None:
        yield AskLoad()
    elif surplus > 0:
        gone = victims(seen, have, surplus, evidence.load or {})
        names = ", ".join(one.name_in(seen.group) for one in gone)
        yield Revise(
            plan=plan.without(*gone, until=seen.now + plan.drain_limit_s), why=f"{names} shall leave"
        )


def _added(plan: Plan, role: MemberRole, count: int) -> list[Member]:
    """Who is called back first: members on their way out, the latest of them first; then new numbers."""
    if count <= 0:
        return []
    generation = ROUTERS if role == "router" else plan.active
    leaving = sorted(of_role(plan.leaving, plan.active, role), key=lambda one: -plan.leaving[one])
    back = leaving[:count]
    taken = [one.number for one in of_role(plan.known, plan.active, role)]
    return [*back, *(Member(generation, role, n) for n in additional(taken, count - len(back)))]


def victims(seen: Seen, have: list[Member], count: int, load: Mapping[str, int]) -> list[Member]:
    """Who leaves: those that serve nothing, then those with the fewest requests, then the newest numbers."""

    def cost(one: Member) -> tuple[bool, int, int]:
        return (
            is_ready(seen.group, one, seen.topology, seen.slots),
            load.get(one.name_in(seen.group), 0),
            -one.number,
        )

    return sorted(have, key=cost)[:count]


def _restarting(seen: Seen, restart: Restart, evidence: Evidence) -> Iterator[Step]:
    if restart.kind == "stop-start":
        yield from _stop_start(seen, restart)
    elif restart.phase == "starting":
        yield from _candidate(seen, restart, evidence)
    elif restart.phase == "switching":
        yield from _switching(seen, restart, evidence)
    elif not any(one.generation == _leaver(restart) for one in seen.plan.known):
        back = restart.phase == "rolling_back"
        yield _ended(seen, restart, "rolled back" if back else "done", restart.why)


def _leaver(restart: Restart) -> int:
    return restart.to if restart.phase == "rolling_back" else restart.before


def _stop_start(seen: Seen, restart: Restart) -> Iterator[Step]:
    plan = seen.plan
    if restart.phase == "stopping":
        if not plan.leaving:
            started = replace(plan, restart=replace(restart, phase="starting"))
            yield Revise(plan=started, why=f"generation {restart.before} has stopped")
        return
    wanted = [one for role in ROLES for one in plan.of(role)]
    enough = len(wanted) == sum(plan.replicas.values())
    if enough and all(is_ready(seen.group, one, seen.topology, seen.slots) for one in wanted):
        yield _ended(seen, restart, "done", "")
    elif seen.now >= restart.deadline:
        yield _ended(seen, restart, "lapsed", "not everything was ready in time")


def _candidate(seen: Seen, restart: Restart, evidence: Evidence) -> Iterator[Step]:
    members = engines_of(seen.plan, restart.to)
    failed = [one for one in members if one in seen.slots and seen.slots[one].failed]
    waiting = [one for one in members if not is_ready(seen.group, one, seen.topology, seen.slots)]
    if failed:
        word = seen.slots[failed[0]].word
        why = (word.why if word is not None else "") or "it wrote nothing"
        yield _rolled_back(seen, restart, f"{failed[0].name_in(seen.group)} cannot start: {why}")
    elif seen.now >= restart.deadline:
        yield _rolled_back(seen, restart, _unproven(seen, waiting, evidence))
    elif not waiting and restart.proof in evidence.proven:
        switched = replace(
            seen.plan.candidate_is(None),
            active=restart.to,
            restart=replace(restart, phase="switching"),
        )
        yield Revise(plan=switched, why=f"generation {restart.to} is proven and takes the traffic")
    elif not waiting:
        yield Prove(generation=restart.to, proof=restart.proof)


def _unproven(seen: Seen, waiting: list[Member], evidence: Evidence) -> str:
    if not waiting:
        return f"not proven by its deadline: {evidence.not_proven or 'no request was answered'}"
    return f"not ready by its deadline: {', '.join(one.name_in(seen.group) for one in waiting)}"


def _rolled_back(seen: Seen, restart: Restart, why: str) -> Revise:
    plan = seen.plan.candidate_is(None).without(*engines_of(seen.plan, restart.to), until=seen.now)
    back = replace(restart, phase="rolling_back", why=why)
    return Revise(plan=replace(plan, restart=back), why=f"generation {restart.to} is given up: {why}")


def _switching(seen: Seen, restart: Restart, evidence: Evidence) -> Iterator[Step]:
    """No member of the old generation is told to go while a router may still send to it."""
    if seen.topology.routers and evidence.routers_at < seen.revision:
        yield AskRouters(revision=seen.revision)
        return
    until = seen.now + seen.plan.drain_limit_s
    plan = seen.plan.without(*engines_of(seen.plan, restart.before), until=until)
    draining = replace(restart, phase="draining")
    why = f"every router sends to generation {restart.to}; {restart.before} drains"
    yield Revise(plan=replace(plan, restart=draining), why=why)


def _ended(seen: Seen, restart: Restart, result: Result, why: str) -> Revise:
    last = LastRestart(to=restart.to, result=result, why=why, at=seen.now)
    return Revise(
        plan=replace(seen.plan, restart=None, last_restart=last),
        why=f"the restart to generation {restart.to} is {result}",
    )


def _orders(seen: Seen) -> Iterator[Command]:
    """Who leaves drains; who was called back does not. Orders that others gave are theirs to take back."""
    for member in sorted(seen.plan.known):
        found = seen.instance(member) if member.role in ENGINE_ROLES else None
        if found is None or found.record.generation != member.generation:
            continue
        command = _order(seen, member, meaning(found.order, found.incarnation), _ours(seen, member))
        if command is not None:
            yield Command(instance_id=found.instance_id, incarnation=found.incarnation, kind=command)


def _ours(seen: Seen, member: Member) -> bool:
    order = seen.topology.orders.get(member.name_in(seen.group))
    return order is not None and order.by == signature(seen.group)


def _order(
    seen: Seen, member: Member, stands: Literal["serve", "drain", "end"], ours: bool
) -> OrderKind | None:
    until = seen.plan.leaving.get(member)
    if until is None:
        return "undrain" if stands == "drain" and ours else None
    if stands != "end" and member not in seen.slots and seen.now >= until + ORPHAN_S:
        return "end"
    return "drain" if stands == "serve" else None
