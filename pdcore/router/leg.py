"""One leg: its request, its counters and its deadlines. Everything that can go wrong comes out as a :class:`LegFailure`.

A leg is told by its transport and tells its owner; no task waits for it. Whoever begins one ends it, in every case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from pdcore.router.budget import Budget, Deadline
from pdcore.router.endings import NotAnAnswer, read_answer
from pdcore.router.exchange import Failure, event_of_status
from pdcore.router.ground import Ground
from pdcore.router.lazy_timer import LazyTimer
from pdcore.router.leg_failure import LegFailure, RawAnswer, failure_in_body
from pdcore.router.load import Hold
from pdcore.router.protocols.base import LegPlan
from pdcore.router.relay import error_in_stream, error_object
from pdcore.router.upstream import Broken, Call, NotConnected
from pdcore.router.vigil import Watched
from pdcore.router.want import key_of

MAX_ANSWER_BYTES: Final = 64 << 20
MAX_ERROR_BYTES: Final = 1 << 20


class Owner(Protocol):
    """Whose leg it is. Told of each thing once, and of nothing after the leg's end."""

    def headed(self, leg: Leg) -> None:
        """A good head has come: the moment to set ``leg.streams``."""
        ...

    def came(self, leg: Leg) -> None:
        """There is something new of a leg that streams."""
        ...

    def answered(self, leg: Leg, body: bytes) -> None:
        """The complete body has come, and reports no error: JSON, or events where the client wants a stream."""
        ...

    def failed(self, leg: Leg, failure: LegFailure) -> None:
        """It has failed, and is to be ended."""
        ...


