"""What happened between two topologies: a closed union of values, computed, never stored.

``diff`` is pure and its order fixed, so that everybody who saw the same two topologies tells the same story. Events of a
relist are ``coalesced``: they tell what differs, not every step in between. Rewriting a key with what it already says
is no event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal, TypedDict, get_args

from pdcore.topology import keys
from pdcore.topology.instance import Instance
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import (
    DepartureRecord,
    InstanceRecord,
    OrderRecord,
    RankRecord,
    RouterRecord,
)
from pdcore.topology.topology import Topology

LossReason = Literal["left", "died", "silent", "drained", "ordered", "unexplained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    """``revision`` is the newer topology's; ``kind`` names the event in logs and lists."""

    kind: ClassVar[str]
    revision: int
    coalesced: bool = False

    def log_fields(self) -> dict[str, object]:
        """The event as flat fields for a log line or a JSON list; whole records are left out."""
        shown: dict[str, object] = {"event": self.kind}
        for name in _FIELDS[self.kind]:
            value = getattr(self, name)
            if value is None or isinstance(value, str | int):
                shown[name] = value
            elif isinstance(value, RankPosition):
                shown["rank"] = str(value)
            elif isinstance(value, OrderRecord):
                shown |= {"order": value.kind, "incarnation": value.incarnation, "sticky": value.sticky}
            elif name == "fields":
                shown[name] = ", ".join(value)
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfInstance(_Happened):
    instance_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceJoined(_OfInstance):
    """An incarnation has a record; readiness is told apart."""

    kind: ClassVar[str] = "instance_joined"
    record: InstanceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceChanged(_OfInstance):
    """The same incarnation says something else in ``fields``, also ones nobody here knows (``draining``: it was called
    back)."""

    kind: ClassVar[str] = "instance_changed"
    record: InstanceRecord
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReady(_OfInstance):
    """It serves and is complete."""

    kind: ClassVar[str] = "instance_ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceNotReady(_OfInstance):
    """It was ready and is no more; ``reason`` says what it lacks. Not told of one that is lost."""

    kind: ClassVar[str] = "instance_not_ready"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDraining(_OfInstance):
    """It takes no new requests from here on."""

    kind: ClassVar[str] = "instance_draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLost(_OfInstance):
    """The incarnation's record is gone or replaced; ``record`` is its last."""

    kind: ClassVar[str] = "instance_lost"
    record: InstanceRecord
    reason: LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJoined(_OfInstance):
    """A rank counts for its instance now, or says something else than before."""

    kind: ClassVar[str] = "rank_joined"
    position: RankPosition
    record: RankRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLost(_OfInstance):
    """A rank counts no more, alone or with its instance; ``record`` is its last."""

    kind: ClassVar[str] = "rank_lost"
    position: RankPosition
    record: RankRecord
    reason: LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged(_Happened):
    """A group's spec, generations or desired state differ, or the group is new or gone."""

    kind: ClassVar[str] = "group_changed"
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationActivated(_Happened):
    """Traffic of ``group`` goes to ``generation``; ``previous`` is None for a group's first."""

    kind: ClassVar[str] = "generation_activated"
    group: str
    generation: int
    previous: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterJoined(_Happened):
    """A router registered, or says something else than before."""

    kind: ClassVar[str] = "router_joined"
    router_id: str
    record: RouterRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLost(_Happened):
    """A router is gone; ``record`` is its last."""

    kind: ClassVar[str] = "router_lost"
    router_id: str
    record: RouterRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderGiven(_Happened):
    """An operator's order for an instance is new or another one."""

    kind: ClassVar[str] = "order_given"
    instance_id: str
    order: OrderRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRejected(_Happened):
    """The newest value of ``key`` is no record, and why; whatever it held before is gone."""

    kind: ClassVar[str] = "record_rejected"
    key: str
    reason: str


Event = (
    InstanceJoined
    | InstanceChanged
    | InstanceReady
    | InstanceNotReady
    | InstanceDraining
    | InstanceLost
    | RankJoined
    | RankLost
    | GroupChanged
    | GenerationActivated
    | RouterJoined
    | RouterLost
    | OrderGiven
    | RecordRejected
)

_FIELDS: Final = {kind.kind: tuple(field.name for field in fields(kind)) for kind in get_args(Event)}


class _Mark(TypedDict):
    revision: int
    coalesced: bool


class _About(_Mark):
    instance_id: str
    incarnation: str


def diff(old: Topology, new: Topology, *, coalesced: bool = False) -> tuple[Event, ...]:
    """What makes ``new`` of ``old``. Refused values come first, then groups, orders, routers, instances by id.

    Of one instance: the old incarnation's end, then the new one's arrival, then ranks, readiness, draining.
    """
    if new is old:
        return ()
    mark: _Mark = {"revision": new.revision, "coalesced": coalesced}
    events: list[Event] = []
    for step in (_rejected, _groups, _orders, _routers, _instances):
        events += step(old, new, mark)
    return tuple(events)


