"""One attempt: every leg at once, and the answering leg relayed to the client.

Each leg turns what its engine does into events of :mod:`pdcore.router.exchange` and decides nothing by itself. The
first event whose effect is more than waiting settles the attempt; then every other leg is ended. Where one leg is worded
by what the other one's engine said, it is begun when that has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from pdcore.router.answer import ClientAnswer
from pdcore.router.bell import Bell
from pdcore.router.budget import Budget, Deadline
from pdcore.router.callbacks import Callback
from pdcore.router.exchange import Effect, LegEvent, Phase, decide
from pdcore.router.exchange import Leg as LegName
from pdcore.router.ground import Ground
from pdcore.router.headers import returned
from pdcore.router.interrupt import Interrupt
from pdcore.router.lazy_timer import LazyTimer
from pdcore.router.leg import Leg, is_stream
from pdcore.router.leg_failure import LegFailure
from pdcore.router.load import Hold
from pdcore.router.protocols.base import KV_MARK, KV_RECEIVED, Carried, LegPlan, Plan, SecondLeg
from pdcore.router.protocols.unreadable import Unreadable
from pdcore.router.stream_relay import Rename, StreamRelay
from pdcore.router.upstream import Post
from pdcore.router.want import key_of
from pdcore.router.within import within
from pdcore.router.witness import Sighting

LINGER_S: Final = 0.5  # how long a prefill answer may trail behind a finished request


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
    ``_body``, decode's complete answer, or ``_stream``; ``_held``, what prefill answered for decode; ``_over``, once
    nothing is to be begun any more.
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
        self._stream: StreamRelay | None = None
        self._bell = Bell()
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
        self._legs, self._stream = {}, None  # which know this run: together they would never be freed
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
        if self._stream is None:
            self._bell.ring()
        else:
            self._stream.came()

    def answered(self, leg: Leg, body: bytes) -> None:
        """A whole answer."""
        if leg.plan.leg == "prefill":
            return self._prefill_answered(leg, body)
        leg.wait_until(None)
        if self._budget.stream:
            self.failed(leg, leg.failure("garbage", "the answer is not a stream of events"))
        else:
            self._body = body
            self._bell.ring()

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
        self._patience_for_call.set(deadline[0])
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
        why = f"the engine did not call the router back: {self._budget.sentence(deadline[1])}"
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
            if event != "complete":  # which the request's own task says
                self._settled.strike(True)

    # What the request's task does

    async def _answer(self) -> None:
        """Wait for decode's answer and pass it on; what goes wrong with it settles the attempt."""
        while self._body is None and not self._streams():
            await self._bell.wait()
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
        self._stream = StreamRelay(
            leg,
            self._client,
            self._budget,
            self._ground.clock,
            items=self._shown.items,
            rename=self._shown.event,
            on_first=partial(self._happened, "decode", "first_byte"),
        )
        await self._stream.run(*self._head(leg))

    async def _linger(self) -> None:
        """The client has its answer; prefill mostly has all it needs, and gets a little time for the rest."""
        prefill = self._legs.get("prefill")
        if prefill is None or prefill.over:
            return
        prefill.on_end = asyncio.Event()
        try:
            await within(LINGER_S, prefill.on_end.wait())
        except TimeoutError:
            return


def _worded(second: SecondLeg, words: bytes, speaker: LegName) -> Post:
    """The request that ``words`` ask for, or the speaker's failure."""
    try:
        return second.make(words)
    except Unreadable as wrong:
        raise LegFailure(speaker, "garbage", str(wrong)) from wrong