class Leg:
    """``streams``: the owner takes the body itself, part by part; else it is collected and judged here. An owner that
    gets frames past the leg says in ``watched`` when it heard, and in ``timer.at`` until when it waits then.

    Mutable state: ``call`` once begun, ``over`` once ended; whether the head has come and was a bad one (``_bad``); what
    was collected; and the deadline that the timer was last set to.
    """

    __slots__ = (
        *("_bad", "_budget", "_deadline", "_ground", "_hold", "_key", "_owner", "_parts", "_size"),
        *("call", "headed", "on_end", "over", "plan", "streams", "timer", "watched"),
    )

    def __init__(self, plan: LegPlan, ground: Ground, budget: Budget, hold: Hold, owner: Owner) -> None:
        self.plan = plan
        self._ground = ground
        self._budget = budget
        self._hold = hold
        self._owner = owner
        self.timer = LazyTimer(self._late, ground.clock.now)
        self._deadline: Deadline | None = None
        self._key = key_of(plan.instance)
        self.watched: Watched | None = None
        self._bad: Failure | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self.call: Call | None = None
        self.headed = False
        self.streams = False
        self.over = False
        self.on_end: asyncio.Event | None = None

    def begin(self) -> None:
        """Send the request."""
        ground, now = self._ground, self._ground.clock.now()
        ground.metrics.leg_began(self.plan.leg)
        self.watched = ground.vigil.begin(self._key, self, now)
        self.wait_until(self._budget.head(now))
        self.call = ground.upstream.post(self.plan.post, self._look)

    def end(self, outcome: str) -> None:
        """Close it and stop counting it; ``outcome`` as the metrics name it. Only the first end counts."""
        if self.over:
            return
        self.over = True
        self.timer.cancel()
        if self.call is not None:
            self.call.close()
            self._ground.vigil.end(self._key, self)
            self._ground.metrics.leg_ended(self.plan.leg, outcome)
        self._hold.release()
        if self.on_end is not None:
            self.on_end.set()

    def wait_until(self, deadline: Deadline | None) -> None:
        """Until when the engine has to say more; None where nobody waits for it."""
        self._deadline = deadline
        self.timer.set(None if deadline is None else deadline[0])

    def froze(self) -> None:
        """Its instance is known not to answer."""
        self._fail("frozen", "the engine stopped answering")

    def take(self) -> bytes:
        """The next part of a body that streams, as far as it has come; raises the failure that it is."""
        assert self.call is not None, "not begun"
        try:
            return self.call.take()
        except Broken as wrong:
            raise self.failure("broken", str(wrong)) from wrong

    @property
    def is_complete(self) -> bool:
        """Whether everything has come; raises the failure when it will not. To be asked once there is nothing to take."""
        assert self.call is not None, "not begun"
        if self.call.state == "failed":
            raise self.failure("broken", str(self.call.failure()))
        return self.call.state == "complete"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes, be it complete or not."""
        assert self.call is not None, "not begun"
        return self.call.state in ("complete", "failed")

    def failure(self, event: Failure, message: str) -> LegFailure:
        """A failure of this leg."""
        return LegFailure(self.plan.leg, event, message)

    def _look(self) -> None:
        """Something has come, or nothing more will."""
        call, watched = self.call, self.watched
        assert call is not None, "told within post()"
        assert watched is not None, "not begun"
        if not call.status:
            return self._not_reached(call.failure())
        if call.state != "failed":
            watched.heard_at = self._ground.clock.now()
        if not self.headed:
            self.headed = True
            self._meet_head(call)
        if self.streams:
            self.timer.set(None)
            self._owner.came(self)
        elif not self.over:
            self._collect(call)

    def _not_reached(self, why: NotConnected | Broken) -> None:
        if isinstance(why, Broken):
            self._fail("broken", str(why))
        else:
            self._fail("connect_expired" if why.timed_out else "unreachable", str(why))

    def _meet_head(self, call: Call) -> None:
        self._bad = event_of_status(call.status)
        if self._bad is None:
            self.wait_until(self._budget.whole())
            self._owner.headed(self)

    def _collect(self, call: Call) -> None:
        limit = MAX_ANSWER_BYTES if self._bad is None else MAX_ERROR_BYTES
        try:
            while part := call.take():
                self._parts.append(part)
                self._size += len(part)
                if self._size > limit:
                    return self._fail("garbage", f"the answer is larger than {limit} bytes")
        except Broken as wrong:
            return self._fail("broken", str(wrong))
        if call.state == "complete":
            parts = self._parts
            self._judge(call, parts[0] if len(parts) == 1 else b"".join(parts))
        elif call.state == "failed":
            self._fail("broken", str(call.failure()))

    def _judge(self, call: Call, said: bytes) -> None:
        if self._bad is not None:
            return self._owner.failed(self, self._bad_status(self._bad, call, said))
        streamed = self._budget.stream and is_stream(call.headers)
        try:
            body, error = (said, error_in_stream(said)) if streamed else read_answer(said)
        except NotAnAnswer as wrong:
            return self._fail("garbage", str(wrong))
        if error is None:
            self._owner.answered(self, body)
        else:
            self._owner.failed(self, failure_in_body(self.plan.leg, error))

    def _bad_status(self, event: Failure, call: Call, body: bytes) -> LegFailure:
        content_type = call.headers.get("content-type", "application/json")
        after = call.headers.get("retry-after", "")
        return LegFailure(
            self.plan.leg,
            event,
            f"the engine answered {call.status}",
            status=call.status,
            engine_error=error_object(body),
            raw=RawAnswer(call.status, content_type, body) if event == "client_fault" else None,
            retry_after_s=int(after) if after.isdecimal() and len(after) < 6 else None,
        )

    def _late(self) -> None:
        if self._deadline is not None:
            self._fail("deadline", self._budget.sentence(self._deadline[1]))

    def _fail(self, event: Failure, message: str) -> None:
        if not self.over:
            self._owner.failed(self, self.failure(event, message))


def is_stream(headers: Mapping[str, str]) -> bool:
    """Whether a body of these ``headers`` is a stream of events."""
    return headers.get("content-type", "").startswith("text/event-stream")
