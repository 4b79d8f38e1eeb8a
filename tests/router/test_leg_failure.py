"""What a client is told of a leg's failure."""

from __future__ import annotations

import pytest

from pdcore.router.exchange import Failure
from pdcore.router.leg_failure import LegFailure, api_error, failure_in_body

pytestmark = pytest.mark.unit


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
