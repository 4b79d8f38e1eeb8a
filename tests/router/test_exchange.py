"""The contract table of one attempt, in full."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from pdcore.router.exchange import FAILURES, Failure, Leg, Phase, Progress, decide, event_of_status

pytestmark = pytest.mark.unit

LEGS: tuple[Leg, ...] = get_args(Leg)
RETRIED: dict[Failure, str] = {
    "refused": "retry_fresh",
    "not_now": "retry_elsewhere",
    "unreachable": "retry_elsewhere",
    "failed": "retry_if_died",
    "broken": "retry_if_died",
    "frozen": "retry_if_died",
}
NOTHING_YET = Phase()
UNMARKED_SENDING = Phase(sending=True)
RECEIVED = Phase(kv_received=True)
RECEIVED_SENDING = Phase(kv_received=True, sending=True)


@pytest.mark.parametrize(("leg", "event"), list(product(LEGS, FAILURES)))
def test_before_anything_arrived_the_first_failure_decides_and_what_was_not_executed_is_retried(
    leg: Leg, event: Failure
) -> None:
    assert decide(NOTHING_YET, leg, event) == RETRIED.get(event, "answer")


@pytest.mark.parametrize("event", FAILURES)
def test_once_the_kv_arrived_a_prefill_failure_changes_nothing(event: Failure) -> None:
    assert decide(RECEIVED, "prefill", event) == "ignore"
    assert decide(RECEIVED_SENDING, "prefill", event) == "ignore"


@pytest.mark.parametrize(("phase", "event"), list(product((RECEIVED_SENDING, UNMARKED_SENDING), FAILURES)))
def test_after_the_first_byte_a_decode_failure_is_never_retried(phase: Phase, event: Failure) -> None:
    assert decide(phase, "decode", event) == "answer"


@pytest.mark.parametrize("event", FAILURES)
def test_once_the_kv_arrived_only_the_death_of_the_instance_is_a_reason_to_try_again(event: Failure) -> None:
    after_a_death = RETRIED.get(event) == "retry_if_died"
    assert decide(RECEIVED, "decode", event) == ("retry_if_died" if after_a_death else "answer")


@pytest.mark.parametrize("event", FAILURES)
def test_without_the_mark_a_prefill_failure_still_decides_after_the_first_byte(event: Failure) -> None:
    assert decide(UNMARKED_SENDING, "prefill", event) == "answer"


@pytest.mark.parametrize(
    ("phase", "event"), list(product((NOTHING_YET, RECEIVED_SENDING), get_args(Progress)))
)
def test_only_a_complete_answer_finishes(phase: Phase, event: Progress) -> None:
    assert decide(phase, "decode", event) == ("finish" if event == "complete" else "wait")


def test_the_phase_only_moves_forward() -> None:
    phase = Phase()
    for event in ("accepted", "head", *FAILURES):
        assert phase.after(event) == phase  # type: ignore[arg-type]
    phase = phase.after("kv_received").after("first_byte")
    assert phase == RECEIVED_SENDING
    assert phase.after("head") == phase


@pytest.mark.parametrize(
    ("status", "event"),
    [
        *(
            (200, None),
            (204, None),
            (301, "failed"),
            (307, "failed"),
            (400, "client_fault"),
            (401, "client_fault"),
        ),
        *((404, "client_fault"), (408, "client_fault"), (413, "client_fault"), (421, "refused")),
        *((422, "client_fault"), (429, "not_now"), (500, "failed"), (502, "failed"), (503, "not_now")),
        *((504, "expired"), (100, "failed"), (599, "failed")),
    ],
)
def test_each_status_is_one_event(status: int, event: Failure | None) -> None:
    assert event_of_status(status) == event
