"""What is to stand and what has yet to be written: whatever fails in between, the store ends up as wanted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import StoreRefused
from pdcore.registry.rooms.table import LINGER_S, Batch, RoomTable

pytestmark = pytest.mark.unit


def test_rooms_are_written_in_order_and_in_bounded_batches() -> None:
    table = RoomTable()
    table.put({3: 0, 1: 1, 2: 2}, 0.0)
    assert table.batch(0.0, 2) == Batch(puts={3: 0, 1: 1})
    assert not table.is_written(3)
    assert table.written() == (3, 1)
    assert (table.is_written(3), table.is_written(2)) == (True, False)
    assert table.batch(0.0, 2) == Batch(puts={2: 2})


def test_a_release_is_written_only_after_a_while() -> None:
    table = RoomTable()
    table.put({3: 0}, 0.0)
    table.batch(0.0, 10)
    table.written()
    assert table.release([3, 4], 1.0) == (3,)
    assert (len(table), table.doomed) == (0, 1)
    assert not len(table.batch(1.0 + LINGER_S - 0.1, 10))
    table.written()
    assert table.next_at(1.0) == 1.0 + LINGER_S
    assert table.batch(1.0 + LINGER_S, 10) == Batch(deletes=(3,))
    table.written()
    assert (table.standing, table.next_at(50.0)) == ((), float("inf"))


def test_a_room_that_was_never_written_leaves_without_a_word() -> None:
    table = RoomTable()
    table.put({3: 0}, 0.0)
    table.release([3], 0.0)
    assert (len(table.batch(99.0, 10)), table.doomed) == (0, 0)


def test_a_room_released_while_it_is_written_goes_later() -> None:
    table = RoomTable()
    table.put({3: 0}, 0.0)
    table.batch(0.0, 10)
    table.release([3], 0.0)
    assert table.written() == ()
    assert table.batch(LINGER_S, 10) == Batch(deletes=(3,))


def test_a_failed_batch_is_due_again() -> None:
    table = RoomTable()
    table.put({3: 0}, 0.0)
    table.batch(0.0, 10)
    table.failed(1.0)
    assert (table.unwritten, table.next_at(1.0)) == (1, 1.0)
    assert table.batch(1.0, 10) == Batch(puts={3: 0})


def test_the_newest_rank_of_a_room_counts() -> None:
    table = RoomTable()
    table.put({3: 0}, 0.0)
    table.batch(0.0, 10)
    table.put({3: 1}, 0.0)
    assert table.written() == ()
    assert (table.get(3), table.batch(0.0, 10)) == (1, Batch(puts={3: 1}))


def test_a_room_put_again_is_not_deleted() -> None:
    table = RoomTable()
    table.put({3: 0}, 0.0)
    table.batch(0.0, 10)
    table.written()
    table.release([3], 0.0)
    table.put({3: 1}, 1.0)
    assert table.batch(LINGER_S, 10) == Batch(puts={3: 1})


def test_too_many_rooms_are_refused_all_together() -> None:
    table = RoomTable(most=2)
    table.put({1: 0}, 0.0)
    with pytest.raises(StoreRefused, match="more than 2 rooms"):
        table.put({2: 0, 3: 0}, 0.0)
    assert len(table) == 1
    table.put({1: 1, 2: 0}, 0.0)


def test_a_life_can_be_bounded() -> None:
    table = RoomTable(lives_s=60)
    table.put({1: 0, 2: 0}, 0.0)
    table.put({1: 0}, 30.0)
    assert (table.ended(59.9), table.ended(60.0), table.ended(90.0)) == ((), (2,), (2, 1))


def test_what_expires_by_itself_is_written_again_in_time() -> None:
    table = RoomTable(refresh_s=20)
    table.put({1: 0}, 0.0)
    table.batch(0.0, 10)
    table.written()
    assert table.next_at(1.0) == 20.0
    assert not len(table.batch(19.9, 10))
    table.written()
    assert table.batch(20.0, 10) == Batch(puts={1: 0})
    table.written()
    assert table.next_at(21.0) == 40.0


def test_what_vanished_is_written_again_while_it_lives() -> None:
    table = RoomTable()
    table.put({1: 0, 2: 0}, 0.0)
    table.batch(0.0, 10)
    table.written()
    table.release([2], 0.0)
    table.gone([1, 2])
    assert table.batch(LINGER_S, 10) == Batch(puts={1: 0})


ROOMS = st.integers(1, 5)
STEPS = st.one_of(
    st.tuples(st.just("put"), ROOMS),
    st.tuples(st.just("release"), ROOMS),
    st.tuples(st.just("gone"), ROOMS),
    st.tuples(st.sampled_from(["written", "lost", "doubt"]), ROOMS),
    st.tuples(st.just("later"), ROOMS),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=80), st.sampled_from([float("inf"), 20.0]))
def test_the_store_ends_up_as_wanted(steps: list[tuple[str, int]], refresh_s: float) -> None:
    table, store, wanted, now = RoomTable(refresh_s=refresh_s), dict[int, int](), dict[int, int](), 0.0

    def write(batch: Batch) -> None:
        store.update(batch.puts)
        for room in batch.deletes:
            store.pop(room, None)

    for count, (step, number) in enumerate(steps):
        if step == "put":
            table.put({number: count}, now)
            wanted[number] = count
        elif step == "release":
            table.release([number], now)
            wanted.pop(number, None)
        elif step == "gone":
            store.pop(number, None)
            table.gone([number])
        elif step == "later":
            now += number * 3.0
        else:
            batch = table.batch(now, number)
            if step != "lost":
                write(batch)
            if step == "written":
                assert all(wanted[room] == store[room] for room in table.written())
            else:
                table.failed(now)
        assert {room: table.get(room) for room in wanted} == wanted
        assert store.keys() <= set(table.standing)
    for _ in range(3):
        while len(batch := table.batch(now, 2)):
            write(batch)
            table.written()
        now += LINGER_S
    assert store == wanted
    assert set(table.standing) == wanted.keys()
