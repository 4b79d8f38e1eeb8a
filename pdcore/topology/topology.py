"""The fleet at one revision: a pure function of the map {key -> (value, mod_revision)}.

``build`` reads a whole map, ``fold`` applies changes to a topology, ``relist`` replaces a topology by a whole map while
reusing what did not differ. All three give equal topologies for equal maps, and none of them raises.

Keys are grouped by the instance, router or group they are about. A change decodes one value, assembles one such
group anew and shares the rest (:mod:`pdcore.topology.shards`), so that its cost does not grow with the fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from pdcore.topology import keys
from pdcore.topology.codec import MAX_VALUE_BYTES, Rejected, decode_named
from pdcore.topology.fields import plain_host
from pdcore.topology.instance import Entry, Instance, assemble
from pdcore.topology.records import (
    DepartureRecord,
    DesiredRecord,
    DocumentRecord,
    InstanceRecord,
    OrderRecord,
    Record,
    Role,
    RouterRecord,
    StoreIdRecord,
)
from pdcore.topology.restated import restated
from pdcore.topology.shards import ShardedMap

RecordT = TypeVar("RecordT")
Part = Mapping[str, Entry]
Changes = Mapping[str, Entry | None]
_NO_KEYS: Final[Part] = MappingProxyType({})
_ABOUT_INSTANCE: Final = frozenset({"instances", "ranks", "departures", "orders"})
_ABOUT_GROUP: Final = frozenset({"spec", "generations", "desired"})


class Stored(NamedTuple):
    """A key's newest value and the revision that wrote it."""

    value: bytes
    mod_revision: int


class StoredValue(Protocol):
    """What a topology needs of a stored key; a store's own richer type will do."""

    @property
    def value(self) -> bytes: ...

    @property
    def mod_revision(self) -> int: ...


class KeyChange(NamedTuple):
    """A put of ``key`` (relative to the view), or a delete when ``value`` is None, at ``mod_revision``."""

    key: str
    value: bytes | None
    mod_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Everything known of one group; any part may not have been written yet."""

    group: str
    desired: DesiredRecord | None
    spec: DocumentRecord | None
    generations: Mapping[int, DocumentRecord]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Topology:
    """An immutable view of the fleet, made by :func:`build`, :func:`fold` or :func:`relist` only.

    ``revision`` is the position up to which it is complete: a list's revision, then that of the last folded change.
    Two topologies are equal iff their keys are, whatever else happened in the store meanwhile.
    """

    revision: int = 0
    store_id: str | None = None
    instances: ShardedMap[Instance] = field(default_factory=ShardedMap)
    routers: ShardedMap[RouterRecord] = field(default_factory=ShardedMap)
    groups: ShardedMap[Group] = field(default_factory=ShardedMap)
    departures: ShardedMap[DepartureRecord] = field(default_factory=ShardedMap)
    orders: ShardedMap[OrderRecord] = field(default_factory=ShardedMap)
    rejected: ShardedMap[Rejected] = field(default_factory=ShardedMap)
    parts: ShardedMap[Part] = field(default_factory=ShardedMap)

    @staticmethod
    def empty() -> Topology:
        """The view before anything was read."""
        return Topology()

    def __eq__(self, other: object) -> bool:
        return self.parts == other.parts if isinstance(other, Topology) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        ready = sum(instance.ready for instance in self.instances.values())
        return (
            f"<Topology at {self.revision}: {ready} of {len(self.instances)} instances ready, "
            f"{len(self.routers)} routers, {len(self.groups)} groups, {len(self.rejected)} rejected>"
        )

    @property
    def keys(self) -> dict[str, Stored]:
        """The map this topology was made of; values too large to be read are empty."""
        entries = ((key, entry) for part in self.parts.values() for key, entry in part.items())
        return {key: Stored(entry.value, entry.mod_revision) for key, entry in entries}

    def entry(self, key: str) -> Entry | None:
        """What is stored under ``key``."""
        return self.parts.get(_subject(key, keys.parse(key)), _NO_KEYS).get(key)

    def by_role(self, role: Role) -> tuple[Instance, ...]:
        """The instances of ``role``, ready or not, in order of their ids."""
        return self._roles.get(role, ())

    def by_bootstrap(self, host: str, port: int) -> Instance | None:
        """The prefill instance with this bootstrap address; the newest if a dead one still shows it too."""
        return self._bootstraps.get((plain_host(host), port))

    def models(self) -> tuple[str, ...]:
        """The names of all models of active generations, served at the moment or not; sorted."""
        return self._models

    def active_generation(self, group: str) -> int | None:
        """The generation of ``group`` that takes traffic; 0 for the group without a name."""
        found = self.groups.get(group)
        if found is None or found.desired is None:
            return 0 if group == "" else None
        return found.desired.active

    def is_active(self, instance: Instance) -> bool:
        """True iff ``instance`` belongs to its group's active generation."""
        return instance.record.generation == self.active_generation(instance.record.group)

    @cached_property
    def _roles(self) -> dict[Role, tuple[Instance, ...]]:
        roles: dict[Role, list[Instance]] = {}
        for _, instance in sorted(self.instances.items()):
            roles.setdefault(instance.role, []).append(instance)
        return {role: tuple(instances) for role, instances in roles.items()}

    @cached_property
    def _bootstraps(self) -> dict[tuple[str, int], Instance]:
        found: dict[tuple[str, int], Instance] = {}
        for instance in sorted(self.by_role("prefill"), key=lambda i: (i.mod_revision, i.instance_id)):
            host, port = instance.record.bootstrap_host, instance.record.bootstrap_port
            if host is not None and port is not None:
                found[plain_host(host), port] = instance
        return found

    @cached_property
    def _models(self) -> tuple[str, ...]:
        active = (i.record.models for i in self.instances.values() if self.is_active(i))
        served = {model for models in active for model in models}
        return tuple(sorted(served | set(filter(None, map(_model_of, self.groups.values())))))


