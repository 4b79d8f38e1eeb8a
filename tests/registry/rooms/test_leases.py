"""Which rooms hang on which lease: rolled by count and age, renewed while needed, let go when not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.registry.rooms.leases import OPEN_S, ROOMS_PER_LEASE, RoomLeases
from pdcore.registry.store import LeaseId

pytestmark = pytest.mark.unit

TTL_S = 30
ONE, TWO = LeaseId(1), LeaseId(2)


def leases() -> RoomLeases:
    some = RoomLeases(TTL_S)
    assert some.open_for(1, 0.0) is None
    some.granted(ONE, 0.0)
    return some


def test_a_lease_takes_rooms_until_it_is_full() -> None:
    some = leases()
    some.hang(ONE, range(1, ROOMS_PER_LEASE))
    assert some.open_for(1, 1.0) == ONE
    assert some.open_for(2, 1.0) is None
    assert some.open_for(1, 1.0) is None  # it was closed by then


def test_a_released_room_leaves_no_place_behind() -> None:
    some = leases()
    for room in range(1, ROOMS_PER_LEASE + 1):
        some.hang(ONE, [room])
        some.deleted(room)
    assert some.open_for(1, 1.0) is None


def test_a_lease_takes_rooms_for_so_long() -> None:
    some = leases()
    some.hang(ONE, [7])
    some.renewed(ONE, 29.0, TTL_S)
    assert some.open_for(1, OPEN_S - 0.1) == ONE
    assert some.open_for(1, OPEN_S) is None


def test_a_lease_that_may_have_ended_takes_no_room() -> None:
    some = RoomLeases(5)
    some.granted(ONE, 0.0)
    assert some.open_for(1, 4.9) == ONE
    assert some.open_for(1, 5.0) is None


def test_it_is_renewed_while_a_room_is_live_and_let_go_with_the_last() -> None:
    some = leases()
    some.hang(ONE, [7, 8])
    assert (some.due(9.9), some.due(10.0), some.idle(10.0)) == ((), (ONE,), ())
    some.renewed(ONE, 10.0, TTL_S)
    assert (some.due(19.9), some.next_at()) == ((), 20.0)
    some.released(7)
    some.open_for(ROOMS_PER_LEASE, 11.0)  # another one takes the next rooms
    some.released(8)
    assert (some.due(99.0), some.idle(11.0)) == ((), (ONE,))
    assert set(some.forget(ONE)) == {7, 8}
    assert (some.all, some.next_at()) == ((), float("inf"))


def test_an_open_lease_without_rooms_is_let_go_rather_than_renewed() -> None:
    some = leases()
    assert (some.idle(9.9), some.idle(10.0), some.due(10.0)) == ((), (ONE,), ())


def test_a_room_written_again_moves_to_the_newest_lease() -> None:
    some = leases()
    some.hang(ONE, [7])
    some.granted(TWO, 1.0)
    some.hang(TWO, [7])
    assert (some.forget(ONE), some.forget(TWO)) == ((), (7,))


def test_what_is_not_known_is_no_error() -> None:
    some = leases()
    some.released(9)
    some.deleted(9)
    assert some.forget(TWO) == ()


@dataclass
class Model:
    """The same, naively: where each room hangs and whether it is live."""

    rooms: dict[int, tuple[LeaseId, bool]] = field(default_factory=dict)

    def of(self, lease: LeaseId, *, live_only: bool) -> set[int]:
        return {room for room, (at, live) in self.rooms.items() if at == lease and (live or not live_only)}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("hrdflw"), st.integers(1, 6)), max_size=60))
def test_it_agrees_with_a_naive_model(steps: list[tuple[str, int]]) -> None:
    some, model, now, next_lease = RoomLeases(TTL_S), Model(), 0.0, 1
    for step, number in steps:
        if step == "h":
            lease = some.open_for(1, now)
            if lease is None:
                lease, next_lease = LeaseId(next_lease), next_lease + 1
                some.granted(lease, now)
            some.hang(lease, [number])
            model.rooms[number] = (lease, True)
        elif step == "r":
            some.released(number)
            if number in model.rooms:
                model.rooms[number] = (model.rooms[number][0], False)
        elif step == "d":
            some.deleted(number)
            model.rooms.pop(number, None)
        elif step == "f":
            for lease in some.idle(now):
                assert not model.of(lease, live_only=True)
                gone = set(some.forget(lease))
                assert gone == model.of(lease, live_only=False)
                model.rooms = {room: at for room, at in model.rooms.items() if room not in gone}
        elif step == "l" and some.all:
            lease = some.all[number % len(some.all)]
            gone = set(some.forget(lease))
            assert gone == model.of(lease, live_only=False)
            model.rooms = {room: at for room, at in model.rooms.items() if room not in gone}
        else:
            now += 4.0 * number
            for lease in some.due(now):
                assert model.of(lease, live_only=True)
                some.renewed(lease, now, TTL_S)
        assert {room for lease in some.all for room in model.of(lease, live_only=False)} == model.rooms.keys()
