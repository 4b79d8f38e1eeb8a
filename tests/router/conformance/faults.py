"""What engines do wrong, where in an answer they do it, and what that means for the client.

A fault turns the script of a good answer into another one. ``head`` faults come instead of any answer, ``body`` faults
after the head of a complete answer, ``event`` faults after the first event of a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tests.router.conformance.engines import Fault
from tests.support import fake_engines as fake
from tests.support.fake_engines import Do, Fin, Hang, Reset, Script, Send, Step

Leg = Literal["prefill", "decode"]

TOO_LONG: Final = {"error": {"message": "too long", "type": "t", "code": "x", "param": "prompt"}}
FAILED: Final = "failed"
"""Stands for the error code of the leg that failed."""


@dataclass(frozen=True)
class Case:
    """One fault, and the status and code the client gets when no other pair can take the request.

    ``code`` is None where the engine's own answer passes through. ``retried`` when another pair would be tried.
    """

    name: str
    fault: Fault
    status: int
    code: str | None = FAILED
    retried: bool = False


def instead(*steps: Step) -> Fault:
    """Do ``steps`` instead of answering."""
    return lambda good: steps


def saying(status: int) -> Fault:
    """Answer ``status`` instead."""
    return lambda good: fake.answer(status, TOO_LONG)


def after_the_head(*steps: Step) -> Fault:
    """Send the good head, then do ``steps``."""

    def fault(good: Script) -> Script:
        return (*good[: _head(good) + 1], *steps)

    return fault


def within_the_body(*steps: Step) -> Fault:
    """Send the good head and half of what follows, then do ``steps``."""

    def fault(good: Script) -> Script:
        at = _head(good)
        body = good[at + 1]
        assert isinstance(body, Send)
        return (*good[: at + 1], Send(body.data[: len(body.data) // 2]), *steps)

    return fault


def after_an_event(*steps: Step) -> Fault:
    """Send the good head and the first event, then do ``steps``."""

    def fault(good: Script) -> Script:
        return (*good[: _head(good) + 2], *steps)

    return fault


def of_leg(leg: Leg, fault: Fault) -> Fault:
    """``fault`` as ``leg`` has it: a prefill that breaks does so before it has handed over."""
    if leg == "decode":
        return fault
    return lambda good: fault(tuple(step for step in good if not isinstance(step, Do)))


def _head(good: Script) -> int:
    """Where in a script the head is sent."""
    return next(at for at, step in enumerate(good) if isinstance(step, Send))


GARBAGE: Final = Send(b"\x00\x01\r\n\r\n")

PASSED_ON: Final = tuple(Case(f"{code}", saying(code), code, None) for code in (400, 401, 404, 413, 422))
HEAD: Final = (
    *PASSED_ON,
    Case("408", saying(408), 408, None),
    Case("429", saying(429), 429, "rate_limited", retried=True),
    Case("500", saying(500), 502),
    Case("502", saying(502), 502),
    Case("503", saying(503), 503, "backend_unavailable", retried=True),
    Case("504", saying(504), 504, "deadline_exceeded"),
    Case(
        "a redirect", instead(fake.head(307, {"location": "http://127.0.0.1:9/", "content-length": "0"})), 502
    ),
    Case("reset", instead(Reset()), 502),
    Case("fin", instead(Fin()), 502),
    Case("no http", instead(GARBAGE, Fin()), 502),
)
"""Instead of any answer."""

BODY: Final = (
    Case("fin after the head", after_the_head(Fin()), 502),
    Case("reset in the body", within_the_body(Reset()), 502),
    Case("fin in the body", within_the_body(Fin()), 502),
    Case("no json", lambda good: fake.answer(200, b"{bad json"), 502),
    Case("an empty body", lambda good: fake.answer(200, b""), 502),
    Case("an error as body", lambda good: fake.answer(200, {"error": {"message": "boom"}}), 502),
)
"""In a complete answer."""

EVENT: Final = (
    Case("reset", after_an_event(Reset()), 502),
    Case("fin", after_an_event(Fin()), 502),
    Case("half an event", after_an_event(fake.chunk(b'data: {"choices":[{"fin'), Fin()), 502),
    Case("no json", after_an_event(fake.chunk(b"data: {bad\n\n"), Hang()), 502),
    Case("an error", after_an_event(fake.chunk(b'data: {"error":{"message":"boom"}}\n\n'), Hang()), 502),
    Case("an early end", after_an_event(fake.END), 502),
)
"""In a stream whose first event the client has seen: each is the last event, an error of decode."""

SILENT: Final = (
    Case("before the head", instead(Hang()), 504, "deadline_exceeded"),
    Case("before the body", after_the_head(Hang()), 504, "deadline_exceeded"),
)
"""Silence, which a budget ends."""