def _rejected(old: Topology, new: Topology, mark: _Mark) -> Iterator[Event]:
    for key in new.rejected.changed(old.rejected):
        now = new.rejected.get(key)
        if now is not None and now != old.rejected.get(key):
            yield RecordRejected(**mark, key=key, reason=now.reason)


def _groups(old: Topology, new: Topology, mark: _Mark) -> Iterator[Event]:
    for name in new.groups.changed(old.groups):
        if new.groups.get(name) != old.groups.get(name):
            yield GroupChanged(**mark, group=name)
        active, previous = new.active_generation(name), old.active_generation(name)
        if active is not None and active != previous:
            yield GenerationActivated(**mark, group=name, generation=active, previous=previous)


def _orders(old: Topology, new: Topology, mark: _Mark) -> Iterator[Event]:
    for instance_id in new.orders.changed(old.orders):
        now = new.orders.get(instance_id)
        if now is not None and now != old.orders.get(instance_id):
            yield OrderGiven(**mark, instance_id=instance_id, order=now)


def _routers(old: Topology, new: Topology, mark: _Mark) -> Iterator[Event]:
    for router_id in new.routers.changed(old.routers):
        was, now = old.routers.get(router_id), new.routers.get(router_id)
        if now is None and was is not None:
            yield RouterLost(**mark, router_id=router_id, record=was)
        elif now is not None and now != was:
            yield RouterJoined(**mark, router_id=router_id, record=now)


def _instances(old: Topology, new: Topology, mark: _Mark) -> Iterator[Event]:
    for instance_id in new.instances.changed(old.instances):
        was, now = old.instances.get(instance_id), new.instances.get(instance_id)
        reason = _reason(old, new, was) if was is not None else "unexplained"
        if was is not None and (now is None or now.incarnation != was.incarnation):
            yield from _lost(was, reason, mark)
            was = None
        if now is not None:
            about = _about(now, mark)
            yield from _said(was, now, about)
            yield from _ranks(was, now, about, reason)
            yield from _standing(was, now, about)


def _lost(was: Instance, reason: LossReason, mark: _Mark) -> Iterator[Event]:
    about = _about(was, mark)
    for position, record in was.ranks.items():
        yield RankLost(**about, position=position, record=record, reason=reason)
    yield InstanceLost(**about, record=was.record, reason=reason)


def _said(was: Instance | None, now: Instance, about: _About) -> Iterator[Event]:
    if was is None:
        yield InstanceJoined(**about, record=now.record)
        return
    changed: list[str] = []
    if was.record is not now.record:
        for name, before, after in zip(InstanceRecord._fields, was.record, now.record, strict=True):
            if before is not after and before != after:
                changed += _unknown_changed(was, now) if name == "extra" else (name,)
    if was.draining and not now.draining:
        changed.append("draining")
    if changed:
        yield InstanceChanged(**about, record=now.record, fields=tuple(changed))


def _unknown_changed(was: Instance, now: Instance) -> Iterator[str]:
    """The fields that are no part of the schema here, by their own names."""
    before, after = was.record.extra, now.record.extra
    return (name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name))


def _ranks(was: Instance | None, now: Instance, about: _About, reason: LossReason) -> Iterator[Event]:
    before = {} if was is None else was.ranks
    if before is now.ranks:
        return
    for position, record in before.items():
        if position not in now.ranks:
            yield RankLost(**about, position=position, record=record, reason=reason)
    for position, record in now.ranks.items():
        held = before.get(position)
        if held is not record and held != record:
            yield RankJoined(**about, position=position, record=record)


def _standing(was: Instance | None, now: Instance, about: _About) -> Iterator[Event]:
    was_ready, ready = was is not None and was.ready, now.ready
    if ready and not was_ready:
        yield InstanceReady(**about)
    if was_ready and not ready:
        yield InstanceNotReady(**about, reason="; ".join(now.why_not_ready))
    if now.draining and not (was is not None and was.draining):
        yield InstanceDraining(**about)


def _about(instance: Instance, mark: _Mark) -> _About:
    return {**mark, "instance_id": instance.instance_id, "incarnation": instance.incarnation}


def _reason(old: Topology, new: Topology, was: Instance) -> LossReason:
    """The departure of this incarnation, if it was written since ``old``: an earlier one explains an earlier loss."""
    if was.instance_id not in new.departures:
        return "unexplained"
    key = keys.departure(was.instance_id)
    now, before = new.entry(key), old.entry(key)
    if now is None or (before is not None and before.mod_revision == now.mod_revision):
        return "unexplained"
    departed = now.record if isinstance(now.record, DepartureRecord) else None
    return departed.reason if departed and departed.incarnation == was.incarnation else "unexplained"
