"""One leg's failure, and what a client is told of it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from pdcore.errors import ApiError, ErrorCode, PdcoreError, error_code
from pdcore.router.exchange import Failure, Leg, event_of_status

_KEPT: Final[frozenset[ErrorCode]] = frozenset(
    {"prefill_failed", "decode_failed", "abort_oom", "preempted_oom"}
)
"""Engine codes that a client meets as they are."""

_NOT_EXECUTED: Final = frozenset({"refused", "not_now", "unreachable", "connect_expired"})


class RawAnswer(Struct, frozen=True):
    """An engine's own answer, passed on as it is."""

    status: int
    content_type: str
    body: bytes


class LegFailure(PdcoreError):
    """One leg's failure: an event of the table and what is needed to tell the client and to choose again.

    ``status`` and ``engine_error`` are what the engine said, ``raw`` its whole answer when it may pass through.
    """

    def __init__(
        self,
        leg: Leg,
        event: Failure,
        message: str,
        *,
        status: int | None = None,
        engine_error: dict[str, object] | None = None,
        raw: RawAnswer | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(f"{leg}: {message}")
        self.leg: Leg = leg
        self.event: Failure = event
        self.message = message
        self.status = status
        self.engine_error = engine_error or {}
        self.raw = raw
        self.retry_after_s = retry_after_s

    @property
    def engine_code(self) -> ErrorCode | None:
        """The engine's own error code, if it is one of ours."""
        return error_code(self.engine_error.get("code"))

    @property
    def blamed(self) -> Leg:
        """The leg whose instance the next attempt avoids: decode's backlog is about the prefill's writes."""
        return "prefill" if self.engine_code == "peer_backlog" else self.leg

    @property
    def maybe_died(self) -> Leg | None:
        """The leg whose instance may be dead, for which this failure would be the sign; None when it is no such sign.

        An engine's plain 500 is not. A leader that lost a rank says which side failed before it ends, and a decode
        says so of its prefill.
        """
        if self.event in ("broken", "frozen"):
            return self.leg
        if self.event != "failed" or self.engine_code not in ("prefill_failed", "decode_failed"):
            return None
        return "prefill" if self.engine_code == "prefill_failed" else "decode"

    @property
    def blames_the_kv_path(self) -> bool:
        """Decode says that the KV did not come, or not all of it."""
        return self.leg == "decode" and self.engine_code == "prefill_failed"


def api_error(failure: LegFailure) -> ApiError:
    """The public error of a failure that no further attempt can heal."""
    said = failure.engine_error.get("message")
    message = said if isinstance(said, str) else failure.message
    param = failure.engine_error.get("param")
    return ApiError(
        _code(failure),
        f"{failure.leg}: {message}" if failure.event != "client_fault" else message,
        param=param if isinstance(param, str) else None,
        detail={"leg": failure.leg, "status": failure.status, "message": message},
        retry_after_s=_retry_after(failure),
    )


def _code(failure: LegFailure) -> ErrorCode:
    code = failure.engine_code
    if failure.event in ("deadline", "expired"):
        return "deadline_exceeded"
    if code in _KEPT:
        return code
    if failure.event in _NOT_EXECUTED:
        return "rate_limited" if failure.status == 429 else "backend_unavailable"
    if failure.event == "client_fault":
        return code or "invalid_request"
    return "prefill_failed" if failure.leg == "prefill" else "decode_failed"


def _retry_after(failure: LegFailure) -> int | None:
    if failure.event in _NOT_EXECUTED:
        return failure.retry_after_s or 1
    return None


def failure_in_body(leg: Leg, error: dict[str, object]) -> LegFailure:
    """An error object where an answer was due (after the mark, or as a stream's event), by the error's own code."""
    code = error_code(error.get("code"))
    status = None if code is None else ApiError(code, "").status
    event = (event_of_status(status) if status is not None else None) or "failed"
    return LegFailure(leg, event, "the engine reported an error", status=status, engine_error=error)