def _model_of(group: Group) -> str | None:
    """What the active generation of ``group`` serves, whether any of its members is there or not."""
    active = None if group.desired is None else group.generations.get(group.desired.active)
    model = None if active is None else active.document.get("model_name")
    return model if isinstance(model, str) else None


def build(listed: Mapping[str, StoredValue], revision: int) -> Topology:
    """The topology of a whole map as listed at ``revision``."""
    return relist(Topology.empty(), listed, revision)


def relist(topology: Topology, listed: Mapping[str, StoredValue], revision: int) -> Topology:
    """``build(listed, revision)``, reusing what ``topology`` already knows; also steps back in revisions."""
    touched: dict[str, dict[str, Entry | None]] = {}
    for key, stored in listed.items():
        name = keys.parse(key)
        subject = _subject(key, name)
        held = topology.parts.get(subject, _NO_KEYS).get(key)
        if held is None or held.mod_revision != stored.mod_revision or held.value != _kept(stored.value):
            touched.setdefault(subject, {})[key] = _entry(key, name, stored.value, stored.mod_revision, held)
    for subject, part in topology.parts.items():
        for key in part:
            if key not in listed:
                touched.setdefault(subject, {})[key] = None
    return _with_changes(topology, revision, touched)


def fold(topology: Topology, revision: int, changes: Iterable[KeyChange]) -> Topology:
    """``topology`` after ``changes``, which complete it up to ``revision``.

    Changes at or before the topology's revision are in it already and are ignored, so that delivering twice changes
    nothing; of several changes to a key the newest counts. Returns the very same topology when it is current.
    """
    touched: dict[str, dict[str, Entry | None]] = {}
    for key, value, mod_revision in _newest(topology.revision, changes):
        name = keys.parse(key)
        subject = _subject(key, name)
        held = topology.parts.get(subject, _NO_KEYS).get(key)
        entry = None if value is None else _entry(key, name, value, mod_revision, held)
        touched.setdefault(subject, {})[key] = entry
    if not touched and revision <= topology.revision:
        return topology
    return _with_changes(topology, max(topology.revision, revision), touched)


def with_instances(topology: Topology, instances: Mapping[str, Instance | None]) -> Topology:
    """``topology`` showing ``instances`` (None: not) whatever its keys say; equal to it, since its keys are the same."""
    return replace(topology, instances=topology.instances.updated(instances)) if instances else topology


def _newest(after: int, changes: Iterable[KeyChange]) -> Iterable[KeyChange]:
    newest: dict[str, KeyChange] = {}
    for change in changes:
        held = newest.get(change.key)
        if change.mod_revision > after and (held is None or change.mod_revision >= held.mod_revision):
            newest[change.key] = change
    return newest.values()


