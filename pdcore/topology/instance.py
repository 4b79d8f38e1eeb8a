"""One instance as the keyspace shows it: its record, the ranks that count for it, the order it is under."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pdcore.topology import keys
from pdcore.topology.codec import Rejected
from pdcore.topology.keys import RankPosition
from pdcore.topology.orders import meaning
from pdcore.topology.records import InstanceRecord, OrderRecord, RankRecord, Record, Role

ValueT = TypeVar("ValueT")
_NAMED_RANKS: Final = 8
_NOBODY: Final[Mapping[RankPosition, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key: its raw value, and what it means. The meaning follows from key and value, so it is not compared."""

    value: bytes
    mod_revision: int
    name: keys.Name | None = field(compare=False)
    record: Record | Rejected = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance that has a record. Ranks without one are no instance.

    ``ranks`` holds, in order of position, the ranks of this incarnation that lie within its layout. ``uncounted`` says
    of every other rank key under this id why it does not count. ``order`` may name another incarnation.
    """

    instance_id: str
    record: InstanceRecord
    mod_revision: int
    ranks: Mapping[RankPosition, RankRecord]
    uncounted: Mapping[RankPosition, str]
    order: OrderRecord | None

    @property
    def incarnation(self) -> str:
        return self.record.incarnation

    @property
    def role(self) -> Role:
        return self.record.role

    @property
    def ready(self) -> bool:
        """Serving, and every expected rank of the same incarnation is present."""
        return self.record.state == "serving" and len(self.ranks) == self.record.world_size

    @property
    def draining(self) -> bool:
        """Takes no new requests: it says so itself, or an order for this incarnation does."""
        return self.record.state == "draining" or meaning(self.order, self.incarnation) != "serve"

    @property
    def why_not_ready(self) -> tuple[str, ...]:
        """What it waits for, as sentences; empty iff ready."""
        state = () if self.record.state == "serving" else (f"state is {self.record.state}",)
        missing = self.record.world_size - len(self.ranks)
        named = tuple(self._missing_ranks(min(missing, _NAMED_RANKS)))
        more = missing - len(named)
        return (*state, *named, *((f"{more} more ranks are missing",) if more else ()))

    def _missing_ranks(self, limit: int) -> Iterator[str]:
        for dp, cp, tp in expected_positions(self.record):
            if limit == 0:
                return
            if (dp, cp, tp) not in self.ranks:
                limit -= 1
                position = RankPosition(dp, cp, tp)
                why = self.uncounted.get(position)
                yield f"rank {position} " + ("is missing" if why is None else f"does not count: {why}")


def expected_positions(record: InstanceRecord) -> Iterator[tuple[int, int, int]]:
    """(dp, cp, tp) of every rank a complete instance has, in order."""
    return product(range(record.dp_size), range(record.cp_size), range(record.tp_size))


def assemble(
    instance_id: str, entries: Mapping[str, Entry], held: Instance | None, changed: Collection[str]
) -> Instance | None:
    """The instance that ``entries``, every key about this id, make up; None without a valid record.

    ``held`` is what they made up before the keys in ``changed`` were; it is returned when that is still so. While
    incarnation and layout stay, whether a rank counts has nothing to do with the others: only the changed are judged.
    """
    own, order = entries.get(keys.instance(instance_id)), entries.get(keys.order(instance_id))
    if own is None or not isinstance(own.record, InstanceRecord):
        return None
    if held is None or _layout(own.record) != _layout(held.record):
        ranks, uncounted = _judged(own.record, _NOBODY, _NOBODY, _all_ranks(entries))
    else:
        ranks, uncounted = _judged(own.record, held.ranks, held.uncounted, _changed_ranks(entries, changed))
    made = Instance(
        instance_id=instance_id,
        record=own.record,
        mod_revision=own.mod_revision,
        ranks=ranks,
        uncounted=uncounted,
        order=order.record if order is not None and isinstance(order.record, OrderRecord) else None,
    )
    return held if made == held else made


def _layout(record: InstanceRecord) -> tuple[str, int, int, int]:
    return record.incarnation, record.dp_size, record.cp_size, record.tp_size


def _all_ranks(entries: Mapping[str, Entry]) -> dict[RankPosition, Record | Rejected | None]:
    return {
        entry.name.position: entry.record
        for entry in entries.values()
        if entry.name is not None and entry.name.position is not None
    }


def _changed_ranks(
    entries: Mapping[str, Entry], changed: Collection[str]
) -> dict[RankPosition, Record | Rejected | None]:
    """The newest record at every position named in ``changed``, None where there is none any more."""
    found: dict[RankPosition, Record | Rejected | None] = {}
    for key in changed:
        entry = entries.get(key)
        name = keys.parse(key) if entry is None else entry.name
        if name is not None and name.position is not None:
            found[name.position] = None if entry is None else entry.record
    return found


def _judged(
    instance: InstanceRecord,
    ranks: Mapping[RankPosition, RankRecord],
    uncounted: Mapping[RankPosition, str],
    newest: Mapping[RankPosition, Record | Rejected | None],
) -> tuple[Mapping[RankPosition, RankRecord], Mapping[RankPosition, str]]:
    """``ranks`` and ``uncounted`` with the positions in ``newest`` judged again; in order of position."""
    if not newest:
        return ranks, uncounted
    counted: dict[RankPosition, RankRecord | None] = {}
    why_not: dict[RankPosition, str | None] = {}
    for position, record in newest.items():
        why = None if record is None else _why_uncounted(instance, position, record)
        counted[position] = record if isinstance(record, RankRecord) and why is None else None
        why_not[position] = why
    return _changed_in_order(ranks, counted), _changed_in_order(uncounted, why_not)


def _changed_in_order(
    held: Mapping[RankPosition, ValueT], changes: Mapping[RankPosition, ValueT | None]
) -> Mapping[RankPosition, ValueT]:
    """``held`` with each changed position set, or without it for None; the same object when nothing differs."""
    changed = dict(held)
    for position, value in changes.items():
        if value is None:
            changed.pop(position, None)
        else:
            changed[position] = value
    if changed == held:
        return held
    ordered = changed if changed.keys() <= held.keys() else dict(sorted(changed.items(), key=_by_position))
    return MappingProxyType(ordered)


def _by_position(item: tuple[RankPosition, object]) -> RankPosition:
    return item[0]


def _why_uncounted(instance: InstanceRecord, position: RankPosition, record: Record | Rejected) -> str | None:
    if isinstance(record, Rejected):
        return f"its value is refused: {record.reason}"
    if isinstance(record, RankRecord) and record.incarnation != instance.incarnation:
        return f"it is of incarnation {record.incarnation}, the instance is {instance.incarnation}"
    dp, cp, tp = position
    if dp < instance.dp_size and cp < instance.cp_size and tp < instance.tp_size:
        return None
    return f"it lies outside the layout {instance.dp_size}.{instance.cp_size}.{instance.tp_size} (dp.cp.tp)"
