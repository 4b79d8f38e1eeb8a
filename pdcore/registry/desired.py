"""From the desired record to the transactions that make the store agree with it. Pure.

A registrar keeps one :class:`Desired` (swapped whole) and one :class:`Presence` (what it knows of its processes).
``wanted`` combines them into the keys that are to exist and those that are not, ``repair`` compares that with what
was read and returns what to commit. Whatever happened in between (a timed-out commit, a lost lease, a key deleted
by hand), reading and repairing again leads to the same end, so nothing is ever retried blindly. Every transaction
compares the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pdcore.registry.registrar_messages import PARENT, Want
from pdcore.registry.store import (
    Absent,
    Condition,
    Delete,
    LeaseId,
    ModRevisionIs,
    Put,
    Stored,
    ValueIs,
    Write,
)
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.orders import Meaning, binds, binds_every_start, meaning
from pdcore.topology.records import (
    DepartureReason,
    DepartureRecord,
    InstanceRecord,
    OrderRecord,
    RankRecord,
)

MAX_OPERATIONS: Final = 120
"""Per transaction; etcd's own limit is 128 unless raised. Larger instances take several transactions."""

_GRAVEST_FIRST: Final[tuple[DepartureReason, ...]] = ("died", "ordered", "silent", "drained", "left")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Whose keys these are, and the claim that guards them."""

    keyspace: Keyspace
    instance_id: str
    incarnation: str

    @property
    def claim_key(self) -> str:
        return self.keyspace.claim(self.instance_id)

    @property
    def claimed(self) -> Condition:
        """Holds while this incarnation is the newest start of the instance."""
        return ValueIs(self.claim_key, self.incarnation.encode())

    @property
    def instance_key(self) -> str:
        return keys.instance(self.instance_id)

    @property
    def departure_key(self) -> str:
        return keys.departure(self.instance_id)

    @property
    def order_key(self) -> str:
        return keys.order(self.instance_id)

    @property
    def ranks_prefix(self) -> str:
        return f"ranks/{self.instance_id}/"

    def absolute(self, key: str) -> str:
        """``key`` is relative to the view, as everywhere in this module."""
        return self.keyspace.view + key

    def departure(self, incarnation: str, reason: DepartureReason, by: str, lease: LeaseId) -> Put:
        """The write that explains why keys of ``incarnation`` go."""
        record = DepartureRecord(incarnation=incarnation, reason=reason, by=by)
        return Put(self.absolute(self.departure_key), codec.encode(record), lease)

    def meaning(self, order: Stored | None) -> Meaning:
        """What the order that was read means for this incarnation; one that cannot be read means nothing."""
        return meaning(self._order(order), self.incarnation)

    def order_is(self, order: Stored | None) -> Condition:
        """Holds while the order is the one that was read."""
        key = self.absolute(self.order_key)
        return Absent(key) if order is None else ModRevisionIs(key, order.mod_revision)

    def takes_along(self, order: Stored | None) -> bool:
        """Whether the order binds this incarnation alone, so that it means nothing once that has ended.

        One to end is left standing: other registrars of the instance may not have read it yet.
        """
        read = self._order(order)
        if read is None or read.kind == "end":
            return False
        return binds(read, self.incarnation) and not binds_every_start(read)

    def is_stale(self, order: Stored | None) -> bool:
        """Whether the order was for another incarnation alone, which has ended when this one takes the claim."""
        read = self._order(order)
        return read is not None and not binds(read, self.incarnation)

    def _order(self, order: Stored | None) -> OrderRecord | None:
        read = None if order is None else codec.decode(self.order_key, order.value)
        return read if isinstance(read, OrderRecord) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What is known of the processes. Members are rank positions (``0.0.0``) or ``parent``.

    ``ended``: an order to end was carried out.
    """

    exited: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    leaving: DepartureReason | None = None
    ended: bool = False

    @property
    def is_final(self) -> bool:
        """Whether this incarnation will not stand again."""
        return self.ended or self.leaving is not None or PARENT in self.exited

    def whole(self) -> DepartureReason | None:
        """Why nothing of the instance may stand, if so."""
        if self.ended:
            return "ordered"
        if PARENT in self.exited:
            return "died"
        if self.leaving is not None:
            return self.leaving
        return "silent" if PARENT in self.silent else None

    def of(self, member: str) -> DepartureReason | None:
        """Why this rank may not stand, if so."""
        if member in self.exited:
            return "died"
        return "silent" if member in self.silent else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``entries`` are to exist with these values, ``absent`` are not to (and why).

    ``others``: why any further key of the instance may not stand; None leaves them to their own registrars.
    ``final``: the instance ends with this, and so does an order for this incarnation alone.
    """

    entries: Mapping[str, bytes]
    absent: Mapping[str, DepartureReason] = field(default_factory=dict)
    others: DepartureReason | None = None
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """All ``writes`` in one revision iff all ``conditions`` hold."""

    conditions: tuple[Condition, ...]
    writes: tuple[Write, ...]

    def deletes(self) -> Transaction | None:
        """The deletes alone, if there are any: a store that is full still takes those."""
        deletes = tuple(write for write in self.writes if isinstance(write, Delete))
        return Transaction(conditions=self.conditions, writes=deletes) if deletes else None


def wanted(instance_id: str, want: Want, presence: Presence) -> Wanted:
    """What is to stand in the store, given the desired record and the processes behind it."""
    ranks = {f"ranks/{instance_id}/{member}": (member, value) for member, value in want.ranks.items()}
    instance_key = keys.instance(instance_id)
    gone = presence.whole()
    if gone is not None:
        absent = dict.fromkeys(ranks, gone)
        if want.instance is None:
            return Wanted(entries={}, absent=absent)
        absent |= {instance_key: gone}
        return Wanted(entries={}, absent=absent, others=gone, final=presence.is_final)
    entries = {} if want.instance is None else {instance_key: want.instance.encode()}
    absent = {}
    for key, (member, value) in ranks.items():
        reason = presence.of(member)
        if value is not None and reason is None:
            entries[key] = value.encode()
        else:
            absent[key] = reason or "left"
    return Wanted(entries=entries, absent=absent)


def repair(
    fence: Fence,
    found: Mapping[str, Stored],
    want: Wanted,
    *,
    order: Stored | None = None,
    lease: LeaseId | None,
    departure_lease: LeaseId | None,
    by: str,
) -> tuple[Transaction, ...]:
    """The transactions that turn ``found`` (every key of the instance, relative to the view) into ``want``.

    Empty when nothing is to do. What another incarnation left goes without a word: who took the claim from it has
    explained it. A key of our own that goes is explained in the same transaction (unless the store granted no
    lease for that: ``departure_lease`` is None); once nothing is missing any more, that explanation is taken back,
    lest it explain the next loss. ``order`` is the one that was read: it goes with the incarnation it binds.
    """
    deletes = [
        Delete(fence.absolute(key)) for key in sorted(found) if goes(fence, key, found[key], want) is not None
    ]
    puts = [Put(fence.absolute(key), want.entries[key], lease) for key in _outdated(found, want, lease)]
    writes: list[Write] = [*deletes, *puts]
    reason = explanation(fence, found, want)
    if reason is not None and departure_lease is not None:
        writes.insert(0, fence.departure(fence.incarnation, reason, by, departure_lease))
    elif want.entries and not want.absent and _departed(fence, found):
        writes.insert(0, Delete(fence.absolute(fence.departure_key)))
    transactions = [Transaction(conditions=(fence.claimed,), writes=part) for part in _parts(writes)]
    if want.final and fence.takes_along(order):
        forgotten = Delete(fence.absolute(fence.order_key))
        transactions.append(
            Transaction(conditions=(fence.claimed, fence.order_is(order)), writes=(forgotten,))
        )
    return tuple(transactions)


def explanation(fence: Fence, found: Mapping[str, Stored], want: Wanted) -> DepartureReason | None:
    """The gravest reason for which a key of our own incarnation goes, None when none goes."""
    reasons = {goes(fence, key, stored, want) for key, stored in found.items()} - {None, "foreign"}
    return next((reason for reason in _GRAVEST_FIRST if reason in reasons), None)


def goes(fence: Fence, key: str, stored: Stored, want: Wanted) -> DepartureReason | str | None:
    """Why ``key`` is to be deleted; ``foreign`` for another incarnation's or garbage, None when it stays."""
    if key in want.entries or key == fence.departure_key:
        return None
    record = codec.decode(key, stored.value)
    if not isinstance(record, InstanceRecord | RankRecord) or record.incarnation != fence.incarnation:
        return "foreign"
    return want.absent.get(key, want.others)


