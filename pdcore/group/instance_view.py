"""One instance in full, for a person or a program: why it is not ready, rank by rank, and the order it is under. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from pdcore.group.overview import InstanceRow
from pdcore.topology.instance import Instance, expected_positions
from pdcore.topology.keys import RankPosition
from pdcore.topology.orders import DRAINED
from pdcore.topology.records import OrderRecord
from pdcore.topology.topology import Topology

_SHOWN_RANKS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One expected rank, or one that is there and does not count."""

    position: str
    standing: str
    address: str | None
    device: str | None
    machine: str | None


def document(topology: Topology, instance_id: str, claim: str | None) -> dict[str, object]:
    """Everything the keyspace says about ``instance_id``, which may be gone; names as in the keyspace."""
    instance = topology.instances.get(instance_id)
    departed = topology.departures.get(instance_id)
    order = topology.orders.get(instance_id)
    return {
        "instance_id": instance_id,
        "revision": topology.revision,
        "claim": claim,
        "instance": None if instance is None else asdict(InstanceRow.of(instance)),
        "drained": instance is not None and instance.record.extra.get(DRAINED) is True,
        "ranks": [] if instance is None else [asdict(row) for row in rank_rows(instance)],
        "order": None
        if order is None
        else {
            "kind": order.kind,
            "incarnation": order.incarnation,
            "sticky": order.sticky,
            "by": order.by,
        },
        "departure": None if departed is None else {"reason": departed.reason, "by": departed.by},
    }


def rank_rows(instance: Instance) -> tuple[RankRow, ...]:
    """Every expected rank in order of position, then those outside the layout."""
    expected = [RankPosition(*at) for at in expected_positions(instance.record)]
    others = [position for position in instance.uncounted if position not in set(expected)]
    return tuple(_rank_row(instance, position) for position in (*expected, *others))


def _rank_row(instance: Instance, position: RankPosition) -> RankRow:
    record = instance.ranks.get(position)
    if record is None:
        why = instance.uncounted.get(position)
        standing = "missing" if why is None else f"does not count: {why}"
        return RankRow(position=str(position), standing=standing, address=None, device=None, machine=None)
    port = "" if record.rank_port is None else f":{record.rank_port}"
    return RankRow(
        position=str(position),
        standing="present",
        address=f"{record.rank_ip}{port}",
        device=record.device,
        machine=record.machine,
    )


def lines(topology: Topology, instance_id: str, claim: str | None) -> Iterator[str]:
    """The same for people."""
    instance = topology.instances.get(instance_id)
    if instance is None:
        yield f"{instance_id} is not registered at revision {topology.revision}"
    else:
        yield from _standing_lines(instance)
    departed = topology.departures.get(instance_id)
    if departed is not None:
        yield f"  incarnation {departed.incarnation} went: {departed.reason}, says {departed.by}"
    order = topology.orders.get(instance_id)
    if order is not None:
        yield f"  ordered: {_order_text(order)}"
    if claim is not None and (instance is None or claim != instance.incarnation):
        yield f"  its id is claimed by incarnation {claim}"
    if instance is not None:
        rows = rank_rows(instance)
        for row in rows[:_SHOWN_RANKS]:
            where = " ".join(part for part in (row.address, row.device, row.machine) if part)
            yield f"  rank {row.position}: {row.standing}{f' at {where}' if where else ''}"
        if len(rows) > _SHOWN_RANKS:
            yield f"  … and {len(rows) - _SHOWN_RANKS} more ranks"


def _standing_lines(instance: Instance) -> Iterator[str]:
    record = instance.record
    ready = "ready" if instance.ready else "not ready"
    yield f"{instance.instance_id} is a {record.role} instance, {ready}, at revision {instance.mod_revision}"
    yield from (f"  {why}" for why in instance.why_not_ready)
    if instance.draining:
        done = record.extra.get(DRAINED) is True
        yield f"  it takes no new requests{' and has finished those it had' if done else ''}"
    yield f"  incarnation {record.incarnation} at {record.url}, process {record.pid} on {record.machine}"
    if record.seat is not None:
        yield f"  it has seat {record.seat}"


def _order_text(order: OrderRecord) -> str:
    whom = "every start" if order.incarnation is None else f"incarnation {order.incarnation}"
    return f"{order.kind} {whom}{', sticky' if order.sticky else ''}, by {order.by}"
