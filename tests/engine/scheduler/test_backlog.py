from __future__ import annotations

import random

import pytest

from pdcore.engine.scheduler.backlog import Backlog

pytestmark = pytest.mark.unit

A, B, C = ("a", "1"), ("b", "1"), ("a", "2")


def backlog() -> Backlog:
    return Backlog((16, 8), peer_share=0.25, total_share=0.5)


def test_a_peer_has_its_share_and_another_incarnation_is_another_peer() -> None:
    b = backlog()
    b.add(A, (3, 1))
    assert b.peer_has_room(A, (1, 1))
    assert not b.peer_has_room(A, (2, 1))
    assert not b.peer_has_room(A, (1, 2)), "in every group"
    assert b.peer_has_room(C, (4, 2))


def test_all_peers_together_have_theirs() -> None:
    b = backlog()
    b.add(A, (4, 2))
    b.add(B, (3, 1))
    assert b.has_room((1, 1))
    assert not b.has_room((2, 1))
    assert b.has_room((2, 1), stuck=(4, 2)), "were only the stuck left"


def test_who_waits_for_nothing_may_have_one_however_large() -> None:
    b = backlog()
    assert b.peer_has_room(A, (16, 8))
    assert b.has_room((16, 8))
    b.add(A, (16, 8))
    assert b.peer_has_room(B, (1, 1))
    assert not b.has_room((1, 1))


def test_what_is_added_and_removed_leaves_nothing() -> None:
    b, dice = backlog(), random.Random(3)
    held: list[tuple[tuple[str, str], tuple[int, int]]] = []
    for _ in range(1000):
        if held and dice.random() < 0.5:
            b.remove(*held.pop(dice.randrange(len(held))))
        else:
            held.append((dice.choice([A, B, C]), (dice.randint(0, 3), dice.randint(0, 3))))
            b.add(*held[-1])
        assert b.of(A) == tuple(sum(counts[g] for peer, counts in held if peer == A) for g in (0, 1))
    for entry in held:
        b.remove(*entry)
    assert b.peer_has_room(A, (16, 8))
    assert b.has_room((16, 8))
