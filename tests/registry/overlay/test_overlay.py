"""Who becomes suspect, who stays one, and who is shown; every rule once."""

from __future__ import annotations

import pytest

from pdcore.registry.overlay import disappearing, probing, suspect
from pdcore.registry.overlay.suspect import FORGOTTEN_AFTER_S, FROZEN_AFTER_S, Evidence, Outcome
from pdcore.topology import keys
from pdcore.topology.records import OrderRecord, Role
from tests.registry.overlay.world import World, prefill
from tests.support.fleet import complete, instance_record

pytestmark = pytest.mark.unit
P0 = ("p0", "inc-1")
PREFILLS: tuple[Role, ...] = ("prefill",)


def vanished(tp_size: int = 1) -> World:
    world = World()
    world.register("p0", prefill(tp_size=tp_size))
    world.lose("p0")
    return world


def test_an_instance_that_vanishes_unexplained_is_shown_as_a_suspect_and_probed_at_once() -> None:
    world = vanished()
    assert "p0" not in world.topology.instances
    shown = world.view()
    assert shown.suspects == {"p0"}
    assert shown.topology.instances["p0"].ready
    assert shown.topology.by_bootstrap("127.0.0.1", 18800) is not None
    assert shown.topology.models() == ("tiny",)
    world.now += 0.1
    assert [(one.key, one.url) for one in world.due()] == [(P0, "http://127.0.0.1:1")]
    assert world.due() == ()
    assert world.said() == ["suspected"]


def test_without_suspects_the_view_is_the_very_topology() -> None:
    world = World()
    world.register("p0", prefill())
    assert world.view().topology is world.topology


@pytest.mark.parametrize("reason", ["left", "died", "silent", "drained", "ordered"])
def test_an_explained_disappearance_makes_no_suspect(reason: str) -> None:
    world = World()
    world.register("p0", prefill())
    world.depart("p0", "inc-1", reason)  # type: ignore[arg-type]
    assert (world.overlay.suspects, world.notes) == ({}, [])
    assert "p0" not in world.view().topology.instances


def test_a_departure_of_another_incarnation_or_of_an_earlier_loss_explains_nothing() -> None:
    world = World()
    world.register("p0", prefill())
    world.depart("p0", "inc-0", "left")
    assert world.view().suspects == {"p0"}
    world.register("p0", prefill())
    world.depart("p0", "inc-1", "silent")
    world.register("p0", prefill())  # it beats again
    world.lose("p0")
    assert world.view().suspects == {"p0"}


def test_a_departure_ends_a_suspect_whenever_it_comes_and_in_however_many_revisions() -> None:
    world = vanished()
    world.depart("p0", "inc-1", "died")
    assert (world.overlay.suspects, world.said()) == ({}, ["suspected", "departed"])
    world.register("p0", prefill(tp_size=2))
    world.depart("p0", "inc-1", "left", "ranks/p0/0.0.0")
    world.lose("p0")
    assert world.overlay.suspects == {}


def test_a_missing_rank_makes_the_whole_instance_suspect_with_its_last_complete_set() -> None:
    world = World()
    world.register("p0", prefill(tp_size=2))
    world.lose("p0", "ranks/p0/0.0.1")
    assert not world.topology.instances["p0"].ready
    shown = world.view()
    assert shown.suspects == {"p0"}
    assert shown.topology.instances["p0"].ready
    assert "0.0.1" in world.notes[0].why
    world.lose("p0", "ranks/p0/0.0.0")
    world.lose("p0", "instances/p0")
    assert world.view().topology.instances["p0"].ready
    assert world.said() == ["suspected"]


def test_a_suspect_tells_the_newest_its_own_keys_and_its_orders_say() -> None:
    world = World()
    world.register("p0", prefill(tp_size=2))
    world.lose("p0", "ranks/p0/0.0.1")
    world.write({keys.instance("p0"): instance_record(tp_size=2, state="draining")})
    assert world.view().topology.instances["p0"].draining
    world.lose("p0")
    world.write({keys.order("p0"): OrderRecord(kind="drain", incarnation="inc-1", sticky=False, by="me")})
    assert world.view().topology.instances["p0"].draining
    world.write({keys.order("p0"): None})
    assert world.view().topology.instances["p0"].draining, "its record still says so"


