"""The life of one attempt as a table: what each event of each leg means for the client. Pure.

The first leg that fails decides, with two exceptions. Once decode has said that the KV arrived, a prefill failure
changes nothing for the client. And a failure that proves that nothing was executed (not connected, 421, 429, 503) is
tried again, as long as the client has seen no byte; so is, once, a failure that turns out to be the death of the
instance. Nothing else decides about a leg's outcome; the shell in ``dispatch`` only performs what :func:`decide` says.

The way an error reaches the client is not part of the table: a status while our head is unsent, one SSE event after.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from msgspec import Struct

from pdcore.errors import ApiError, ErrorCode, PdcoreError, error_code

Leg = Literal["prefill", "decode"]

Failure = Literal[
    "refused",  # 421: another incarnation, draining, not ready; nothing was executed
    "not_now",  # 429 or 503: the engine has no room; nothing was executed
    "unreachable",  # no connection; nothing was executed
    "connect_expired",  # no connection within the connect budget, which is then used up
    "client_fault",  # any other 4xx: the request itself
    "expired",  # 504: the engine's share of the budget
    "failed",  # any other status, or an error object as body
    "broken",  # reset, or an end before the end
    "frozen",  # neither a byte nor an answer about its health
    "garbage",  # an answer nobody can read
    "deadline",  # one of our budgets
]
Progress = Literal[
    "accepted",  # prefill: hand-off has ended well
    "head",  # decode: a good head without the mark
    "kv_received",  # decode: a good head with the mark
    "first_byte",  # the first byte goes to the client
    "complete",  # decode: the whole answer is with the client
]
LegEvent = Failure | Progress
Effect = Literal["wait", "ignore", "finish", "retry_fresh", "retry_elsewhere", "retry_if_died", "answer"]

FAILURES: Final[tuple[Failure, ...]] = get_args(Failure)
_FAILED: Final = frozenset[LegEvent](FAILURES)


class Phase(Struct, frozen=True, kw_only=True):
    """How far the attempt is. ``sending``: the client has seen a byte of this answer."""

    kv_received: bool = False
    sending: bool = False

    def after(self, event: LegEvent) -> Phase:
        """The phase once ``event`` has happened."""
        if event == "kv_received":
            return Phase(kv_received=True, sending=self.sending)
        if event == "first_byte":
            return Phase(kv_received=self.kv_received, sending=True)
        return self


_FIRST_DECIDES: Final[dict[LegEvent, Effect]] = {
    "accepted": "wait",
    "head": "wait",
    "kv_received": "wait",
    "first_byte": "wait",
    "complete": "finish",
    "refused": "retry_fresh",
    "not_now": "retry_elsewhere",
    "unreachable": "retry_elsewhere",
    "connect_expired": "answer",
    "client_fault": "answer",
    "expired": "answer",
    "failed": "retry_if_died",
    "broken": "retry_if_died",
    "frozen": "retry_if_died",
    "garbage": "answer",
    "deadline": "answer",
}


_KEPT: Final[frozenset[ErrorCode]] = frozenset(
    {"prefill_failed", "decode_failed", "abort_oom", "preempted_oom"}
)
"""Engine codes that a client meets as they are."""

_NOT_EXECUTED: Final = frozenset({"refused", "not_now", "unreachable", "connect_expired"})


def decide(phase: Phase, leg: Leg, event: LegEvent) -> Effect:
    """What ``event`` of ``leg`` means in ``phase``."""
    effect = _FIRST_DECIDES[event]
    if event not in _FAILED:
        return effect
    if leg == "prefill" and phase.kv_received:
        return "ignore"
    if phase.sending or (phase.kv_received and effect != "retry_if_died"):
        return "answer"
    return effect


def event_of_status(status: int) -> Failure | None:
    """What an engine's status says; None for success. Redirects are failures, they are never followed."""
    if 200 <= status < 300:
        return None
    if status == 421:
        return "refused"
    if status in (429, 503):
        return "not_now"
    if status == 504:
        return "expired"
    return "client_fault" if 400 <= status < 500 else "failed"


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
