"""Giving an order: what to write, given what stands. Pure.

An order lasts until it is taken back, until the incarnation it binds has ended (its registrar removes it then, or the
next start does), or for a day if it is one to end. A sticky one binds every start and lasts until it is taken back.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pdcore.registry.store import Absent, Condition, ModRevisionIs, Stored
from pdcore.topology import codec, keys
from pdcore.topology.instance import Instance
from pdcore.topology.keys import Keyspace
from pdcore.topology.orders import DRAINED, binds_every_start, meaning
from pdcore.topology.records import InstanceRecord, OrderKind, OrderRecord

END_TTL_S: Final = 24 * 3600
"""As long as a claim: until then a registrar that was cut off may come back and must read it."""
_SIMILAR: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What was read: the instance's own key, its order, and whether its id is claimed. ``others`` are known ids."""

    keyspace: Keyspace
    instance_id: str
    instance: Stored | None
    order: Stored | None
    claimed: bool
    others: tuple[str, ...]

    @property
    def record(self) -> InstanceRecord | None:
        """The instance's record if it has one that can be read."""
        key = keys.instance(self.instance_id)
        read = None if self.instance is None else codec.decode(key, self.instance.value)
        return read if isinstance(read, InstanceRecord) else None

    @property
    def given(self) -> OrderRecord | None:
        """The order that stands, if it can be read."""
        key = keys.order(self.instance_id)
        read = None if self.order is None else codec.decode(key, self.order.value)
        return read if isinstance(read, OrderRecord) else None

    def unchanged(self, *, instance: bool) -> tuple[Condition, ...]:
        """Holds while the order, and the instance if asked for, are what was read."""
        order = _is_still(self.keyspace.view + keys.order(self.instance_id), self.order)
        own = _is_still(self.keyspace.view + keys.instance(self.instance_id), self.instance)
        return (order, own) if instance else (order,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """Write ``order``; ``sentence`` tells a person what that means."""

    order: OrderRecord
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    """Remove the order that stands."""

    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Everything is so already; ``order`` is the one that stands."""

    order: OrderRecord | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """It cannot be ordered; ``sentence`` says why."""

    sentence: str


Decision = Give | TakeBack | Leave | Refuse


def drain(standing: Standing, *, sticky: bool, by: str) -> Decision:
    """No new requests for the incarnation that stands; with ``sticky`` for every start, also one still to come."""
    record, given, name = standing.record, standing.given, standing.instance_id
    if record is None and not (sticky and standing.claimed):
        return Refuse(sentence=_unknown(standing))
    incarnation = None if record is None or sticky else record.incarnation
    order = OrderRecord(kind="drain", incarnation=incarnation, sticky=sticky, by=by)
    if given is not None and record is not None and meaning(given, record.incarnation) == "end":
        return Refuse(sentence=f"{name} is ordered to end by {given.by}; it takes no requests any more")
    if given is not None and given.kind == "drain" and _binds_as_much(given, order):
        return Leave(order=given, sentence=f"{name} is ordered to drain already, by {given.by}")
    whom = "every start of it" if sticky else f"incarnation {incarnation}"
    return Give(
        order=order, sentence=f"{name} drains ({whom}): it takes no new requests and finishes what it has"
    )


def undrain(standing: Standing) -> Decision:
    """Take back an order to drain, or one that binds nobody any more."""
    record, given, name = standing.record, standing.given, standing.instance_id
    if standing.order is None:
        if record is None and not standing.claimed:
            return Refuse(sentence=_unknown(standing))
        return Leave(order=None, sentence=f"{name} is under no order")
    if given is not None and record is not None and meaning(given, record.incarnation) == "end":
        return Refuse(sentence=f"{name} is ordered to end by {given.by}; that cannot be taken back")
    if given is None:
        return TakeBack(sentence=f"an order for {name} that cannot be read is removed")
    how = "sticky order" if binds_every_start(given) else "order"
    return TakeBack(sentence=f"the {how} to {given.kind} {name} by {given.by} is taken back")


def end(standing: Standing, *, by: str) -> Decision:
    """Have every process of the incarnation that stands killed."""
    record = standing.record
    if record is None:
        return Refuse(sentence=_unknown(standing))
    return _end(standing, record.incarnation, by)


def end_start(standing: Standing, incarnation: str, *, by: str) -> Decision:
    """Have every process of ``incarnation`` killed, also while no record of it stands: the silent are not gone."""
    record, name = standing.record, standing.instance_id
    if record is not None and record.incarnation != incarnation:
        return Refuse(sentence=f"{name} has another start already (incarnation {record.incarnation})")
    return _end(standing, incarnation, by)


def _end(standing: Standing, incarnation: str, by: str) -> Decision:
    given, name = standing.given, standing.instance_id
    order = OrderRecord(kind="end", incarnation=incarnation, sticky=False, by=by)
    if given is not None and meaning(given, incarnation) == "end":
        return Leave(order=given, sentence=f"{name} is ordered to end already, by {given.by}")
    if given is not None and binds_every_start(given):
        return Refuse(
            sentence=f"{name} is under a sticky order to {given.kind} by {given.by}, which an order to end would "
            "replace; undrain it first"
        )
    return Give(order=order, sentence=f"{name} ends (incarnation {incarnation}): its processes are killed")


def is_carried_out(kind: OrderKind, incarnation: str | None, instance: Instance | None) -> bool:
    """Whether what was ordered of ``incarnation`` (None: of every start) has happened to ``instance``, as seen now."""
    if instance is None or incarnation not in (None, instance.incarnation):
        return kind != "undrain"
    if kind == "drain":
        return instance.record.state == "draining" and instance.record.extra.get(DRAINED) is True
    return kind == "undrain" and instance.ready and not instance.draining


def similar(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known ids that ``name`` may have meant."""
    return tuple(difflib.get_close_matches(name, sorted(known), n=_SIMILAR, cutoff=0.5))


def _unknown(standing: Standing) -> str:
    close = similar(standing.instance_id, standing.others)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"no instance {standing.instance_id} is registered{hint}"


def _binds_as_much(given: OrderRecord, order: OrderRecord) -> bool:
    return binds_every_start(given) or (not order.sticky and given.incarnation == order.incarnation)


def _is_still(key: str, stored: Stored | None) -> Condition:
    return Absent(key) if stored is None else ModRevisionIs(key, stored.mod_revision)
