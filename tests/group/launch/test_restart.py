from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.group.launch.restart import LASTING_S, LONGEST_DELAY_S, GiveUp, Restart, decide

pytestmark = pytest.mark.unit


def delays(runs: int, *, status: int = 1, lived_s: float = 0.1) -> list[float]:
    waited, failures = [], 0
    for _ in range(runs):
        verdict = decide(status, lived_s=lived_s, failures=failures)
        assert isinstance(verdict, Restart)
        waited.append(verdict.delay_s)
        failures = verdict.failures
    return waited


def test_a_member_that_keeps_dying_is_restarted_ever_more_slowly() -> None:
    assert delays(9) == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_clean_exit_nobody_asked_for_is_restarted_all_the_same() -> None:
    assert delays(2, status=0) == [0, 1]


def test_a_run_that_lasted_starts_the_count_again() -> None:
    assert decide(-9, lived_s=LASTING_S, failures=6) == Restart(0.0, 1)
    assert decide(-9, lived_s=LASTING_S - 0.1, failures=6) == Restart(30.0, 7)


@pytest.mark.parametrize("lived_s", [0.0, 10 * LASTING_S])
def test_what_cannot_work_is_not_started_again(lived_s: float) -> None:
    assert decide(2, lived_s=lived_s, failures=0) == GiveUp(2)


@given(st.integers(-64, 255).filter(lambda status: status != 2), st.floats(0, 1e6), st.integers(0, 10_000))
def test_delays_stay_within_their_bounds(status: int, lived_s: float, failures: int) -> None:
    verdict = decide(status, lived_s=lived_s, failures=failures)
    assert isinstance(verdict, Restart)
    assert 0 <= verdict.delay_s <= LONGEST_DELAY_S
    assert 1 <= verdict.failures <= failures + 1
