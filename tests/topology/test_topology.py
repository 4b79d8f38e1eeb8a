"""One view of the fleet: who is ready and why not, who is where, and what a change costs."""

from __future__ import annotations

import pytest

from pdcore.topology.codec import encode
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import (
    DepartureRecord,
    DesiredRecord,
    DocumentRecord,
    OrderKind,
    OrderRecord,
    Record,
    RouterRecord,
    StoreIdRecord,
)
from pdcore.topology.topology import KeyChange, Stored, Topology, build, fold, relist
from tests.support.fleet import complete, instance_record, rank_record, stored, topology_of

pytestmark = pytest.mark.unit


def order(kind: OrderKind, incarnation: str | None = "inc-1", *, sticky: bool = False) -> dict[str, Record]:
    return {"orders/p0": OrderRecord(kind=kind, incarnation=incarnation, sticky=sticky, by="test")}


def desired(active: int) -> dict[str, Record]:
    record = DesiredRecord(active=active, candidate=None, deadline=None, replicas={})
    return {"groups/g/desired": record}


def test_an_instance_with_all_its_ranks_is_ready() -> None:
    instance = topology_of(complete("p0", instance_record(dp_size=2, tp_size=2))).instances["p0"]
    assert instance.ready
    assert instance.why_not_ready == ()
    assert list(instance.ranks) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]


def test_an_instance_says_which_rank_it_misses() -> None:
    records = complete("p0", instance_record(dp_size=2, tp_size=2))
    del records["ranks/p0/1.0.0"]
    instance = topology_of(records).instances["p0"]
    assert not instance.ready
    assert instance.why_not_ready == ("rank 1.0.0 is missing",)


@pytest.mark.parametrize("state", ["starting", "draining"])
def test_an_instance_that_does_not_serve_is_not_ready(state: str) -> None:
    instance = topology_of(complete("p0", instance_record(state=state))).instances["p0"]
    assert not instance.ready
    assert instance.why_not_ready == (f"state is {state}",)


def test_a_rank_of_another_incarnation_does_not_count() -> None:
    records = complete("p0", instance_record(tp_size=2))
    records["ranks/p0/0.0.1"] = rank_record(incarnation="inc-0")
    instance = topology_of(records).instances["p0"]
    assert list(instance.ranks) == [RankPosition(0, 0, 0)]
    assert instance.why_not_ready == (
        "rank 0.0.1 does not count: it is of incarnation inc-0, the instance is inc-1",
    )


def test_a_rank_whose_value_is_refused_does_not_count() -> None:
    listed = stored(complete("p0", instance_record())) | {"ranks/p0/0.0.0": Stored(b"{}", 2)}
    topology = build(listed, 2)
    reason = "v: null is not known here, only 1"
    assert topology.instances["p0"].why_not_ready == (
        f"rank 0.0.0 does not count: its value is refused: {reason}",
    )
    assert topology.rejected["ranks/p0/0.0.0"].reason == reason


@pytest.mark.parametrize("position", [RankPosition(1, 0, 0), RankPosition(0, 1, 0), RankPosition(0, 0, 7)])
def test_a_rank_outside_the_layout_neither_counts_nor_matters(position: RankPosition) -> None:
    records = {**complete("p0", instance_record()), f"ranks/p0/{position}": rank_record()}
    instance = topology_of(records).instances["p0"]
    assert instance.ready
    assert instance.uncounted == {position: "it lies outside the layout 1.1.1 (dp.cp.tp)"}


def test_many_missing_ranks_are_counted_not_listed() -> None:
    record = instance_record(dp_size=4, tp_size=1024)
    instance = topology_of({"instances/p0": record}).instances["p0"]
    assert len(instance.why_not_ready) == 9
    assert instance.why_not_ready[-1] == "4088 more ranks are missing"


