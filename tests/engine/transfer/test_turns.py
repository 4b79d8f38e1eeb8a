"""Whose turn it is: peers alternate, and none of them ever holds all threads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.transfer.turns import SLOW_S, Turns

pytestmark = pytest.mark.unit


def filled(threads: int, *peers: str, jobs: int = 5) -> Turns[str, str]:
    turns: Turns[str, str] = Turns(threads)
    for number in range(jobs):
        for peer in peers:
            turns.put(peer, f"{peer}{number}")
    return turns


def test_peers_take_turns_and_each_keeps_its_order() -> None:
    turns = filled(1, "a", "b", jobs=2)
    taken = []
    for now in range(4):
        job = turns.take(float(now))
        assert job is not None
        taken.append(job)
        turns.done(job[0], float(now), in_doubt=False)
    assert taken == ["a0", "b0", "a1", "b1"]
    assert (len(turns), turns.busy, turns.take(9.0)) == (0, 0, None)


def test_a_peer_alone_never_gets_the_last_thread() -> None:
    turns = filled(4, "a", jobs=9)
    assert [turns.take(0.0) for _ in range(4)] == ["a0", "a1", "a2", None]
    turns.put("b", "b0")
    assert turns.take(0.0) == "b0"


def test_a_peer_whose_write_stands_still_gets_no_second_thread() -> None:
    turns = filled(4, "a")
    assert turns.take(0.0) == "a0"
    assert turns.take(SLOW_S + 0.1) is None
    turns.done("a", 0.0, in_doubt=False)
    assert turns.take(SLOW_S + 0.2) == "a1"


def test_a_peer_that_ran_into_doubt_may_not_take_the_last_thread_until_a_write_of_it_ends_well() -> None:
    turns = filled(2, "a", "b")
    assert turns.take(0.0) == "a0"
    turns.done("a", 0.0, in_doubt=True)
    assert turns.take(1.0) == "b0"
    assert turns.take(1.0) is None  # a is doubted, b is busy
    turns.done("b", 1.0, in_doubt=False)
    assert turns.take(2.0) == "a1"
    turns.done("a", 2.0, in_doubt=False)
    assert (turns.take(3.0), turns.take(3.0)) == ("b1", "a2")


def test_the_only_thread_serves_everybody() -> None:
    turns = filled(1, "a", jobs=2)
    assert turns.take(0.0) == "a0"
    turns.done("a", 0.0, in_doubt=True)
    assert turns.take(1.0) == "a1"


def test_what_waits_can_be_taken_back_and_what_runs_cannot() -> None:
    turns = filled(2, "a", jobs=2)
    assert turns.take(0.0) == "a0"
    assert (turns.withdraw("a", "a0"), turns.withdraw("a", "a1"), turns.withdraw("b", "b0")) == (
        False,
        True,
        False,
    )
    assert len(turns) == 0


@given(st.integers(2, 5), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40))
def test_whoever_stands_still_a_newcomer_is_served_while_a_thread_has_ever_been_freed(
    threads: int, arrivals: list[str]
) -> None:
    """One stuck peer: whatever arrives of others is all done in the end."""
    turns: Turns[str, int] = Turns(threads)
    turns.put("stuck", -1)
    assert turns.take(0.0) == -1
    for number, peer in enumerate(arrivals):
        turns.put("stuck", -2)
        turns.put(peer, number)
    done, now = set(), 1.0
    while (job := turns.take(now)) is not None:
        assert job >= 0, "the stuck peer got a second thread"
        done.add(job)
        turns.done(arrivals[job], now, in_doubt=False)
        now += 0.01
    assert done == set(range(len(arrivals)))
