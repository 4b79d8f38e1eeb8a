"""Classes of evidence, the trial, the pauses, and that nothing is left behind."""

from __future__ import annotations

from typing import Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.breaker import (
    CALM_S,
    CLASSES,
    FEWEST,
    LONGEST_PAUSE_S,
    PAUSE_S,
    Breaker,
    Breakers,
)
from pdcore.router.exchange import FAILURES, Failure
from pdcore.router.window import WINDOW_S

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

P, D = ("p", "i1"), ("d", "i1")
T0 = 1000.0


def failing(times: int, now: float = T0) -> Breaker:
    """A breaker after so many soft failures at once."""
    breaker = Breaker()
    for _ in range(times):
        breaker.bad("soft", now)
    return breaker


def test_every_failure_has_a_class() -> None:
    assert set(CLASSES) == set(FAILURES)


@pytest.mark.parametrize("event", ["unreachable", "connect_expired"])
def test_a_connection_that_fails_opens_it_at_once_and_a_sign_of_life_closes_it(event: Failure) -> None:
    breakers = Breakers()
    breakers.bad(P, event, T0)
    assert "takes no connections" in breakers.out(T0)[P]
    breakers.alive(P)
    assert not breakers.out(T0)


@pytest.mark.parametrize("event", ["refused", "not_now", "client_fault", "expired", "deadline"])
def test_not_now_not_me_your_fault_and_budgets_are_no_evidence(event: Failure) -> None:
    breakers = Breakers()
    for _ in range(1000):
        breakers.bad(P, event, T0)
    assert not breakers.open_now


@pytest.mark.parametrize("event", ["failed", "broken", "garbage", "frozen"])
def test_soft_failures_open_it_by_their_share(event: Failure) -> None:
    breakers = Breakers()
    for _ in range(FEWEST - 1):
        breakers.bad(P, event, T0)
    assert not breakers.out(T0), "too few to mean anything"
    breakers.bad(P, event, T0)
    assert breakers.out(T0) == {
        P: f"its breaker is open: {FEWEST} of its last {FEWEST} answers were failures"
    }


def test_good_answers_outweigh_failures() -> None:
    breaker = Breaker()
    for _ in range(20):
        breaker.good(T0)
    for _ in range(19):
        breaker.bad("soft", T0)
    assert breaker.opened is None
    breaker.bad("soft", T0)
    assert breaker.opened is not None


def test_what_is_older_than_the_window_does_not_count() -> None:
    breaker = failing(FEWEST - 1)
    breaker.bad("soft", T0 + WINDOW_S)
    assert breaker.opened is None


def test_a_sign_of_life_says_nothing_against_answers_that_fail() -> None:
    breaker = failing(FEWEST)
    breaker.alive()
    assert breaker.is_out(T0)


def test_one_request_at_a_time_is_the_trial_and_its_answer_closes_it() -> None:
    breaker = failing(FEWEST)
    assert breaker.is_out(T0 + PAUSE_S - 0.01)
    later = T0 + PAUSE_S
    assert not breaker.is_out(later)
    breaker.taken(later)
    assert breaker.is_out(later), "the next one waits"
    assert not breaker.is_out(later + PAUSE_S), "but not for ever, should the trial never end"
    breaker.good(later + 0.1)
    assert breaker.opened is None
    breaker.bad("soft", later + 0.2)
    assert breaker.opened is None, "it begins anew"


def test_an_answer_from_before_the_trial_closes_nothing() -> None:
    breaker = failing(FEWEST)
    breaker.good(T0 + 0.1)
    assert breaker.is_out(T0 + 0.1)


def test_a_trial_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    breaker, now, pauses = failing(FEWEST), T0, []
    for _ in range(8):
        opened = breaker.opened
        assert opened is not None
        pauses.append(opened.pause_s)
        now = opened.trial_at
        breaker.taken(now)
        breaker.bad("soft", now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_failures_of_the_time_that_opened_it_do_not_lengthen_the_pause() -> None:
    breaker = failing(500)
    assert breaker.opened is not None
    assert breaker.opened.pause_s == PAUSE_S


def test_who_opens_again_soon_waits_longer_and_after_a_calm_time_as_at_first() -> None:
    breaker = failing(FEWEST)
    breaker.good(T0 + PAUSE_S)
    again = T0 + 2 * PAUSE_S
    breaker.bad("at_once", again)
    assert breaker.opened is not None
    assert breaker.opened.pause_s == 2 * PAUSE_S
    breaker.alive()
    breaker.bad("at_once", again + CALM_S)
    assert breaker.opened.pause_s == PAUSE_S


def test_who_opens_and_who_closes_is_told_once() -> None:
    told = list[tuple[str, bool]]()
    breakers = Breakers(lambda key, why: told.append((key[0], why is not None)))
    for _ in range(3):
        breakers.bad(P, "unreachable", T0)
    breakers.good(P, T0 + 1)
    breakers.good(P, T0 + 2)
    assert told == [("p", True), ("p", False)]


def test_another_incarnation_begins_with_a_clean_slate_and_the_old_one_is_forgotten() -> None:
    breakers = Breakers()
    breakers.bad(P, "unreachable", T0)
    breakers.bad(D, "unreachable", T0)
    assert ("p", "i2") not in breakers.out(T0)
    breakers.forget(lambda key: key == D)
    assert list(breakers.out(T0)) == [D]
    assert breakers.open_now == 1


Deed = Literal["good", "soft", "at_once", "alive", "taken", "wait"]


@few
@given(st.lists(st.tuples(st.sampled_from(get_args(Deed)), st.floats(0, 40)), max_size=60))
def test_whatever_happens_every_instance_gets_a_trial_in_time_and_a_good_one_closes_it(
    deeds: list[tuple[Deed, float]],
) -> None:
    breakers, now = Breakers(), T0
    for deed, pause_s in deeds:
        now += pause_s
        match deed:
            case "good":
                breakers.good(P, now)
            case "soft" | "at_once":
                breakers.blame(P, deed, now)
            case "alive":
                breakers.alive(P)
            case "taken":
                breakers.taken(P, now)
        assert (P in breakers.out(now)) <= bool(breakers.open_now)
    now += LONGEST_PAUSE_S
    assert P not in breakers.out(now)
    breakers.good(P, now)
    assert not breakers.open_now
