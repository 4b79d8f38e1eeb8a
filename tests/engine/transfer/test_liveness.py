"""Beats while a request waits, probes while none does, and what a silent peer is."""

from __future__ import annotations

import math

import pytest

from pdcore.engine.transfer.liveness import BEAT_S, PROBE_EVERY_S, PROBE_WAIT_S, Liveness

pytestmark = pytest.mark.unit


def waiting(now: float = 100.0) -> Liveness:
    life = Liveness(silence_s=20.0)
    life.waits(now, True)
    return life


def test_a_peer_is_asked_once_a_second_while_a_request_waits_and_never_else() -> None:
    life = waiting()
    asked = []
    for tenth in range(100):
        now = 100.0 + tenth / 10
        asked += [due for due in life.todo(now, welcomed=True) if due == "beat"]
        life.answered()
    assert len(asked) == 10
    assert life.next_wake(welcomed=True) <= 110.0 + BEAT_S
    life.waits(110.0, False)
    assert life.todo(110.5, welcomed=True) == []


def test_an_answer_ends_the_question() -> None:
    life = waiting()
    life.asked(100.0)
    life.asked(110.0)
    assert life.next_wake(welcomed=False) == 120.0
    life.answered()
    life.asked(119.0)
    assert "silent" not in life.todo(138.9, welcomed=True)
    assert "silent" in life.todo(139.0, welcomed=True)
    assert life.down == "it said nothing for 20 s"
    life.answered()
    assert life.down == ""


def test_a_request_that_meets_a_silent_peer_fails_at_once_and_one_that_meets_an_old_question_does_not() -> (
    None
):
    life = waiting()
    life.asked(100.0)
    life.waits(101.0, False)
    life.waits(500.0, True)
    assert life.todo(500.0, welcomed=False) == []
    life.asked(500.0)
    assert life.todo(520.0, welcomed=False) == ["silent"]
    life.waits(521.0, False)
    life.waits(522.0, True)
    assert life.todo(522.0, welcomed=False) == ["silent"]


def test_an_idle_pair_is_probed_at_most_every_five_seconds() -> None:
    life = waiting()
    life.waits(100.0, False)
    assert life.next_wake(welcomed=True) == 100.0 + PROBE_EVERY_S
    probes, now = 0, 100.0
    while now < 160.0:
        if life.todo(now, welcomed=True) == ["probe"]:
            probes += 1
            life.probing(probes, now)
            life.probe_ended(now + 0.01)
        now += 0.1
    assert 11 <= probes <= 12
    assert life.down == ""


def test_a_probe_that_is_not_seen_in_time_takes_the_peer_down_until_one_is() -> None:
    life = waiting()
    life.waits(100.0, False)
    life.probing(7, 105.0)
    assert life.todo(105.0 + PROBE_WAIT_S - 0.1, welcomed=True) == []
    assert life.todo(105.0 + PROBE_WAIT_S, welcomed=True) == ["unseen"]
    life.probe_ended(110.0, "its probe was not seen in time")
    assert life.down == "its probe was not seen in time"
    assert life.todo(115.0, welcomed=True) == ["probe"]
    life.probing(8, 115.0)
    life.probe_ended(115.1)
    assert life.down == ""


def test_a_delivery_proves_the_path_as_well() -> None:
    life = waiting()
    life.probe_ended(100.0, "refused")
    life.proven()
    assert life.down == ""


def test_a_peer_that_was_never_welcomed_is_not_probed() -> None:
    life = Liveness(silence_s=20.0)
    assert life.todo(1e6, welcomed=False) == []
    assert life.next_wake(welcomed=False) == math.inf
