"""What an etcd cluster says about itself: its members, their versions and sizes, its alarms. Read only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from pdcore.config import StoreAccess
from pdcore.errors import AccessRefused, StoreError
from pdcore.registry.connect import etcd_endpoints
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.endpoints import Endpoints
from pdcore.registry.etcd.methods import ALARM, MEMBER_LIST, STATUS

ALARM_NAMES: Final = {wire.Alarm.NOSPACE: "NOSPACE", wire.Alarm.CORRUPT: "CORRUPT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One member of itself. ``leader_id`` is 0 when it knows none; ``errors`` are etcd's own words."""

    member_id: int
    version: str
    db_bytes: int
    db_in_use_bytes: int
    leader_id: int
    raft_term: int
    is_learner: bool
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAnswer:
    """What came back from one address of ``--store``: its ``status``, or why there is none; ``refused``: it runs, and
    does not let us in."""

    address: str
    status: MemberStatus | None
    problem: str | None
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMember:
    """A member as the cluster knows it, whether or not ``--store`` names it."""

    member_id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    is_learner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAlarm:
    """``NOSPACE`` or ``CORRUPT`` (or a number this client has no name for), raised by one member."""

    member_id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdCondition:
    """``answers`` in the order of ``--store``. ``problems`` say why ``members`` or ``alarms`` could not be read."""

    answers: tuple[MemberAnswer, ...]
    members: tuple[ListedMember, ...]
    alarms: tuple[RaisedAlarm, ...]
    problems: tuple[str, ...]


async def read_condition(access: StoreAccess) -> EtcdCondition:
    """Ask every address of ``access``; what does not answer is part of the answer.

    Raises :class:`~pdcore.errors.ConfigError` when ``access`` cannot work.
    """
    async with etcd_endpoints(access) as endpoints:
        answers = await asyncio.gather(*(_ask(endpoints, address) for address in endpoints.addresses))
        members, no_members = await _list_members(endpoints)
        alarms, no_alarms = await _list_alarms(endpoints)
    problems = tuple(problem for problem in (no_members, no_alarms) if problem is not None)
    return EtcdCondition(answers=tuple(answers), members=members, alarms=alarms, problems=problems)


async def _ask(endpoints: Endpoints, address: str) -> MemberAnswer:
    try:
        answer = await endpoints.call_at(address, STATUS, wire.StatusRequest(), endpoints.timeout_s)
    except StoreError as error:
        refused = isinstance(error, AccessRefused)
        return MemberAnswer(address=address, status=None, problem=str(error), refused=refused)
    status = MemberStatus(
        member_id=answer.header.member_id,
        version=answer.version,
        db_bytes=answer.db_size,
        db_in_use_bytes=answer.db_size_in_use,
        leader_id=answer.leader,
        raft_term=answer.raft_term,
        is_learner=answer.is_learner,
        errors=tuple(answer.errors),
    )
    return MemberAnswer(address=address, status=status, problem=None)


async def _list_members(endpoints: Endpoints) -> tuple[tuple[ListedMember, ...], str | None]:
    try:
        answer = await endpoints.call(MEMBER_LIST, wire.MemberListRequest(), repeatable=True)
    except StoreError as error:
        return (), f"members: {error}"
    members = (
        ListedMember(
            member_id=member.id,
            name=member.name,
            peer_urls=tuple(member.peer_urls),
            client_urls=tuple(member.client_urls),
            is_learner=member.is_learner,
        )
        for member in answer.members
    )
    return tuple(members), None


async def _list_alarms(endpoints: Endpoints) -> tuple[tuple[RaisedAlarm, ...], str | None]:
    try:
        answer = await endpoints.call(ALARM, wire.AlarmRequest(action=wire.AlarmRequest.GET), repeatable=True)
    except StoreError as error:
        return (), f"alarms: {error}"
    alarms = (
        RaisedAlarm(member_id=alarm.member_id, name=ALARM_NAMES.get(alarm.type, str(alarm.type)))
        for alarm in answer.alarms
    )
    return tuple(alarms), None