def confirmation(
    fence: Fence, want: Wanted, order: Stored | None = None, held: tuple[Condition, ...] = ()
) -> Transaction | None:
    """A transaction without writes that succeeds iff everything stands, ``order`` is still the one given and what is
    ``held`` is held; None when one cannot hold it."""
    present = [ValueIs(fence.absolute(key), value) for key, value in want.entries.items()]
    absent = [Absent(fence.absolute(key)) for key in want.absent]
    conditions: tuple[Condition, ...] = (fence.claimed, fence.order_is(order), *held, *present, *absent)
    return Transaction(conditions=conditions, writes=()) if len(conditions) <= MAX_OPERATIONS else None


def _outdated(found: Mapping[str, Stored], want: Wanted, lease: LeaseId | None) -> Iterator[str]:
    """Ranks first, the instance last: a set too large for one transaction appears before what announces it."""
    for key in sorted(want.entries, reverse=True):
        stored = found.get(key)
        if stored is None or stored.value != want.entries[key] or stored.lease != lease:
            yield key


def _departed(fence: Fence, found: Mapping[str, Stored]) -> bool:
    stored = found.get(fence.departure_key)
    if stored is None:
        return False
    record = codec.decode(fence.departure_key, stored.value)
    return isinstance(record, DepartureRecord) and record.incarnation == fence.incarnation


def _parts(writes: Iterable[Write]) -> Iterator[tuple[Write, ...]]:
    rest = tuple(writes)
    while rest:
        yield rest[:MAX_OPERATIONS]
        rest = rest[MAX_OPERATIONS:]
