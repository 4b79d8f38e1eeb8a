"""What holds for every history of the keyspace and every way of reading it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.topology.events import (
    Event,
    GenerationActivated,
    InstanceChanged,
    InstanceDraining,
    InstanceJoined,
    InstanceLost,
    InstanceNotReady,
    InstanceReady,
    RankJoined,
    RankLost,
    RouterJoined,
    RouterLost,
    diff,
)
from pdcore.topology.keys import RankId
from pdcore.topology.records import InstanceRecord, RankRecord, RouterRecord
from pdcore.topology.topology import Stored, Topology, build, fold, relist
from tests.topology.histories import History, histories

pytestmark = pytest.mark.unit
few = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def assert_same(found: Topology, expected: Topology) -> None:
    """Equal as values, and in everything that is derived from the keys."""
    assert found == expected
    assert found.keys == expected.keys
    assert found.store_id == expected.store_id
    for name in ("instances", "routers", "groups", "departures", "orders", "rejected"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert (mine, len(mine)) == (theirs, len(list(theirs))), name
    assert found.models() == expected.models()
    assert found.by_role("prefill") == expected.by_role("prefill")


@few
@given(histories)
def test_folding_every_revision_is_building_the_end(history: History) -> None:
    topology = Topology.empty()
    for at in range(1, history.end + 1):
        topology = fold(topology, at, history.changes(at, at))
        assert_same(topology, build(history.listed(at), at))
        assert topology.revision == at


@few
@given(histories, st.data())
def test_revisions_folded_in_batches_are_the_same_as_one_by_one(
    history: History, data: st.DataObject
) -> None:
    changes = data.draw(st.permutations(history.changes(1, history.end)))
    assert_same(fold(Topology.empty(), history.end, changes), build(history.listed(), history.end))


@few
@given(histories, st.data())
def test_delivering_again_changes_nothing(history: History, data: st.DataObject) -> None:
    topology = build(history.listed(), history.end)
    first = data.draw(st.integers(1, history.end))
    last = data.draw(st.integers(first, history.end))
    assert fold(topology, last, history.changes(first, last)) is topology


@few
@given(histories, st.data())
def test_any_mix_of_listing_and_watching_ends_at_the_same_topology(
    history: History, data: st.DataObject
) -> None:
    """Watches overlap what is known already, lists come at any time; only holes are not allowed."""
    topology = Topology.empty()
    while topology.revision < history.end:
        known = topology.revision
        to = data.draw(st.integers(known + 1, history.end))
        if data.draw(st.booleans()):
            topology = relist(topology, history.listed(to), to)
        else:
            first = data.draw(st.integers(1, known + 1))
            topology = fold(topology, to, history.changes(first, to))
    assert_same(topology, build(history.listed(), history.end))


@few
@given(histories, histories)
def test_a_relist_forgets_everything_that_is_not_listed(before: History, after: History) -> None:
    """Also another store with a lower revision, whose keys may share revisions with the old one's."""
    held = build(before.listed(), before.end)
    assert_same(relist(held, after.listed(), after.end), build(after.listed(), after.end))


@few
@given(histories, st.data())
def test_events_carry_one_topology_over_to_the_other(history: History, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, history.end))
    old, new = build(history.listed(start), start), build(history.listed(), history.end)
    fleet = _Fleet(old)
    events = diff(old, new, coalesced=True)
    for event in events:
        fleet.apply(event)
    assert fleet == _Fleet(new)
    assert all(event.coalesced and event.revision == new.revision for event in events)


@few
@given(histories)
def test_events_of_a_fold_and_of_a_fresh_build_are_the_same(history: History) -> None:
    topology = Topology.empty()
    for at in range(1, history.end + 1):
        folded = fold(topology, at, history.changes(at, at))
        fresh = build(history.listed(at), at)
        assert diff(topology, folded) == diff(build(history.listed(at - 1), at - 1), fresh)
        topology = folded


@few
@given(histories, st.integers(100, 200))
def test_writing_the_same_again_is_no_event(history: History, later: int) -> None:
    topology = build(history.listed(), history.end)
    rewritten = {key: Stored(stored.value, later) for key, stored in history.listed().items()}
    assert diff(topology, topology) == ()
    assert diff(topology, build(rewritten, later)) == ()


class _Fleet:
    """What a reader of events alone knows. Each event must make sense where it comes."""

    def __init__(self, topology: Topology) -> None:
        instances = topology.instances
        self.instances: dict[str, InstanceRecord] = {i: x.record for i, x in instances.items()}
        self.ready = {i for i, x in instances.items() if x.ready}
        self.draining = {i for i, x in instances.items() if x.draining}
        self.ranks: dict[RankId, RankRecord] = {
            RankId(i, at): rank for i, x in instances.items() for at, rank in x.ranks.items()
        }
        self.routers: dict[str, RouterRecord] = dict(topology.routers)
        self.active = {g: n for g in topology.groups if (n := topology.active_generation(g)) is not None}

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Fleet)
        lost = self.active.keys() - other.active.keys()
        return (
            (self.instances, self.ready, self.draining, self.ranks, self.routers)
            == (other.instances, other.ready, other.draining, other.ranks, other.routers)
        ) and {g: n for g, n in self.active.items() if g not in lost} == other.active

    def apply(self, event: Event) -> None:
        match event:
            case InstanceJoined():
                assert event.instance_id not in self.instances
                self.instances[event.instance_id] = event.record
            case InstanceLost():
                assert self.instances.pop(event.instance_id) == event.record
                assert not [rank for rank in self.ranks if rank.instance_id == event.instance_id]
                self.ready.discard(event.instance_id)
                self.draining.discard(event.instance_id)
            case InstanceChanged():
                before = self.instances[event.instance_id]
                assert before.incarnation == event.incarnation
                said = set(event.fields) - {"draining"}
                assert said == {f for f in before._fields if getattr(before, f) != getattr(event.record, f)}
                self.instances[event.instance_id] = event.record
                if "draining" in event.fields:
                    self.draining.remove(event.instance_id)
            case RankJoined():
                assert event.incarnation == self.instances[event.instance_id].incarnation
                self.ranks[RankId(event.instance_id, event.position)] = event.record
            case RankLost():
                assert self.ranks.pop(RankId(event.instance_id, event.position)) == event.record
            case _:
                self._apply_standing(event)

    def _apply_standing(self, event: Event) -> None:
        match event:
            case InstanceReady():
                assert event.instance_id not in self.ready
                self.ready.add(event.instance_id)
            case InstanceNotReady():
                assert event.reason
                self.ready.remove(event.instance_id)
            case InstanceDraining():
                assert event.instance_id not in self.draining
                self.draining.add(event.instance_id)
            case RouterJoined():
                self.routers[event.router_id] = event.record
            case RouterLost():
                assert self.routers.pop(event.router_id) == event.record
            case GenerationActivated():
                assert self.active.get(event.group) == event.previous
                self.active[event.group] = event.generation
            case _:
                pass
