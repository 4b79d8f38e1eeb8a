from __future__ import annotations

import pytest

from pdcore.engine.messages import Stats
from pdcore.engine.vitals import STEADY_S, Vitals
from pdcore.topology.keys import RankPosition

pytestmark = pytest.mark.unit

ZERO, ONE = RankPosition(0, 0, 0), RankPosition(0, 0, 1)
LIMIT_S = 20.0


def say(vitals: Vitals, now: float, *ranks: RankPosition, steps: int = 0, running: int = 0) -> None:
    for rank in ranks:
        vitals.heard(rank, Stats(steps=steps, running=running), now)


def test_ranks_that_speak_are_well_and_one_that_falls_silent_is_named() -> None:
    vitals = Vitals(LIMIT_S)
    assert vitals.trouble(1000) is None
    say(vitals, 0, ZERO, ONE)
    for now in range(1, 40):
        say(vitals, now, ZERO)
    assert vitals.trouble(39) == "rank 0.0.1 has said nothing for 39 s"


def test_a_long_step_is_no_trouble_and_a_longer_one_is() -> None:
    vitals = Vitals(LIMIT_S)
    say(vitals, 0, ZERO, steps=5, running=3)
    assert vitals.trouble(LIMIT_S) is None
    assert vitals.trouble(LIMIT_S + 1) is not None


def test_a_loop_that_turns_without_stepping_is_a_trouble_only_while_requests_run() -> None:
    vitals = Vitals(LIMIT_S)
    for now in range(30):
        say(vitals, now, ZERO, steps=5, running=3)
    assert vitals.trouble(29) == "rank 0.0.0 has done no step for 29 s with 3 requests running"
    idle = Vitals(LIMIT_S)
    for now in range(30):
        say(idle, now, ZERO, steps=5)
    assert idle.trouble(29) is None


def test_trouble_is_over_when_nothing_has_been_wrong_for_a_while() -> None:
    vitals = Vitals(LIMIT_S)
    say(vitals, 0, ZERO)
    assert vitals.trouble(25) is not None
    say(vitals, 25, ZERO)
    assert vitals.trouble(25 + STEADY_S / 2) is not None
    assert vitals.trouble(25 + STEADY_S) is None


def test_a_silence_is_noticed_although_nobody_asked_during_it() -> None:
    vitals = Vitals(LIMIT_S)
    say(vitals, 0, ZERO)
    say(vitals, 25, ZERO)
    assert vitals.trouble(25.1) is not None