@pytest.mark.parametrize("incarnation", ["inc-1", "inc-2"])
def test_a_suspect_ends_when_the_keyspace_has_the_instance_again(incarnation: str) -> None:
    world = vanished()
    world.register("p0", prefill(incarnation))
    assert world.view().topology is world.topology
    assert world.said() == ["suspected", "confirmed"]


def test_an_instance_that_comes_back_rank_by_rank_stays_suspect_until_it_is_complete() -> None:
    world = vanished(tp_size=2)
    records = complete("p0", prefill(tp_size=2))
    for key in sorted(records):
        assert world.view().suspects == {"p0"}
        assert world.view().topology.instances["p0"].ready
        world.write({key: records[key]})
    assert world.view().suspects == set()


def test_a_relist_that_lacks_everything_costs_nothing() -> None:
    world = World()
    for name in ("p0", "p1"):
        world.register(name, prefill())
    world.list_again({}, store_id="s2")
    assert world.view().suspects == {"p0", "p1"}
    world.list_again(complete("p0", prefill()), store_id="s2", revision=2)
    assert world.view().suspects == {"p1"}
    world.depart("p1", "inc-1", "died")  # its revision is low: the store is new
    assert world.view().suspects == set()


@pytest.mark.parametrize("outcome", ["refused", "other", "failed"])
def test_a_suspect_whose_incarnation_is_certainly_gone_leaves_at_once(outcome: Outcome) -> None:
    world = vanished()
    assert [note.kind for note in world.probe(outcome)] == ["gone"]
    assert world.overlay.suspects == {}
    assert "p0" not in world.view().topology.instances


def test_two_silences_end_a_suspect_but_it_may_still_answer() -> None:
    world = vanished()
    assert world.probe("silent") == []
    assert world.view().suspects == {"p0"}
    assert probing.next_probe_at(world.overlay) == pytest.approx(world.now, abs=0.06)
    assert [note.kind for note in world.probe("silent", after_s=0.06)] == ["gone"]
    assert "p0" not in world.view().topology.instances
    assert [note.kind for note in world.probe("silent", after_s=FROZEN_AFTER_S)] == ["frozen"]
    assert world.probe("silent") == []
    assert [note.kind for note in world.probe("answered")] == ["kept"]
    assert world.view().suspects == {"p0"}


def test_an_answer_keeps_a_suspect_while_its_probes_pass() -> None:
    world = vanished()
    assert [note.kind for note in world.probe("answered")] == ["kept"]
    for _ in range(10):
        assert world.probe("answered") == []
        assert world.probe("silent") == []
    assert world.view().suspects == {"p0"}
    world.probe("refused")
    assert world.view().suspects == set()


def test_being_late_ourselves_proves_nothing() -> None:
    world = vanished()
    for _ in range(5):
        assert world.probe("late") == []
    assert world.view().suspects == {"p0"}
    assert world.probe("silent") == []


def test_who_is_silent_for_long_is_forgotten() -> None:
    world = vanished()
    world.probe("silent")
    world.probe("silent")
    assert [note.kind for note in world.probe("silent", after_s=FORGOTTEN_AFTER_S)] == ["forgotten"]
    assert world.overlay.suspects == {}


def test_a_failed_connection_makes_a_confirmed_instance_suspect_until_it_answers() -> None:
    world = World()
    world.register("p0", prefill())
    world.accuse(P0, "connection")
    shown = world.view()
    assert (set(shown.suspects), shown.topology) == ({"p0"}, world.topology)
    assert [note.kind for note in world.probe("answered", after_s=0)] == ["confirmed"]
    assert world.overlay.suspects == {}


@pytest.mark.parametrize(
    ("outcome", "why"), [("refused", "refuses"), ("other", "another"), ("failed", "failed")]
)
def test_a_confirmed_instance_that_is_certainly_gone_is_not_picked_until_it_answers(
    outcome: Outcome, why: str
) -> None:
    world = World()
    world.register("p0", prefill())
    world.accuse(P0, "connection")
    world.probe(outcome)
    shown = world.view()
    assert (list(shown.suspects), list(shown.gone)) == ([], ["p0"])
    assert why in shown.gone["p0"]
    world.accuse(P0, "connection")
    world.probe(outcome, after_s=FORGOTTEN_AFTER_S)
    assert list(world.view().gone) == ["p0"], "as long as the keyspace shows it"
    assert [note.kind for note in world.probe("answered")] == ["answers again"]
    assert world.view().gone == {}


