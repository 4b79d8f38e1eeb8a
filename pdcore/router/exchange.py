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
