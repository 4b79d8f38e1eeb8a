"""What holds for every history of the keyspace, every way of reading it and every answer of the network."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.registry.overlay import disappearing, probing, suspect
from pdcore.registry.overlay.suspect import Evidence, InstanceKey, Outcome, Overlay
from pdcore.registry.overlay.view import view
from pdcore.topology import keys
from pdcore.topology.topology import Topology, fold, relist
from tests.registry.overlay.world import World, prefill
from tests.topology.histories import History, histories

pytestmark = pytest.mark.unit
few = settings(max_examples=30, deadline=None, derandomize=True, database=None)
OUTCOMES: tuple[Outcome, ...] = ("answered", "refused", "other", "failed", "silent", "late")
EVIDENCE: tuple[Evidence, ...] = ("connection", "silence")
INCARNATIONS = ("inc-1", "inc-2")


def explained(history: History, at: int) -> set[InstanceKey]:
    """The incarnations whose departure is the newest thing written about them up to revision ``at``; the dumb way."""
    found = set()
    listed = history.listed(at)
    name = "p0"
    departed = relist(Topology.empty(), listed, at).departures.get(name)
    own = [
        revision
        for revision in range(1, at + 1)
        for key, value in history.writes[revision - 1].items()
        if value is not None and (key == keys.instance(name) or key.startswith(f"ranks/{name}/"))
    ]
    if departed is not None and listed[keys.departure(name)].mod_revision > max(own, default=0):
        found.add((name, departed.incarnation))
    return found


class Machine:
    """Reads a history by watching and listing in any mix, while probes end in any way."""

    def __init__(self, data: st.DataObject, history: History) -> None:
        self.draw = data.draw
        self.history = history
        self.random = Random(3)
        self.topology, self.overlay, self.now = Topology.empty(), Overlay(), 0.0
        self.seen: set[tuple[InstanceKey, str]] = set()
        self.complete: dict[InstanceKey, int] = {}

    def read_on(self) -> None:
        """One more revision, or a list that skips some."""
        at = self.draw(st.integers(self.topology.revision + 1, self.history.end))
        if self.draw(st.booleans()):
            after = relist(self.topology, self.history.listed(at), at)
        else:
            at = self.topology.revision + 1
            again = self.draw(st.integers(0, self.topology.revision))  # delivered twice
            after = fold(self.topology, at, self.history.changes(max(1, again), at))
        old, self.topology = self.topology, after
        self.overlay, _ = disappearing.observe(self.overlay, old, after, self.now, self.random)
        again_overlay, notes = disappearing.observe(self.overlay, after, after, self.now, self.random)
        assert (again_overlay, notes) == (self.overlay, ())
        for name, one in after.instances.items():
            self.seen.add(((name, one.incarnation), one.record.url))

    def disturb(self) -> None:
        """Requests accuse somebody, a probe ends."""
        self.now += self.draw(st.sampled_from((0.0, 0.1, 2.0, 1000.0)))
        if self.draw(st.booleans()):
            key = (self.draw(st.sampled_from(("p0", "d0"))), self.draw(st.sampled_from(INCARNATIONS)))
            evidence = self.draw(st.sampled_from(EVIDENCE))
            self.overlay, _ = probing.accuse(self.overlay, self.topology, key, evidence, self.now)
        self.overlay, probes = probing.start_probes(self.overlay, self.now, 32)
        for probe in probes:
            assert (probe.key, probe.url) in self.seen, "never another incarnation's address"
            outcome = self.draw(st.sampled_from(OUTCOMES))
            self.overlay, _ = probing.answered(self.overlay, probe.key, outcome, self.now, self.random)

    def check(self) -> None:
        shown = view(self.overlay, self.topology)
        assert shown.topology == self.topology, "the keys are the keyspace's"
        assert shown.suspects <= shown.topology.instances.keys()
        assert shown.gone.keys() <= self.topology.instances.keys()
        assert not shown.suspects & shown.gone.keys()
        for name, one in shown.topology.instances.items():
            listed = self.topology.instances.get(name)
            if name not in shown.suspects:
                assert one is listed
            elif listed is not None:
                assert one.incarnation == listed.incarnation, "the keyspace's incarnation wins"
            assert ((name, one.incarnation), one.record.url) in self.seen
            assert all(rank.incarnation == one.incarnation for rank in one.ranks.values())
        hidden = explained(self.history, self.topology.revision)
        for name in shown.suspects - self.topology.instances.keys():
            assert (name, shown.topology.instances[name].incarnation) not in hidden, "an explained departure"


@few
@given(histories, st.data())
def test_every_reading_of_every_history_keeps_the_rules(history: History, data: st.DataObject) -> None:
    machine = Machine(data, history)
    while machine.topology.revision < history.end:
        machine.read_on()
        machine.check()
        machine.disturb()
        machine.check()


@few
@given(histories)
def test_when_every_probe_answers_no_unexplained_incarnation_is_ever_missed(history: History) -> None:
    """No threshold: whatever was complete, and went without a word or a successor, is still shown complete."""
    topology, overlay, random = Topology.empty(), Overlay(), Random(1)
    for at in range(1, history.end + 1):
        before = view(overlay, topology).topology
        after = fold(topology, at, history.changes(at, at))
        overlay, _ = disappearing.observe(overlay, topology, after, float(at), random)
        topology = after
        overlay, probes = probing.start_probes(overlay, float(at) + 10, 32)
        for probe in probes:
            overlay, _ = probing.answered(overlay, probe.key, "answered", float(at), random)
        shown = view(overlay, topology).topology
        for name, was in before.instances.items():
            now, departed = topology.instances.get(name), topology.departures.get(name)
            replaced = now is not None and (
                now.incarnation != was.incarnation or now.record.tp_size != was.record.tp_size
            )
            if replaced or (departed is not None and departed.incarnation == was.incarnation):
                continue
            assert was.ranks.keys() <= shown.instances[name].ranks.keys()


@few
@given(st.lists(st.sampled_from(OUTCOMES), max_size=20))
def test_an_overlay_never_outgrows_its_bounds(outcomes: list[Outcome]) -> None:
    assert suspect.MAX_SUSPECTS >= 1000
    world = World()
    for number in range(4):
        world.register(f"p{number}", prefill())
        world.lose(f"p{number}")
    for outcome in outcomes:
        world.now += 1.5
        started = world.due(free=2)
        assert len(started) <= 2
        for probe in started:
            world.answer(probe.key, outcome)
        assert len(world.overlay.suspects) <= 4