def test_ranks_without_an_instance_wait_for_it() -> None:
    records = complete("p0", instance_record())
    ranks = topology_of({key: record for key, record in records.items() if key.startswith("ranks")})
    assert "p0" not in ranks.instances
    value = encode(instance_record())
    assert fold(ranks, 2, [KeyChange("instances/p0", value, 2)]).instances["p0"].ready


def test_garbage_takes_the_record_away() -> None:
    topology = topology_of(complete("p0", instance_record()))
    after = fold(topology, 2, [KeyChange("instances/p0", b"garbage", 2)])
    assert "p0" not in after.instances
    assert set(after.rejected) == {"instances/p0"}
    healed = fold(after, 3, [KeyChange("instances/p0", encode(instance_record()), 3)])
    assert healed.instances["p0"].ready
    assert not healed.rejected


@pytest.mark.parametrize(
    ("given", "draining"),
    [
        (order("drain"), True),
        (order("end"), True),
        (order("undrain"), False),
        (order("drain", "inc-0"), False),
        (order("drain", "inc-0", sticky=True), True),
        (order("drain", None, sticky=True), True),
        ({}, False),
    ],
)
def test_an_order_binds_its_incarnation_unless_sticky(given: dict[str, Record], draining: bool) -> None:
    instance = topology_of(complete("p0", instance_record()), given).instances["p0"]
    assert instance.draining is draining
    assert instance.ready


def test_an_undrain_does_not_overrule_the_instance_itself() -> None:
    topology = topology_of(complete("p0", instance_record(state="draining")), order("undrain"))
    assert topology.instances["p0"].draining


def test_instances_are_found_by_role_in_order() -> None:
    topology = topology_of(
        complete("b", instance_record()),
        complete("a", instance_record()),
        complete("c", instance_record("decode")),
    )
    assert [i.instance_id for i in topology.by_role("prefill")] == ["a", "b"]
    assert [i.instance_id for i in topology.by_role("decode")] == ["c"]
    assert topology.by_role("unified") == ()
    assert len(topology.instances) == 3


@pytest.mark.parametrize(
    ("registered", "asked"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:DB8:0::1"),
        ("2001:db8::1", "[2001:db8::1]"),
        ("host-a", "HOST-A"),
    ],
)
def test_a_prefill_is_found_by_any_spelling_of_its_bootstrap_address(registered: str, asked: str) -> None:
    topology = topology_of(complete("p0", instance_record(bootstrap_host=registered, bootstrap_port=18801)))
    assert topology.by_bootstrap(asked, 18801) is topology.instances["p0"]
    assert topology.by_bootstrap(asked, 18800) is None
    assert topology.by_bootstrap("10.9.9.9", 18801) is None


def test_the_newest_of_two_instances_has_the_address() -> None:
    listed = stored(complete("a", instance_record()), 5) | stored(complete("b", instance_record()), 4)
    found = build(listed, 5).by_bootstrap("127.0.0.1", 18800)
    assert found is not None
    assert found.instance_id == "a"


def test_only_a_prefill_has_a_bootstrap_address() -> None:
    record = instance_record("unified", bootstrap_host="127.0.0.1", bootstrap_port=18800)
    assert topology_of(complete("u0", record)).by_bootstrap("127.0.0.1", 18800) is None


def test_only_the_active_generation_counts() -> None:
    fleet = {
        **complete("old", instance_record(group="g", generation=1, models=("chat-old",))),
        **complete("new", instance_record(group="g", generation=2, models=("chat", "chat-alias"))),
        **complete("alone", instance_record(models=("tiny",))),
    }
    topology = topology_of(fleet, desired(2))
    assert {i: topology.is_active(x) for i, x in topology.instances.items()} == {
        "old": False,
        "new": True,
        "alone": True,
    }
    assert topology.models() == ("chat", "chat-alias", "tiny")


def test_a_group_is_active_only_once_someone_said_so() -> None:
    topology = topology_of(complete("x", instance_record(group="g", generation=0)))
    assert topology.active_generation("g") is None
    assert topology.active_generation("") == 0
    assert not topology.is_active(topology.instances["x"])
    assert topology.models() == ()


