from __future__ import annotations

from typing import get_args

import pytest

from pdcore.errors import ApiError, ErrorCode, error_code

pytestmark = pytest.mark.unit


def test_every_code_has_a_status_and_a_type_and_is_known_by_name() -> None:
    for code in get_args(ErrorCode):
        error = ApiError(code, "m")
        assert 400 <= error.status < 600
        assert error_code(code) == code
        body = error.body("r1")["error"]
        assert isinstance(body, dict)
        assert (body["code"], body["request_id"]) == (code, "r1")
        assert str(body["type"]).endswith("_error")
    assert error_code("made up") is None


@pytest.mark.parametrize(
    ("code", "status", "retry_after"),
    [
        ("abort_oom", 502, None),
        ("preempted_oom", 503, "1"),
        ("peer_backlog", 503, "1"),
        ("context_length_exceeded", 400, None),
    ],
)
def test_running_out_of_kv_memory_says_whether_to_try_again(
    code: ErrorCode, status: int, retry_after: str | None
) -> None:
    error = ApiError(code, "m")
    assert (error.status, error.headers().get("retry-after")) == (status, retry_after)


def test_what_the_caller_says_about_trying_again_counts() -> None:
    assert ApiError("peer_backlog", "m", retry_after_s=7).headers() == {"retry-after": "7"}
