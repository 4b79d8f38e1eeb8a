"""One attempt: every leg at once, and the answering leg relayed to the client.

Each leg turns what its engine does into events of :mod:`pdcore.router.exchange` and decides nothing by itself. The
first event whose effect is more than waiting settles the attempt; then every other leg is ended. Where one leg is worded
by what the other one's engine said, it is begun when that has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from pdcore.router.answer import ClientAnswer
from pdcore.router.budget import Budget, Deadline
from pdcore.router.callbacks import Callback
from pdcore.router.exchange import Effect, LegEvent, LegFailure, Phase, decide, failure_in_body
from pdcore.router.exchange import Leg as LegName
from pdcore.router.finite import with_nulls
from pdcore.router.ground import Ground
from pdcore.router.headers import returned
from pdcore.router.interrupt import Interrupt
from pdcore.router.lazy_timer import LazyTimer
from pdcore.router.leg import Leg, is_stream
from pdcore.router.load import Hold
from pdcore.router.protocols.base import (
    KV_MARK,
    KV_RECEIVED,
    Carried,
    LegPlan,
    Plan,
    SecondLeg,
    Unreadable,
    key_of,
)
from pdcore.router.relay import DONE, EventCutter, EventTooLarge, StreamReader
from pdcore.router.upstream import Post
from pdcore.router.witness import Sighting

LINGER_S: Final = 0.5  # how long a prefill answer may trail behind a finished request
DRAIN_S: Final = 0.5  # how long the end of a stream may trail behind its last event
DRAIN_PARTS: Final = 16

Rename = Callable[[bytes], bytes]


class Verdict(Struct, frozen=True):
    """How an attempt was settled; ``failure`` unless it finished.

    ``left`` is what prefill answered and holds KV for, where decode did not take it.
    """

    effect: Effect
    failure: LegFailure | None
    left: Carried | None = None


class Presentation(Struct, frozen=True, kw_only=True):
    """How decode's answer is shown: our headers, and the client's own name for its room where it appears.

    ``items`` is how many answers there are in it.
    """

    headers: Mapping[str, str]
    items: int = 1
    body: Rename | None = None
    event: Rename | None = None


class AttemptRun:
    """Runs one plan once, in the task of the request; legs need none of their own. Implements :class:`leg.Owner`.

    ``holds`` counts the legs by instance id; each is released when its leg has ended.

    Mutable state: ``_phase`` and ``_verdict``, both changed by :meth:`_happened` only; ``_legs``, those that were begun;
    ``_body``, decode's complete answer; ``_held``, what prefill answered for decode; ``_waiter``, for what decode's leg
    brings next; ``_over``, once nothing is to be begun any more.
    """

    def __init__(
        self,
        plan: Plan,
        ground: Ground,
        seen: Sighting,
        budget: Budget,
        client: ClientAnswer,
        shown: Presentation,
        holds: Mapping[str, Hold],
        callback: Callback | None = None,
    ) -> None:
        self._plan = plan
        self._ground = ground
        self._seen = seen
        self._budget = budget
        self._client = client
        self._shown = shown
        self._callback = callback
        self._holds = holds
        self._legs: dict[LegName, Leg] = {}
        self._patience_for_call: LazyTimer | None = None
        self._over = False
        self._held: Carried | None = None
        self._body: bytes | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._phase = Phase()
        self._verdict: Verdict | None = None
        self._settled: Interrupt[bool] = Interrupt()

    async def run(self) -> Verdict:
        """Send every leg and wait until the attempt is settled; when this returns, no leg is open."""
        try:
            with self._settled:
                self._begin()
                await self._answer()
            if self._client.ended:
                await self._linger()
        finally:
            self._end()
        assert self._verdict is not None
        return self._verdict

    def _begin(self) -> None:
        """Send what can be worded. The instance of what cannot is reserved meanwhile, nothing is open there."""
        for plan in self._plan.legs:
            self._add(plan).begin()
        second = self._plan.second
        if second is not None and second.after == "callback":
            self._expect_call(second)

    def _add(self, plan: LegPlan) -> Leg:
        hold = self._holds[plan.instance.instance_id]
        leg = self._legs[plan.leg] = Leg(plan, self._ground, self._budget, hold, self)
        return leg

    def _end(self) -> None:
        self._over = True
        for leg in self._legs.values():
            leg.end("cancelled")
        self._legs = {}  # which know their owner: together they would never be freed
        if self._patience_for_call is not None:
            self._patience_for_call.cancel()

    # What legs say

    def headed(self, leg: Leg) -> None:
        """A good head."""
        if leg.plan.leg == "prefill":
            return
        assert leg.call is not None, "it has spoken"
        headers = leg.call.headers
        marked = headers.get(KV_MARK, "").strip().lower() == KV_RECEIVED
        leg.streams = self._budget.stream and is_stream(headers)
        self._happened("decode", "kv_received" if marked else "head")

    def came(self, leg: Leg) -> None:
        """More of decode's stream."""
        self._wake()

    def answered(self, leg: Leg, body: bytes) -> None:
        """A whole answer."""
        leg.wait_until(None)
        if leg.plan.leg == "prefill":
            self._prefill_answered(leg, body)
        elif self._budget.stream:
            self.failed(leg, leg.failure("garbage", "the answer is not a stream of events"))
        else:
            self._body = body
            self._wake()

    def failed(self, leg: Leg, failure: LegFailure) -> None:
        """Its end, and perhaps the attempt's."""
        self._seen.failed(failure)
        leg.end(failure.event)
        self._happened(leg.plan.leg, failure.event, failure)

    def _prefill_answered(self, leg: Leg, body: bytes) -> None:
        second = self._plan.second
        if second is None or second.after != "answer":
            leg.end("ok")
            return self._happened("prefill", "accepted")
        try:
            post = _worded(second, body, "prefill")
        except LegFailure as failure:
            return self.failed(leg, failure)
        self._held = Carried(prefill=key_of(leg.plan.instance), room=self._plan.room, words=body)
        leg.end("ok")
        self._happened("prefill", "accepted")
        self._add(LegPlan(leg=second.leg, instance=second.instance, post=post)).begin()

    def _expect_call(self, second: SecondLeg) -> None:
        assert self._callback is not None, "a protocol whose engines call back has an address for it"
        deadline = self._budget.head(self._ground.clock.now())
        self._patience_for_call = LazyTimer(partial(self._not_called, deadline), self._ground.clock.now)
        self._patience_for_call.set(deadline.at)
        self._callback.tell(partial(self._called, second))

    def _called(self, second: SecondLeg, words: bytes) -> None:
        if self._over or self._patience_for_call is None:
            return
        self._patience_for_call.cancel()
        try:
            post = _worded(second, words, "decode")
        except LegFailure as failure:
            return self._not_worded(failure)
        self._add(LegPlan(leg=second.leg, instance=second.instance, post=post)).begin()

    def _not_called(self, deadline: Deadline) -> None:
        why = f"the engine did not call the router back: {deadline.sentence()}"
        self._not_worded(LegFailure("decode", "deadline", why))

    def _not_worded(self, failure: LegFailure) -> None:
        self._seen.failed(failure)
        self._happened(failure.leg, failure.event, failure)

    def _happened(self, leg: LegName, event: LegEvent, failure: LegFailure | None = None) -> None:
        """Apply the table; the only place where phase and verdict change."""
        effect = decide(self._phase, leg, event)
        self._phase = self._phase.after(event)
        if effect == "ignore":
            self._ground.metrics.late_prefill_failures.inc()
        elif event in ("accepted", "first_byte"):
            self._seen.good(leg)
        elif effect != "wait" and self._verdict is None:
            self._verdict = Verdict(effect, failure, self._held if leg == "decode" else None)
            self._settled.strike(True)  # which the request's own task need not be told

    # What the request's task does

    async def _answer(self) -> None:
        """Wait for decode's answer and pass it on; what goes wrong with it settles the attempt."""
        while self._body is None and not self._streams():
            await self._change()
        leg = self._legs["decode"]
        try:
            await (self._relay(leg) if self._body is None else self._pass_on(leg, self._body))
        except LegFailure as failure:
            return self.failed(leg, failure)
        self._happened("decode", "complete")
        leg.end("ok")

    def _streams(self) -> bool:
        leg = self._legs.get("decode")
        return leg is not None and leg.streams

    async def _pass_on(self, leg: Leg, body: bytes) -> None:
        status, headers = self._head(leg)
        self._happened("decode", "first_byte")
        await self._client.whole(status, self._shown.body(body) if self._shown.body else body, headers)

    def _head(self, leg: Leg) -> tuple[int, dict[str, str]]:
        assert leg.call is not None, "it has answered"
        return leg.call.status, {**returned(leg.call.headers), **self._shown.headers}

    async def _relay(self, leg: Leg) -> None:
        """Whole events as they come; our head goes out with the first one, one ``[DONE]`` ends them."""
        cutter, reader = EventCutter(), StreamReader(self._shown.items)
        status, headers = self._head(leg)
        while chunk := await self._chunk(leg):
            try:
                for event in cutter.push(chunk):
                    if await self._relay_event(event, reader, status, headers):
                        return await self._drain(leg)
            except EventTooLarge as wrong:
                raise leg.failure("garbage", str(wrong)) from wrong
        if not reader.finished or cutter.pending:
            raise leg.failure("broken", "the stream ended before the answer did")
        await self._client.finish(DONE)

    async def _relay_event(
        self, event: bytes, reader: StreamReader, status: int, headers: Mapping[str, str]
    ) -> bool:
        """Pass one event on; True if it was the last. Nothing the engine says after ``[DONE]`` is looked at."""
        kind = reader.read(event)
        if kind == "garbage" and (finite := with_nulls(event)) != event:
            event, kind = finite, reader.read(finite)
        if kind == "garbage":
            raise LegFailure("decode", "garbage", "an event of the stream is not JSON")
        if kind == "error":
            raise failure_in_body("decode", reader.error)
        if not self._phase.sending:
            self._happened("decode", "first_byte")
            await self._client.start(status, headers)
        if kind == "done":
            await self._client.finish(event)
            return True
        if kind == "data":
            self._client.pace.event(self._ground.clock.now())
        await self._client.push(self._shown.event(event) if self._shown.event else event)
        return False

    async def _chunk(self, leg: Leg) -> bytes:
        """The next part of the stream, b"" at its end."""
        while True:
            part = leg.take()
            if part or leg.is_complete:
                return part
            leg.wait_until(self._patience())
            await self._change()

    def _patience(self) -> Deadline:
        """Until when the stream's next part has to be here."""
        if self._phase.sending:
            return self._budget.silence(self._ground.clock.now())
        return self._budget.whole()

    async def _drain(self, leg: Leg) -> None:
        """Let the stream end if that is near, so that its connection can serve again; how it ends matters to nobody."""
        try:
            async with asyncio.timeout(DRAIN_S):
                for _ in range(DRAIN_PARTS):
                    while leg.take():
                        pass
                    if leg.is_complete:
                        return
                    await self._change()
        except (LegFailure, TimeoutError):
            return

    async def _linger(self) -> None:
        """The client has its answer; prefill mostly has all it needs, and gets a little time for the rest."""
        prefill = self._legs.get("prefill")
        if prefill is None or prefill.over:
            return
        prefill.on_end = asyncio.Event()
        try:
            async with asyncio.timeout(LINGER_S):
                await prefill.on_end.wait()
        except TimeoutError:
            return

    async def _change(self) -> None:
        """Return when decode's leg has something new; its own deadlines end this wait."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _worded(second: SecondLeg, words: bytes, speaker: LegName) -> Post:
    """The request that ``words`` ask for, or the speaker's failure."""
    try:
        return second.make(words)
    except Unreadable as wrong:
        raise LegFailure(speaker, "garbage", str(wrong)) from wrong