def test_groups_routers_departures_and_orders_are_kept() -> None:
    router = RouterRecord(url="http://h:1", admin_url="http://h:1", version="1")
    departure = DepartureRecord(incarnation="inc-0", reason="left", by="")
    documents: dict[str, Record] = {
        "groups/g/spec": DocumentRecord(document={"model": "m"}),
        "groups/g/generations/2": DocumentRecord(document={"n": 2}),
        "groups/g/generations/10": DocumentRecord(document={"n": 10}),
    }
    others: dict[str, Record] = {
        "routers/r0": router,
        "departures/p0": departure,
        "store_id": StoreIdRecord(store_id="s"),
    }
    topology = topology_of(documents, desired(2), others, order("drain"))
    group = topology.groups["g"]
    assert list(group.generations) == [2, 10]
    assert group.spec == documents["groups/g/spec"]
    assert group.desired == desired(2)["groups/g/desired"]
    assert dict(topology.routers) == {"r0": router}
    assert dict(topology.departures) == {"p0": departure}
    assert {f"orders/{i}": record for i, record in topology.orders.items()} == order("drain")
    assert topology.store_id == "s"


def test_a_change_shares_everything_it_does_not_touch() -> None:
    fleet = [complete(f"p{n}", instance_record(tp_size=2)) for n in range(300)]
    topology = topology_of(*fleet)
    after = fold(topology, 2, [KeyChange("ranks/p7/0.0.1", None, 2)])
    touched = [i for i in topology.instances if after.instances[i] is not topology.instances[i]]
    assert touched == ["p7"]
    assert (
        after.instances["p7"].ranks[RankPosition(0, 0, 0)]
        is topology.instances["p7"].ranks[RankPosition(0, 0, 0)]
    )
    assert after.routers is topology.routers


def test_a_relist_of_the_same_keys_reuses_every_record() -> None:
    records = complete("p0", instance_record(tp_size=2))
    topology = topology_of(records)
    again = relist(topology, stored(records), 9)
    assert again.instances is topology.instances
    assert again.revision == 9
    assert again == topology


def test_what_is_unknown_may_be_deleted() -> None:
    topology = topology_of(complete("p0", instance_record()))
    after = fold(topology, 2, [KeyChange("instances/nobody", None, 2), KeyChange("foreign", None, 2)])
    assert after == topology
    assert after.revision == 2


def test_a_revision_without_changes_moves_only_the_position() -> None:
    topology = topology_of(complete("p0", instance_record()))
    assert fold(topology, 1, []) is topology
    assert fold(topology, 5, []).revision == 5


def test_the_position_never_steps_back_by_folding() -> None:
    topology = build({}, 5)
    assert fold(topology, 3, []) is topology
    assert fold(topology, 3, [KeyChange("instances/p0", encode(instance_record()), 6)]).revision == 5


def test_a_value_nobody_reads_is_not_held() -> None:
    topology = build({"instances/p0": Stored(b"x" * 1_000_000, 1)}, 1)
    assert topology.keys == {"instances/p0": Stored(b"", 1)}
    assert topology.rejected["instances/p0"].reason == "is 1000000 bytes long, more than 65536"


def test_topologies_with_other_keys_differ() -> None:
    records = complete("p0", instance_record())
    topology = topology_of(records)
    assert topology == topology_of(records)
    assert topology != topology_of(complete("p1", instance_record()))
    assert topology != topology_of(records, revision=2)
    assert topology != "a topology"
    assert topology != Topology.empty()


def test_it_shows_itself_in_one_line() -> None:
    topology = topology_of(
        complete("p0", instance_record()), complete("d0", instance_record(state="starting"))
    )
    assert repr(topology) == ("<Topology at 1: 1 of 2 instances ready, 0 routers, 0 groups, 0 rejected>")
