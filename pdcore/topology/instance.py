"""One instance as the keyspace shows it: its record, the ranks that count for it, the order it is under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Final

from pdcore.topology import keys
from pdcore.topology.codec import Rejected
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import InstanceRecord, OrderRecord, RankRecord, Record, Role

_NAMED_RANKS: Final = 8


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
        return self.record.state == "draining" or self._is_ordered_away()

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

    def _is_ordered_away(self) -> bool:
        order = self.order
        if order is None or order.kind == "undrain":
            return False
        return order.sticky or order.incarnation == self.incarnation


def expected_positions(record: InstanceRecord) -> Iterator[tuple[int, int, int]]:
    """(dp, cp, tp) of every rank a complete instance has, in order."""
    return product(range(record.dp_size), range(record.cp_size), range(record.tp_size))


def assemble(instance_id: str, entries: Mapping[str, Entry]) -> Instance | None:
    """The instance that ``entries``, every key about this id, make up; None without a valid record."""
    own = entries.get(keys.instance(instance_id))
    if own is None or not isinstance(own.record, InstanceRecord):
        return None
    order = entries.get(keys.order(instance_id))
    ranks: dict[RankPosition, RankRecord] = {}
    uncounted: dict[RankPosition, str] = {}
    for position, record in sorted(_rank_entries(entries), key=lambda item: item[0]):
        why = _why_uncounted(own.record, position, record)
        if isinstance(record, RankRecord) and why is None:
            ranks[position] = record
        elif why is not None:
            uncounted[position] = why
    return Instance(
        instance_id=instance_id,
        record=own.record,
        mod_revision=own.mod_revision,
        ranks=MappingProxyType(ranks),
        uncounted=MappingProxyType(uncounted),
        order=order.record if order is not None and isinstance(order.record, OrderRecord) else None,
    )


def _rank_entries(entries: Mapping[str, Entry]) -> Iterator[tuple[RankPosition, Record | Rejected]]:
    for entry in entries.values():
        if entry.name is not None and entry.name.position is not None:
            yield entry.name.position, entry.record


def _why_uncounted(instance: InstanceRecord, position: RankPosition, record: Record | Rejected) -> str | None:
    if isinstance(record, Rejected):
        return f"its value is refused: {record.reason}"
    if isinstance(record, RankRecord) and record.incarnation != instance.incarnation:
        return f"it is of incarnation {record.incarnation}, the instance is {instance.incarnation}"
    dp, cp, tp = position
    if dp < instance.dp_size and cp < instance.cp_size and tp < instance.tp_size:
        return None
    return f"it lies outside the layout {instance.dp_size}.{instance.cp_size}.{instance.tp_size} (dp.cp.tp)"
