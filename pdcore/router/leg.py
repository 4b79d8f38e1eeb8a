"""One leg's HTTP exchange, read under its budgets: everything that can go wrong comes out as a :class:`LegFailure`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, TypeVar

from pdcore.clock import Clock
from pdcore.router.budget import Budget, Deadline
from pdcore.router.endings import NotAnAnswer, read_answer
from pdcore.router.exchange import Failure, Leg, LegFailure, RawAnswer, event_of_status, failure_in_body
from pdcore.router.protocols.base import LegPlan
from pdcore.router.relay import error_object
from pdcore.router.upstream import Answer, Broken, NotConnected, Upstream

MAX_ANSWER_BYTES: Final = 64 << 20
MAX_ERROR_BYTES: Final = 1 << 20
DRAIN_S: Final = 0.5

ResultT = TypeVar("ResultT")


class LegCall:
    """One leg from its request to the end of its answer; ``async with`` closes the connection in every ending.

    ``heard`` is called whenever something came from the engine.
    """

    def __init__(
        self, plan: LegPlan, upstream: Upstream, budget: Budget, clock: Clock, heard: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._upstream = upstream
        self._budget = budget
        self._clock = clock
        self._heard = heard
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def leg(self) -> Leg:
        return self._plan.leg

    async def open(self) -> Answer:
        """Send the request and wait for a good head; a bad status is a failure with what the engine said."""
        deadline = self._budget.head(self._clock.now())
        try:
            entering = self._stack.enter_async_context(self._upstream.post(self._plan.post))
            answer = await self._within(deadline, entering)
        except NotConnected as wrong:
            raise self.failure("connect_expired" if wrong.timed_out else "unreachable", str(wrong)) from wrong
        except Broken as wrong:
            raise self.failure("broken", str(wrong)) from wrong
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
        try:
            part = await self._within(deadline, answer.read())
        except Broken as wrong:
            raise self.failure("broken", str(wrong)) from wrong
        self._heard()
        return part

    async def drain(self, answer: Answer) -> None:
        """Read to the end if it is near, so that the connection can serve again; how it ends matters to nobody."""
        try:
            async with asyncio.timeout(DRAIN_S):
                for _ in range(16):
                    if not await answer.read():
                        return
        except (Broken, TimeoutError):
            return

    async def _within(self, deadline: Deadline, work: Awaitable[ResultT]) -> ResultT:
        try:
            async with asyncio.timeout(deadline.left_s(self._clock.now())):
                return await work
        except TimeoutError as wrong:
            raise self.failure("deadline", deadline.sentence()) from wrong

    def failure(self, event: Failure, message: str) -> LegFailure:
        """A failure of this leg."""
        return LegFailure(self.leg, event, message)
