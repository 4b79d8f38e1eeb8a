"""Which events a change makes, in which order, and what explains a loss."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from pdcore.topology.codec import encode
from pdcore.topology.events import (
    Event,
    InstanceChanged,
    InstanceLost,
    InstanceNotReady,
    RankJoined,
    RankLost,
    diff,
)
from pdcore.topology.records import (
    DepartureReason,
    DepartureRecord,
    DesiredRecord,
    DocumentRecord,
    OrderRecord,
    Record,
    RouterRecord,
)
from pdcore.topology.topology import KeyChange, Topology, fold
from tests.support.fleet import complete, instance_record, rank_record, topology_of

pytestmark = pytest.mark.unit


def after(topology: Topology, changes: dict[str, Record | bytes | None], revision: int = 2) -> Topology:
    """``topology`` after one transaction."""
    values = {k: v if v is None or isinstance(v, bytes) else encode(v) for k, v in changes.items()}
    return fold(topology, revision, [KeyChange(k, value, revision) for k, value in values.items()])


def told(old: Topology, new: Topology) -> list[str]:
    """The events by kind and subject."""
    return [_line(event) for event in diff(old, new)]


def _line(event: Event) -> str:
    shown = event.log_fields()
    names = (
        "instance_id",
        "incarnation",
        "rank",
        "router_id",
        "group",
        "generation",
        "key",
        "fields",
        "reason",
    )
    return " ".join([event.kind, *(str(shown[name]) for name in names if name in shown)])


PAIR = complete("p0", instance_record(tp_size=2))
FLEET = topology_of(PAIR)


def test_a_field_that_only_others_know_is_told_by_its_name() -> None:
    old = topology_of(complete("d0", instance_record("decode")))
    said = instance_record("decode")._replace(extra={"drained": True})
    (event,) = diff(old, after(old, {"instances/d0": said}))
    assert isinstance(event, InstanceChanged)
    assert event.fields == ("drained",)


def departure(reason: DepartureReason, incarnation: str = "inc-1") -> DepartureRecord:
    return DepartureRecord(incarnation=incarnation, reason=reason, by="registrar")


def gone(records: dict[str, Record]) -> dict[str, Record | bytes | None]:
    return dict.fromkeys(records)


def test_a_complete_instance_joins_with_its_ranks_and_is_ready() -> None:
    assert told(Topology.empty(), FLEET) == [
        "instance_joined p0 inc-1",
        "rank_joined p0 inc-1 0.0.0",
        "rank_joined p0 inc-1 0.0.1",
        "instance_ready p0 inc-1",
    ]


def test_an_instance_is_ready_with_its_last_rank() -> None:
    old = after(FLEET, {"ranks/p0/0.0.1": None})
    assert told(old, after(old, {"ranks/p0/0.0.1": rank_record()}, 3)) == [
        "rank_joined p0 inc-1 0.0.1",
        "instance_ready p0 inc-1",
    ]


def test_an_instance_that_starts_serving_is_ready() -> None:
    starting = topology_of(complete("p0", instance_record(state="starting")))
    assert told(starting, after(starting, {"instances/p0": instance_record()})) == [
        "instance_changed p0 inc-1 state",
        "instance_ready p0 inc-1",
    ]


def test_an_instance_that_leaves_says_so() -> None:
    new = after(FLEET, gone(PAIR) | {"departures/p0": departure("left")})
    assert told(FLEET, new) == [
        "rank_lost p0 inc-1 0.0.0 left",
        "rank_lost p0 inc-1 0.0.1 left",
        "instance_lost p0 inc-1 left",
    ]


def test_a_lost_lease_is_unexplained() -> None:
    assert told(FLEET, after(FLEET, gone(PAIR)))[-1] == "instance_lost p0 inc-1 unexplained"


def test_a_lost_instance_and_rank_come_with_their_last_record() -> None:
    events = diff(FLEET, after(FLEET, gone(PAIR)))
    assert [e.record for e in events if isinstance(e, InstanceLost)] == [instance_record(tp_size=2)]
    assert [e.record for e in events if isinstance(e, RankLost)] == [rank_record(), rank_record()]


def test_a_rank_that_died_makes_its_instance_not_ready() -> None:
    new = after(FLEET, {"ranks/p0/0.0.1": None, "departures/p0": departure("died")})
    assert told(FLEET, new) == [
        "rank_lost p0 inc-1 0.0.1 died",
        "instance_not_ready p0 inc-1 rank 0.0.1 is missing",
    ]


def test_an_instance_that_was_not_ready_is_not_told_to_be_so_again() -> None:
    starting = topology_of(complete("p0", instance_record(tp_size=2, state="starting")))
    assert told(starting, after(starting, {"ranks/p0/0.0.1": None})) == [
        "rank_lost p0 inc-1 0.0.1 unexplained"
    ]


def test_an_earlier_departure_does_not_explain_a_later_loss() -> None:
    silent = after(FLEET, {"ranks/p0/0.0.1": None, "departures/p0": departure("silent")})
    back = after(silent, {"ranks/p0/0.0.1": rank_record()}, 3)
    assert told(back, after(back, gone(PAIR), 4))[-1] == "instance_lost p0 inc-1 unexplained"


def test_a_departure_of_another_incarnation_explains_nothing() -> None:
    new = after(FLEET, gone(PAIR) | {"departures/p0": departure("left", "inc-0")})
    assert told(FLEET, new)[-1] == "instance_lost p0 inc-1 unexplained"


def test_a_restart_in_one_revision_is_a_loss_and_an_arrival() -> None:
    again: dict[str, Record | bytes | None] = {
        **complete("p0", instance_record(tp_size=2, incarnation="inc-2"))
    }
    new = after(FLEET, again | {"departures/p0": departure("died")})
    assert told(FLEET, new) == [
        "rank_lost p0 inc-1 0.0.0 died",
        "rank_lost p0 inc-1 0.0.1 died",
        "instance_lost p0 inc-1 died",
        "instance_joined p0 inc-2",
        "rank_joined p0 inc-2 0.0.0",
        "rank_joined p0 inc-2 0.0.1",
        "instance_ready p0 inc-2",
    ]


def test_an_expired_departure_is_no_event() -> None:
    with_departure = after(FLEET, {"departures/p9": departure("left"), "departures/p0": departure("silent")})
    assert (
        told(with_departure, after(with_departure, {"departures/p9": None, "departures/p0": None}, 3)) == []
    )


def test_garbage_over_a_record_loses_it() -> None:
    assert told(FLEET, after(FLEET, {"instances/p0": b"{}"})) == [
        "record_rejected instances/p0 v: null is not known here, only 1",
        "rank_lost p0 inc-1 0.0.0 unexplained",
        "rank_lost p0 inc-1 0.0.1 unexplained",
        "instance_lost p0 inc-1 unexplained",
    ]


def test_garbage_is_told_once_per_reason() -> None:
    bad = after(FLEET, {"x/y": b"1"})
    assert told(FLEET, bad) == ["record_rejected x/y is no key of this keyspace"]
    assert told(bad, after(bad, {"x/y": b"2"}, 3)) == []
    assert told(bad, after(bad, {"x/y": None}, 3)) == []


def test_a_rank_that_moved_joins_again() -> None:
    moved = after(FLEET, {"ranks/p0/0.0.1": rank_record(rank_port=9)})
    assert told(FLEET, moved) == ["rank_joined p0 inc-1 0.0.1"]
    assert [e.record.rank_port for e in diff(FLEET, moved) if isinstance(e, RankJoined)] == [9]


def test_an_instance_that_drains_is_not_ready_either() -> None:
    new = after(FLEET, {"instances/p0": instance_record(tp_size=2, state="draining")})
    assert told(FLEET, new) == [
        "instance_changed p0 inc-1 state",
        "instance_not_ready p0 inc-1 state is draining",
        "instance_draining p0 inc-1",
    ]


def test_an_order_to_drain_and_its_withdrawal() -> None:
    drain = OrderRecord(kind="drain", incarnation="inc-1", sticky=False, by="me")
    draining = after(FLEET, {"orders/p0": drain})
    assert told(FLEET, draining) == ["order_given p0 inc-1", "instance_draining p0 inc-1"]
    undrain = OrderRecord(kind="undrain", incarnation="inc-1", sticky=False, by="me")
    assert told(draining, after(draining, {"orders/p0": undrain}, 3)) == [
        "order_given p0 inc-1",
        "instance_changed p0 inc-1 draining",
    ]
    assert told(draining, after(draining, {"orders/p0": None}, 3)) == ["instance_changed p0 inc-1 draining"]


def test_routers_come_and_go() -> None:
    router = RouterRecord(url="http://h:1", admin_url="http://h:1", version="1")
    joined = after(FLEET, {"routers/r0": router})
    assert told(FLEET, joined) == ["router_joined r0"]
    assert told(joined, after(joined, {"routers/r0": None}, 3)) == ["router_lost r0"]


def test_a_generation_is_activated() -> None:
    def desired(active: int, candidate: int | None = None) -> DesiredRecord:
        return DesiredRecord(active=active, candidate=candidate, deadline=None, replicas={})

    first = after(FLEET, {"groups/g/desired": desired(1)})
    assert told(FLEET, first) == ["group_changed g", "generation_activated g 1"]
    candidate = after(
        first, {"groups/g/desired": desired(1, 2), "groups/g/spec": DocumentRecord(document={})}, 3
    )
    assert told(first, candidate) == ["group_changed g"]
    second = after(candidate, {"groups/g/desired": desired(2)}, 4)
    assert told(candidate, second) == ["group_changed g", "generation_activated g 2"]


def test_events_come_in_a_fixed_order() -> None:
    changes: dict[str, Record | bytes | None] = {
        **complete("b", instance_record()),
        **complete("a", instance_record()),
        "routers/r": RouterRecord(url="http://h:1", admin_url="http://h:1", version="1"),
        "orders/a": OrderRecord(kind="undrain", incarnation="inc-1", sticky=False, by=""),
        "groups/g/spec": DocumentRecord(document={}),
        "zzz": b"",
    }
    forwards = told(FLEET, after(FLEET, changes))
    assert forwards == told(FLEET, after(FLEET, dict(reversed(changes.items()))))
    assert [line.split()[0] for line in forwards] == [
        "record_rejected",
        "group_changed",
        "order_given",
        "router_joined",
        *("instance_joined", "rank_joined", "instance_ready") * 2,
    ]


def test_every_event_carries_its_revision_and_whether_it_is_coalesced() -> None:
    new = after(FLEET, {"ranks/p0/0.0.1": None}, 7)
    assert {(e.revision, e.coalesced) for e in diff(FLEET, new)} == {(7, False)}
    assert {(e.revision, e.coalesced) for e in diff(FLEET, new, coalesced=True)} == {(7, True)}


def test_an_event_is_a_value() -> None:
    new = after(FLEET, {"ranks/p0/0.0.1": None})
    event = diff(FLEET, new)[-1]
    assert event == InstanceNotReady(
        revision=2, instance_id="p0", incarnation="inc-1", reason="rank 0.0.1 is missing"
    )
    with pytest.raises(FrozenInstanceError):
        event.revision = 3  # type: ignore[misc]
    assert event.log_fields() == {
        "event": "instance_not_ready",
        "revision": 2,
        "coalesced": False,
        "instance_id": "p0",
        "incarnation": "inc-1",
        "reason": "rank 0.0.1 is missing",
    }
