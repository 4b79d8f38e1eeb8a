"""One leg's HTTP exchange, read under its budgets: everything that can go wrong comes out as a :class:`LegFailure`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self

from pdcore.clock import Clock
from pdcore.router.budget import Budget, Deadline
from pdcore.router.endings import NotAnAnswer, read_answer
from pdcore.router.exchange import Failure, Leg, LegFailure, RawAnswer, event_of_status, failure_in_body
from pdcore.router.interrupt import Alarm
from pdcore.router.protocols.base import LegPlan
from pdcore.router.relay import error_object
from pdcore.router.upstream import Answer, Broken, NotConnected, Upstream

MAX_ANSWER_BYTES: Final = 64 << 20
MAX_ERROR_BYTES: Final = 1 << 20
DRAIN_S: Final = 0.5


class LegCall:
    """One leg from its request to the end of its answer; ``async with`` closes the connection in every ending.

    ``heard`` is called whenever something came from the engine. Inside the block one alarm watches over every wait for
    the engine, and over nothing else; when it rings, the block ends as the failure that names the budget.

    Mutable state: ``_entered``, the exchange to be left, and ``_deadline``, the one the alarm was last set to.
    """

    def __init__(
        self, plan: LegPlan, upstream: Upstream, budget: Budget, clock: Clock, heard: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._upstream = upstream
        self._budget = budget
        self._clock = clock
        self._heard = heard
        self._alarm = Alarm(clock.now)
        self._deadline: Deadline | None = None
        self._entered: AbstractAsyncContextManager[Answer] | None = None

    async def __aenter__(self) -> Self:
        self._alarm.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.set(None)
        try:
            if self._entered is not None:
                await self._entered.__aexit__(None, None, None)
        finally:
            is_late = self._alarm.__exit__(kind, error, trace)
        if is_late and self._deadline is not None:
            raise self.failure("deadline", self._deadline.sentence()) from error

    @property
    def leg(self) -> Leg:
        return self._plan.leg

    async def open(self) -> Answer:
        """Send the request and wait for a good head; a bad status is a failure with what the engine said."""
        deadline = self._budget.head(self._clock.now())
        exchange = self._upstream.post(self._plan.post)
        self._wait_until(deadline)
        try:
            answer = await exchange.__aenter__()
        except NotConnected as wrong:
            raise self.failure("connect_expired" if wrong.timed_out else "unreachable", str(wrong)) from wrong
        except Broken as wrong:
            raise self.failure("broken", str(wrong)) from wrong
        self._alarm.set(None)
        self._entered = exchange
        self._heard()
        failed = event_of_status(answer.status)
        if failed is not None:
            raise await self._bad_status(failed, answer, deadline)
        return answer

    async def _bad_status(self, event: Failure, answer: Answer, deadline: Deadline) -> LegFailure:
        body = await self.body(answer, MAX_ERROR_BYTES, deadline)
        content_type = answer.headers.get("content-type", "application/json")
        after = answer.headers.get("retry-after", "")
        return LegFailure(
            self.leg,
            event,
            f"the engine answered {answer.status}",
            status=answer.status,
            engine_error=error_object(body),
            raw=RawAnswer(answer.status, content_type, body) if event == "client_fault" else None,
            retry_after_s=int(after) if after.isdecimal() and len(after) < 6 else None,
        )

    async def document(self, answer: Answer) -> bytes:
        """The complete body: JSON that reports no error, numbers that are not finite as null; or the failure it is."""
        said = await self.body(answer, MAX_ANSWER_BYTES, self._budget.whole())
        try:
            body, error = read_answer(said)
        except NotAnAnswer as wrong:
            raise self.failure("garbage", str(wrong)) from wrong
        if error is not None:
            raise failure_in_body(self.leg, error)
        return body

    async def body(self, answer: Answer, limit: int, deadline: Deadline) -> bytes:
        """The complete body, whatever it is, at most ``limit`` bytes."""
        body = bytearray()
        while chunk := await self.chunk(answer, deadline):
            body += chunk
            if len(body) > limit:
                raise self.failure("garbage", f"the answer is larger than {limit} bytes")
        return bytes(body)

    async def chunk(self, answer: Answer, deadline: Deadline) -> bytes:
        """The next part of the body, b"" at its end."""
        self._wait_until(deadline)
        try:
            part = await answer.read()
        except Broken as wrong:
            raise self.failure("broken", str(wrong)) from wrong
        self._alarm.set(None)
        self._heard()
        return part

    async def drain(self, answer: Answer) -> None:
        """Read to the end if it is near, so that the connection can serve again; how it ends matters to nobody."""
        with Alarm(self._clock.now) as enough:
            enough.set(self._clock.now() + DRAIN_S)
            try:
                for _ in range(16):
                    if not await answer.read():
                        return
            except Broken:
                return

    def _wait_until(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._alarm.set(deadline.at)

    def failure(self, event: Failure, message: str) -> LegFailure:
        """A failure of this leg."""
        return LegFailure(self.leg, event, message)
