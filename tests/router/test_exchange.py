"""The contract table of one attempt, in full."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from pdcore.router.exchange import (
    FAILURES,
    Failure,
    Leg,
    LegFailure,
    Phase,
    Progress,
    api_error,
    decide,
    event_of_status,
    failure_in_body,
)

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


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (LegFailure("prefill", "failed", "x", status=500), 502, "prefill_failed"),
        (LegFailure("decode", "broken", "x"), 502, "decode_failed"),
        (LegFailure("decode", "garbage", "x"), 502, "decode_failed"),
        (LegFailure("decode", "failed", "x", engine_error={"code": "prefill_failed"}), 502, "prefill_failed"),
        (LegFailure("decode", "failed", "x", engine_error={"code": "made up"}), 502, "decode_failed"),
        (LegFailure("decode", "failed", "x", engine_error={"code": "abort_oom"}), 502, "abort_oom"),
        (LegFailure("decode", "not_now", "x", engine_error={"code": "preempted_oom"}), 503, "preempted_oom"),
        (LegFailure("decode", "deadline", "x"), 504, "deadline_exceeded"),
        (LegFailure("prefill", "expired", "x", status=504), 504, "deadline_exceeded"),
        (LegFailure("decode", "unreachable", "x"), 503, "backend_unavailable"),
        (LegFailure("decode", "connect_expired", "x"), 503, "backend_unavailable"),
        (LegFailure("decode", "refused", "x", status=421), 503, "backend_unavailable"),
        (LegFailure("decode", "not_now", "x", status=503), 503, "backend_unavailable"),
        (LegFailure("decode", "not_now", "x", status=429), 429, "rate_limited"),
        (LegFailure("decode", "client_fault", "x", status=422), 400, "invalid_request"),
    ],
)
def test_each_failure_has_its_public_error(failure: LegFailure, status: int, code: str) -> None:
    error = api_error(failure)
    assert (error.status, error.code) == (status, code)
    assert error.detail is not None
    assert error.detail["leg"] == failure.leg


def test_the_engines_message_and_field_are_kept_and_the_leg_is_named() -> None:
    said = {"message": "too warm", "param": "prompt", "code": 7}
    error = api_error(LegFailure("prefill", "failed", "x", status=500, engine_error=said))
    assert error.message == "prefill: too warm"
    assert error.param == "prompt"
    assert error.detail == {"leg": "prefill", "status": 500, "message": "too warm"}


def test_an_odd_engine_error_is_survived() -> None:
    error = api_error(
        LegFailure("decode", "failed", "x", engine_error={"message": 5, "param": [], "code": []})
    )
    assert (error.message, error.param) == ("decode: x", None)


def test_retry_after_is_the_engines_or_one_second() -> None:
    assert api_error(LegFailure("decode", "not_now", "x", status=429, retry_after_s=7)).retry_after_s == 7
    assert api_error(LegFailure("decode", "unreachable", "x")).retry_after_s == 1
    assert api_error(LegFailure("decode", "broken", "x")).retry_after_s is None


@pytest.mark.parametrize(
    ("code", "event"),
    [
        *(("decode_failed", "failed"), ("deadline_exceeded", "expired"), ("invalid_request", "client_fault")),
        *(("abort_oom", "failed"), ("preempted_oom", "not_now")),
        *(("peer_backlog", "not_now"), ("nonsense", "failed"), (None, "failed")),
    ],
)
def test_an_error_in_the_body_is_the_event_of_its_code(code: str | None, event: Failure) -> None:
    assert failure_in_body("decode", {"code": code, "message": "m"}).event == event


def test_a_decodes_backlog_is_blamed_on_the_prefill() -> None:
    assert LegFailure("decode", "not_now", "x", engine_error={"code": "peer_backlog"}).blamed == "prefill"
    assert LegFailure("decode", "not_now", "x").blamed == "decode"