def test_a_record_that_changes_clears_what_a_confirmed_instance_is_accused_of() -> None:
    world = World()
    world.register("p0", prefill())
    world.accuse(P0, "connection")
    world.probe("refused")
    world.write({keys.order("p0"): OrderRecord(kind="drain", incarnation="inc-1", sticky=False, by="me")})
    assert list(world.view().gone) == ["p0"], "an order says nothing about its life"
    world.write({keys.instance("p0"): prefill()})
    assert world.view().gone == {}


def test_an_accused_instance_that_vanishes_keeps_what_is_known_of_it() -> None:
    world = World()
    world.register("p0", prefill())
    world.accuse(P0, "connection")
    world.probe("refused")
    world.lose("p0")
    assert "p0" not in world.view().topology.instances
    world.register("p0", prefill())
    assert world.view().gone == {}


def test_silence_alone_is_no_doubt_before_a_probe_meets_it_too() -> None:
    world = World()
    world.register("p0", prefill())
    for _ in range(3):
        world.accuse(P0, "silence")
        assert world.view().suspects == set()
        assert world.probe("answered", after_s=0) == []
    world.accuse(P0, "silence")
    assert [note.kind for note in world.probe("silent", after_s=0)] == ["suspected"]
    assert world.view().suspects == {"p0"}


@pytest.mark.parametrize("evidence", ["silence", "connection"])
def test_an_instance_that_the_keyspace_shows_is_gone_only_after_a_long_silence(evidence: Evidence) -> None:
    world = World()
    world.register("p0", prefill())
    world.accuse(P0, evidence)
    silent_since = world.now
    while world.now + 1.5 - silent_since < FROZEN_AFTER_S:
        world.probe("silent", after_s=1.5)
        assert world.view().suspects == {"p0"}
    assert [note.kind for note in world.probe("silent", after_s=1.5)] == ["frozen"]
    assert list(world.view().gone) == ["p0"]
    assert [note.kind for note in world.probe("answered")] == ["answers again"]


def test_nothing_is_believed_of_whom_the_keyspace_does_not_know() -> None:
    world = World()
    world.register("p0", prefill())
    world.accuse(("p0", "inc-0"), "connection")
    world.accuse(("p9", "inc-1"), "connection")
    assert world.overlay.suspects == {}
    world.answer(P0, "refused")
    assert world.overlay.suspects == {}


def test_an_accusation_only_hurries_the_probe_of_a_suspect() -> None:
    world = vanished()
    world.probe("answered")
    assert world.due() == ()
    world.accuse(P0, "connection")
    assert len(world.due()) == 1
    world.accuse(P0, "connection")
    assert world.due() == ()


def test_what_a_file_remembers_is_shown_once_it_answers() -> None:
    before = World()
    before.register("p0", prefill())
    world = World()
    world.topology = before.topology
    world.overlay = disappearing.remembered(before.topology, world.now, world.random)
    assert world.view().suspects == set()
    assert [note.kind for note in world.probe("answered")] == ["kept"]
    assert world.view().suspects == {"p0"}
    world.list_again({})
    assert world.view().topology.instances["p0"].ready
    world.list_again(complete("p0", prefill()), revision=2)
    assert world.overlay.suspects == {}


def test_only_the_asked_for_roles_become_suspects() -> None:
    world = World()
    world.register("p0", prefill())
    world.register("d0", instance_record("decode"))
    old = world.topology
    world.lose("p0")
    world.lose("d0")
    overlay, notes = disappearing.observe(
        suspect.Overlay(), old, world.topology, 0, world.random, roles=PREFILLS
    )
    assert (list(overlay.suspects), len(notes)) == (["p0"], 1)


def test_probes_and_suspects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspect, "MAX_SUSPECTS", 5)
    world = World()
    for number in range(9):
        world.register(f"p{number}", prefill())
    for number in range(9):
        world.now += 1
        world.lose(f"p{number}")
    assert set(world.overlay.suspects) == {"p4", "p5", "p6", "p7", "p8"}
    world.now += 1
    assert len(world.due(free=3)) == 3
    assert len(world.due(free=0)) == 0
    assert len(world.due(free=3)) == 2


def test_many_suspects_are_asked_less_often() -> None:
    world = World()
    assert 0.75 <= suspect.next_probe_in_s(1, world.random) <= 1.25
    assert 7.5 <= suspect.next_probe_in_s(1000, world.random) <= 12.5
