"""What a group wants to run now, as one value: the typed form of ``groups/{group}/desired``. Pure.

The record is the only thing that controllers and commands write by compare-and-swap, so everything that must change
together is in it: which generation takes traffic, which members shall live, which are leaving and until when, and how
far a restart has come. Instants are seconds since 1970, because several machines read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from pdcore.group.control.members import ENGINE_ROLES, ROLES, Member, MemberRole, member_at, of_role
from pdcore.topology.records import DesiredRecord, Json

RestartKind = Literal["stop-start", "blue-green"]
Phase = Literal["stopping", "starting", "switching", "draining", "rolling_back"]
Result = Literal["done", "rolled back", "lapsed"]
_OURS: Final = ("members", "leaving", "restart", "last_restart", "drain_limit_s", "ending")
DRAIN_LIMIT_S: Final = 300.0
"""How long a member on its way out may take to finish what it holds."""
_KINDS: Final[Mapping[str, RestartKind]] = {"stop-start": "stop-start", "blue-green": "blue-green"}
_PHASES: Final[Mapping[str, Phase]] = {
    "stopping": "stopping",
    "starting": "starting",
    "switching": "switching",
    "draining": "draining",
    "rolling_back": "rolling_back",
}
_RESULTS: Final[Mapping[str, Result]] = {"done": "done", "rolled back": "rolled back", "lapsed": "lapsed"}


class Unreadable(ValueError):
    """The record is none that a controller may act on; a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A restart under way. ``proof`` is the secret that lets one request reach the candidate; ``why`` it rolls back.

    ``deadline``: until when a candidate may prove itself, or when the guard against a second restart lapses.
    """

    kind: RestartKind
    phase: Phase
    before: int
    to: int
    by: str
    since: float
    deadline: float
    proof: str = field(default="", repr=False)
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRestart:
    """How the newest restart that is over ended."""

    to: int
    result: Result
    why: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``replicas`` are wished for; ``members`` shall live; ``leaving`` maps members on their way out to when they must go.

    No member is in both. ``ending``: the group goes with its last member. ``extra`` keeps fields of newer versions.
    """

    active: int
    replicas: Mapping[MemberRole, int]
    candidate: int | None = None
    deadline: float | None = None
    members: frozenset[Member] = frozenset()
    leaving: Mapping[Member, float] = field(default_factory=dict)
    restart: Restart | None = None
    last_restart: LastRestart | None = None
    drain_limit_s: float = DRAIN_LIMIT_S
    ending: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)

    def of(self, role: MemberRole, generation: int | None = None) -> list[Member]:
        """The members of ``role`` that shall live, of the active generation unless another is named."""
        return of_role(self.members, self.active if generation is None else generation, role)

    @property
    def known(self) -> frozenset[Member]:
        """Everybody who may have a process."""
        return self.members | self.leaving.keys()

    def with_members(self, *added: Member) -> Plan:
        """With ``added`` among those who shall live; who was leaving stays."""
        left = {one: until for one, until in self.leaving.items() if one not in added}
        return replace(self, members=self.members | set(added), leaving=left)

    def without(self, *gone: Member, until: float) -> Plan:
        """With those of ``gone`` who live on their way out."""
        going = {one: until for one in gone if one in self.members}
        return replace(self, members=self.members - going.keys(), leaving={**self.leaving, **going})

    def forgetting(self, *gone: Member) -> Plan:
        """Without those who have left."""
        left = {one: until for one, until in self.leaving.items() if one not in gone}
        return replace(self, leaving=left)

    def candidate_is(self, generation: int | None, deadline: float | None = None) -> Plan:
        """With another candidate, or none."""
        return replace(self, candidate=generation, deadline=deadline)


def engines_of(plan: Plan, generation: int) -> tuple[Member, ...]:
    """Every prefill and decode member of ``generation`` that shall live."""
    return tuple(one for role in ENGINE_ROLES for one in plan.of(role, generation))


def record_of(plan: Plan) -> DesiredRecord:
    """The record to store."""
    said: dict[str, Json] = {"members": [one.path for one in sorted(plan.members)]}
    said["drain_limit_s"] = plan.drain_limit_s
    said["leaving"] = {one.path: moment(until) for one, until in sorted(plan.leaving.items())}
    if plan.ending:
        said["ending"] = True
    if plan.restart is not None:
        said["restart"] = _restart_document(plan.restart)
    if plan.last_restart is not None:
        last = plan.last_restart
        said["last_restart"] = {"to": last.to, "result": last.result, "why": last.why, "at": moment(last.at)}
    return DesiredRecord(
        active=plan.active,
        candidate=plan.candidate,
        deadline=None if plan.deadline is None else moment(plan.deadline),
        replicas={role: count for role, count in plan.replicas.items()},
        extra=MappingProxyType({**plan.extra, **said}),
    )


def plan_of(record: DesiredRecord) -> Plan:
    """Read :func:`record_of`'s record. Raises :class:`Unreadable`."""
    extra = record.extra
    try:
        return Plan(
            active=record.active,
            candidate=record.candidate,
            deadline=None if record.deadline is None else seconds(record.deadline),
            replicas={role: record.replicas.get(role, 0) for role in ROLES},
            members=frozenset(_member(path) for path in _list(extra.get("members"))),
            leaving={_member(path): seconds(until) for path, until in _table(extra.get("leaving")).items()},
            restart=_restart(_table(extra.get("restart"))),
            last_restart=_last(_table(extra.get("last_restart"))),
            ending=extra.get("ending") is True,
            drain_limit_s=_number(extra.get("drain_limit_s", DRAIN_LIMIT_S)),
            extra={name: value for name, value in extra.items() if name not in _OURS},
        )
    except (KeyError, TypeError, ValueError, OverflowError) as wrong:
        raise Unreadable(f"groups/…/desired cannot be acted on: {wrong}") from wrong


def moment(at: float) -> str:
    """An instant as records write it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def seconds(text: object) -> float:
    """Read :func:`moment`'s text. Raises ValueError."""
    return datetime.fromisoformat(str(text)).timestamp()


def _restart_document(restart: Restart) -> dict[str, Json]:
    return {
        "kind": restart.kind,
        "phase": restart.phase,
        "before": restart.before,
        "to": restart.to,
        "by": restart.by,
        "since": moment(restart.since),
        "deadline": moment(restart.deadline),
        "proof": restart.proof,
        "why": restart.why,
    }


def _restart(found: Mapping[str, Any]) -> Restart | None:
    if not found:
        return None
    return Restart(
        kind=_KINDS[found["kind"]],
        phase=_PHASES[found["phase"]],
        before=int(found["before"]),
        to=int(found["to"]),
        by=str(found["by"]),
        since=seconds(found["since"]),
        deadline=seconds(found["deadline"]),
        proof=str(found["proof"]),
        why=str(found["why"]),
    )


def _last(found: Mapping[str, Any]) -> LastRestart | None:
    if not found:
        return None
    return LastRestart(
        to=int(found["to"]),
        result=_RESULTS[found["result"]],
        why=str(found["why"]),
        at=seconds(found["at"]),
    )


def _member(path: object) -> Member:
    found = member_at(str(path))
    if found is None:
        raise ValueError(f"{path!r} is no member")
    return found


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"drain_limit_s: {value!r} is no duration")
    return float(value)


def _list(value: Json) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("members is no list")
    return value


def _table(value: Json) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no object")
    return value