def _entry(key: str, name: keys.Name | None, value: bytes, mod_revision: int, held: Entry | None) -> Entry:
    record: Record | Rejected | None = None
    if held is not None and isinstance(held.record, InstanceRecord):
        record = restated(held.value, held.record, value)
    if record is None:
        record = decode_named(key, name, value)
    return Entry(value=_kept(value), mod_revision=mod_revision, name=name, record=record)


def _kept(value: bytes) -> bytes:
    """A value nobody will read is not held in memory either."""
    return value if len(value) <= MAX_VALUE_BYTES else b""


def _subject(key: str, name: keys.Name | None) -> str:
    """What ``key`` is about: keys with one subject are assembled together."""
    if name is None or name.family == "store_id":
        return key
    if name.family in _ABOUT_INSTANCE:
        return f"instances/{name.owner}"
    return f"groups/{name.owner}" if name.family in _ABOUT_GROUP else f"routers/{name.owner}"


@dataclass(slots=True)
class _Updates:
    """What differs from the topology before, by map; None removes."""

    store_id: str | None
    instances: dict[str, Instance | None] = field(default_factory=dict)
    routers: dict[str, RouterRecord | None] = field(default_factory=dict)
    groups: dict[str, Group | None] = field(default_factory=dict)
    departures: dict[str, DepartureRecord | None] = field(default_factory=dict)
    orders: dict[str, OrderRecord | None] = field(default_factory=dict)
    rejected: dict[str, Rejected | None] = field(default_factory=dict)


def _with_changes(topology: Topology, revision: int, touched: Mapping[str, Changes]) -> Topology:
    updates, parts = _Updates(topology.store_id), dict[str, Part | None]()
    for subject, changes in touched.items():
        part = _patched(topology.parts.get(subject, _NO_KEYS), changes)
        parts[subject] = part or None
        for key, entry in changes.items():
            if entry is not None and isinstance(entry.record, Rejected):
                updates.rejected[key] = entry.record
            elif key in topology.rejected:
                updates.rejected[key] = None
        _assemble_subject(topology, subject, part, changes, updates)
    return Topology(
        revision=revision,
        store_id=updates.store_id,
        instances=topology.instances.updated(updates.instances),
        routers=topology.routers.updated(updates.routers),
        groups=topology.groups.updated(updates.groups),
        departures=topology.departures.updated(updates.departures),
        orders=topology.orders.updated(updates.orders),
        rejected=topology.rejected.updated(updates.rejected),
        parts=topology.parts.updated(parts),
    )


def _patched(part: Part, changes: Changes) -> Part:
    patched = dict(part)
    for key, entry in changes.items():
        if entry is None:
            patched.pop(key, None)
        else:
            patched[key] = entry
    return patched


def _assemble_subject(
    topology: Topology, subject: str, part: Part, changed: Collection[str], updates: _Updates
) -> None:
    family, _, owner = subject.partition("/")
    if subject == keys.STORE_ID:
        found = _record_of(part, keys.STORE_ID, StoreIdRecord)
        updates.store_id = None if found is None else found.store_id
    elif family == "instances":
        updates.instances[owner] = assemble(owner, part, topology.instances.get(owner), changed)
        if (departure := keys.departure(owner)) in changed:
            updates.departures[owner] = _record_of(part, departure, DepartureRecord)
        if (order := keys.order(owner)) in changed:
            updates.orders[owner] = _record_of(part, order, OrderRecord)
    elif family == "routers":
        updates.routers[owner] = _record_of(part, keys.router(owner), RouterRecord)
    elif family == "groups":
        updates.groups[owner] = _assemble_group(owner, part)


def _assemble_group(group: str, part: Part) -> Group | None:
    generations: dict[int, DocumentRecord] = {}
    for entry in part.values():
        if entry.name is not None and entry.name.generation is not None:
            if isinstance(entry.record, DocumentRecord):
                generations[entry.name.generation] = entry.record
    desired = _record_of(part, keys.desired(group), DesiredRecord)
    spec = _record_of(part, keys.spec(group), DocumentRecord)
    if desired is None and spec is None and not generations:
        return None
    ordered = MappingProxyType(dict(sorted(generations.items())))
    return Group(group=group, desired=desired, spec=spec, generations=ordered)


def _record_of(part: Part, key: str, kind: type[RecordT]) -> RecordT | None:
    entry = part.get(key)
    return entry.record if entry is not None and isinstance(entry.record, kind) else None
