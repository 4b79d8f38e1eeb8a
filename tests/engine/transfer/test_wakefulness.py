"""How long decode stays awake: until a slot came, a few milliseconds at most, and never much of its time."""

from __future__ import annotations

import pytest

from pdcore.engine.transfer.wakefulness import MOST_S, SAVED_S, SHARE, Wakefulness

pytestmark = pytest.mark.unit


def awake_s(wakefulness: Wakefulness, every_s: float, until_s: float) -> float:
    """Seconds until then, announced ``every_s``, that it was awake for; nothing ever comes."""
    tick, now, heard_at, spent = MOST_S / 100.5, 0.0, 0.0, 0.0
    while now < until_s:
        if now >= heard_at:
            wakefulness.announced(now)
            heard_at += every_s
        spent += tick * wakefulness.is_awake(now)
        now += tick
    return spent


def test_an_announcement_keeps_awake_until_a_slot_came() -> None:
    wakefulness = Wakefulness()
    assert not wakefulness.is_awake(5.0)
    wakefulness.announced(5.0)
    assert wakefulness.is_awake(5.0)
    assert wakefulness.is_awake(5.0 + MOST_S * 0.9)
    wakefulness.over(5.001)
    assert not wakefulness.is_awake(5.001)


def test_nobody_stays_awake_for_long() -> None:
    wakefulness = Wakefulness()
    wakefulness.announced(5.0)
    assert not wakefulness.is_awake(5.0 + MOST_S)


def test_an_announcement_during_a_wakefulness_does_not_prolong_it() -> None:
    wakefulness = Wakefulness()
    wakefulness.announced(5.0)
    wakefulness.announced(5.0 + MOST_S / 2)
    assert not wakefulness.is_awake(5.0 + MOST_S)


@pytest.mark.parametrize("every_s", [0.0005, 0.004, 0.02])
def test_announcements_that_lead_to_nothing_take_a_share_of_the_time_at_most(every_s: float) -> None:
    assert awake_s(Wakefulness(), every_s, 5.0) <= 5.0 * SHARE * 1.01 + SAVED_S + MOST_S


def test_as_many_as_the_share_allows_are_all_heard() -> None:
    assert awake_s(Wakefulness(), 2 * MOST_S / SHARE, 5.0) >= 5.0 * SHARE / 2 * 0.9


def test_without_a_share_nobody_stays_awake() -> None:
    assert awake_s(Wakefulness(0.0), 0.01, 1.0) == 0


def test_a_slot_that_nobody_announced_changes_nothing() -> None:
    wakefulness = Wakefulness()
    wakefulness.over(1.0)
    wakefulness.announced(2.0)
    assert wakefulness.is_awake(2.0)
