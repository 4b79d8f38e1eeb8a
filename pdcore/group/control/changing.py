"""What commands do to a group: apply, scale, restart. Pure: what stands in, the new plan out, or one sentence against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pdcore.errors import PdcoreError
from pdcore.group.control.generation import Generation
from pdcore.group.control.members import ENGINE_ROLES, Member, MemberRole
from pdcore.group.control.plan import Plan, Restart, RestartKind, engines_of

GUARD_S: Final = 900.0
"""How long a restart that does not come to an end keeps a second one away."""
CANDIDATE_S: Final = 300.0
NO_PARTS: Final = (
    "only a whole group is restarted: a part of it would run a new generation beside an old one, "
    "and engines accept such a pair and answer wrongly"
)

NOT_PROVABLE: Final = "members of mode custom do not register, so nobody can send one request to a candidate; restart without --blue-green"


class Conflict(PdcoreError):
    """Something else is under way; the sentence says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """What a restart was asked to be. ``deadline_s``: within which a candidate must be proven."""

    kind: RestartKind
    by: str
    proof: str
    deadline_s: float


def first_plan(replicas: Mapping[MemberRole, int], number: int = 1) -> Plan:
    """The plan of a group that was applied for the first time: there is nothing to restart, so it begins."""
    return Plan(active=number, replicas=dict(replicas))


def rescaled(
    group: str, plan: Plan, before: Mapping[MemberRole, int] | None, after: Mapping[MemberRole, int]
) -> Plan:
    """``plan`` where the saved numbers of replicas change from ``before``: a number that was not edited stays as scaled.

    Raises :class:`Conflict` for a group that is being deleted.
    """
    _check_stays(group, plan)
    edited = {role: count for role, count in after.items() if before is None or before.get(role) != count}
    return replace(plan, replicas={**plan.replicas, **edited})


def scaled(group: str, plan: Plan, wished: Mapping[MemberRole, int], drain_limit_s: float | None) -> Plan:
    """``plan`` with other numbers of replicas. Raises :class:`Conflict` while a restart is under way."""
    _check_stays(group, plan)
    if plan.restart is not None:
        raise Conflict(f"{_under_way(group, plan.restart)}; scale it when that is over")
    limit = plan.drain_limit_s if drain_limit_s is None else drain_limit_s
    return replace(plan, replicas={**plan.replicas, **wished}, drain_limit_s=limit)


def undone(group: str, plan: Plan) -> Plan:
    """``plan`` with everybody back who is on the way out. Raises :class:`Conflict` where nobody is."""
    _check_stays(group, plan)
    if plan.restart is not None:
        raise Conflict(f"{_under_way(group, plan.restart)}; its members do not come back")
    if not plan.leaving:
        raise Conflict(f"no member of {group} is on its way out")
    back = dict(plan.replicas)
    for member in plan.leaving:
        back[member.role] = back.get(member.role, 0) + 1
    return replace(plan, replicas=back)


def restarted(group: str, plan: Plan, number: int, asked: Restarting, now: float) -> Plan:
    """``plan`` at the beginning of a restart on generation ``number``. Raises :class:`Conflict` while another runs."""
    _check_stays(group, plan)
    if plan.restart is not None:
        raise Conflict(_under_way(group, plan.restart))
    limit_s = asked.deadline_s if asked.kind == "blue-green" else GUARD_S
    restart = Restart(
        kind=asked.kind,
        phase="starting" if asked.kind == "blue-green" else "stopping",
        before=plan.active,
        to=number,
        by=asked.by,
        since=now,
        deadline=now + limit_s,
        proof=asked.proof if asked.kind == "blue-green" else "",
    )
    if asked.kind == "blue-green":
        candidates = [
            Member(number, role, n + 1) for role in ENGINE_ROLES for n in range(plan.replicas.get(role, 0))
        ]
        return replace(plan.candidate_is(number, restart.deadline), restart=restart).with_members(*candidates)
    stopped = plan.without(*plan.members, until=now + plan.drain_limit_s)
    return replace(stopped.candidate_is(None), active=number, restart=restart)


def deleted(plan: Plan, drain_limit_s: float | None, now: float) -> Plan:
    """``plan`` with everybody on the way out, whatever else was under way; the last to leave takes the group along."""
    limit_s = plan.drain_limit_s if drain_limit_s is None else drain_limit_s
    none: dict[MemberRole, int] = dict.fromkeys(plan.replicas, 0)
    left = plan.candidate_is(None).without(*plan.members, until=now + limit_s)
    return replace(left, replicas=none, restart=None, ending=True)


def next_number(generations: Mapping[int, object]) -> int:
    """The number of a generation that nobody had."""
    return max(generations, default=0) + 1


def manual_work(generation: Generation, group: str, plan: Plan, doing: str) -> str | None:
    """What a person must do by hand where the router is the user's own; None where nothing is."""
    if not generation.is_manual:
        return None
    engines = ", ".join(one.name_in(group) for one in engines_of(plan, plan.active)) or "its engines"
    return (
        f"the router of {group} is your own command, so its list of members is yours to keep: after {doing}, "
        f"give it the addresses of {engines} and restart it"
    )


def _check_stays(group: str, plan: Plan) -> None:
    if plan.ending:
        raise Conflict(f"{group} is being deleted")


def _under_way(group: str, restart: Restart) -> str:
    return (
        f"a {restart.kind} restart of {group} to generation {restart.to} by {restart.by} is under way "
        f"({restart.phase.replace('_', ' ')})"
    )
