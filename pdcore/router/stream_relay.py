"""Decode's stream on its way to the client: whole events as they come, an end that says whether it was one.

The request's task passes on what may have to wait: the first event with our head, the last one, whatever a slow client
holds up. Everything between goes out at once, from where it came in, as long as the server takes it; so an event of a
running stream wakes no task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from pdcore.clock import Clock
from pdcore.router.answer import ClientAnswer
from pdcore.router.bell import Bell
from pdcore.router.budget import Budget, Deadline
from pdcore.router.finite import with_nulls
from pdcore.router.frames import RunningFrames
from pdcore.router.leg import Leg
from pdcore.router.leg_failure import LegFailure, failure_in_body
from pdcore.router.relay import DONE, EventCutter, EventKind, EventTooLarge, StreamReader
from pdcore.router.within import within

DRAIN_S: Final = 0.5  # how long the end of a stream may trail behind its last event
DRAIN_PARTS: Final = 16

Rename = Callable[[bytes], bytes]


class StreamRelay:
    """One stream of ``items`` answers. ``on_first`` is called before our head goes out.

    Mutable state: ``_waiting`` (whole events that were not passed on yet), ``_wrong`` (what ends the stream behind
    those), ``_sending`` (our head is out), ``_flows``, while the task waits for more and events may pass it by, and
    ``_passes``, while whole frames may as well.
    """

    def __init__(
        self,
        leg: Leg,
        client: ClientAnswer,
        budget: Budget,
        clock: Clock,
        *,
        items: int,
        rename: Rename | None,
        on_first: Callable[[], None],
    ) -> None:
        assert leg.watched is not None, "it has begun"
        self._leg = leg
        self._watched = leg.watched
        self._timer = leg.timer
        self._client = client
        self._outlet = client.outlet
        self._pace = client.pace
        self._budget = budget
        self._idle_s = budget.idle_s
        self._now = clock.now
        self._rename = rename
        self._on_first = on_first
        self._cutter = EventCutter()
        self._reader = StreamReader(items)
        self._frames = RunningFrames()
        self._waiting: deque[bytes] = deque()
        self._wrong: LegFailure | None = None
        self._sending = False
        self._flows = False
        self._passes = False
        self._bell = Bell()

    async def run(self, status: int, headers: Mapping[str, str]) -> None:
        """Pass it on to its end under a head of ``status`` and ``headers``; raises the failure that ends it early."""
        assert self._leg.call is not None, "its head has come"
        if self._rename is None:
            self._leg.call.offer_frames(self._take_frame)
        while True:
            event = self._next()
            if event is not None:
                if await self._pass_on(event, status, headers):
                    return await self._drain()
            elif self._leg.is_complete:
                break
            else:
                await self._more()
        if not self._reader.finished or self._cutter.pending:
            raise self._leg.failure("broken", "the stream ended before the answer did")
        await self._client.finish(DONE)

    def came(self) -> None:
        """There is more: pass on at once what can be, and let the task look at the rest."""
        if not self._flows or not self._flow():
            # Before the task runs more may come, which has to wait where the engine is held back.
            self._flows = self._passes = False
            self._bell.ring()

    def _take_frame(self, frame: bytes) -> bool:
        """Pass on a frame as it is if it holds one event of a stream that flows."""
        if not (self._passes and self._outlet.takes_frames and self._frames.carries_more(frame)):
            return False
        self._outlet.write_frame(frame)
        now = self._now()
        self._pace.goes_on(now)
        self._watched.heard_at = now
        self._timer.at = now + self._idle_s
        return True

    def _flow(self) -> bool:
        """Whether everything that came is on its way, and more will come."""
        passing: list[bytes] = []
        told, needs_task = 0, False
        try:
            while (event := self._next()) is not None:
                kind = self._reader.read(event)
                if kind == "data":
                    told += 1
                elif kind != "comment":
                    self._waiting.appendleft(event)  # read again by the task, which tells it the same
                    needs_task = True
                    break
                passing.append(event)
        except LegFailure as wrong:
            self._wrong, needs_task = wrong, True
        if passing and not self._outlet.push(self._shown(passing)):
            self._waiting.extendleft(reversed(passing))
            return False
        now = self._now()
        self._pace.events(told, now)
        if needs_task or self._leg.has_ended:
            return False
        self._leg.wait_until(self._budget.silence(now))
        self._passes = self._frames_may_pass()
        return True

    def _frames_may_pass(self) -> bool:
        """Whether the stream is between two events, and not before its first."""
        return self._pace.count > 0 and not self._cutter.pending

    def _shown(self, events: list[bytes]) -> bytes:
        if self._rename is not None:
            events = [self._rename(event) for event in events]
        return events[0] if len(events) == 1 else b"".join(events)

    def _next(self) -> bytes | None:
        """The next whole event, None when there is none yet; raises what ends the stream once it is its turn."""
        while not self._waiting:
            if self._wrong is not None:
                raise self._wrong
            part = self._leg.take()
            if not part:
                return None
            try:
                self._waiting.extend(self._cutter.push(part))
            except EventTooLarge as wrong:
                self._wrong = self._leg.failure("garbage", str(wrong))
        return self._waiting.popleft()

    async def _pass_on(self, event: bytes, status: int, headers: Mapping[str, str]) -> bool:
        """Pass one event on; True if it was the last. Nothing the engine says after ``[DONE]`` is looked at."""
        kind = self._reader.read(event)
        if kind == "garbage" and (finite := with_nulls(event)) != event:
            event, kind = finite, self._reader.read(finite)
        self._check(kind)
        if not self._sending:
            self._on_first()
            await self._client.start(status, headers)
            self._sending = True
        if kind == "done":
            await self._client.finish(event)
            return True
        if kind == "data":
            self._pace.events(1, self._now())
        await self._client.push(self._rename(event) if self._rename else event)
        return False

    def _check(self, kind: EventKind) -> None:
        if kind == "garbage":
            raise self._leg.failure("garbage", "an event of the stream is not JSON")
        if kind == "error":
            raise failure_in_body("decode", self._reader.error)

    async def _more(self) -> None:
        self._leg.wait_until(self._patience())
        self._flows = self._sending
        self._passes = self._flows and self._frames_may_pass()
        try:
            await self._bell.wait()
        finally:
            self._flows = self._passes = False

    def _patience(self) -> Deadline:
        """Until when the stream's next part has to be here."""
        return self._budget.silence(self._now()) if self._sending else self._budget.whole()

    async def _drain(self) -> None:
        """Let the stream end if that is near, so that its connection can serve again; how it ends matters to nobody."""
        try:
            await within(DRAIN_S, self._rest())
        except (LegFailure, TimeoutError):
            return

    async def _rest(self) -> None:
        """What comes after the answer's end, unread."""
        for _ in range(DRAIN_PARTS):
            while self._leg.take():
                pass
            if self._leg.is_complete:
                return
            await self._bell.wait()
