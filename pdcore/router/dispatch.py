"""One attempt: every leg at once, and the answering leg relayed to the client.

Each leg turns what its engine does into events of :mod:`pdcore.router.exchange` and decides nothing by itself. The
first event whose effect is more than waiting settles the attempt; then every other leg is cancelled. Where one leg is
worded by what the other one's engine said, it waits for that first, unsent and uncounted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec import Struct

from pdcore.clock import Clock
from pdcore.router.answer import ClientAnswer
from pdcore.router.budget import Budget, Deadline
from pdcore.router.callbacks import Callback
from pdcore.router.exchange import Effect, Leg, LegEvent, LegFailure, Phase, decide, failure_in_body
from pdcore.router.finite import with_nulls
from pdcore.router.headers import returned
from pdcore.router.interrupt import Interrupt
from pdcore.router.leg import LegCall
from pdcore.router.load import Hold
from pdcore.router.metrics import LegOutcome, RouterMetrics
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
from pdcore.router.upstream import Answer, Post, Upstream
from pdcore.router.vigil import Vigil
from pdcore.router.witness import Sighting, Witness

LINGER_S: Final = 0.5  # how long a prefill answer may trail behind a finished request

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What every attempt of this router stands on."""

    upstream: Upstream
    clock: Clock
    metrics: RouterMetrics
    vigil: Vigil
    witness: Witness


class AttemptRun:
    """Runs one plan once.

    The decode leg runs in the caller's own task, so that what it sends to the client needs no other to wake.

    Mutable state: ``_phase`` and ``_verdict``, both changed by :meth:`_happened` only; and, each set once, ``_held`` and
    ``_by_answer``, what prefill answered for decode and the request that it makes, and ``_second_sent``.
    """

    def __init__(
        self,
        plan: Plan,
        ground: Ground,
        seen: Sighting,
        budget: Budget,
        client: ClientAnswer,
        shown: Presentation,
        callback: Callback | None = None,
    ) -> None:
        self._plan = plan
        self._ground = ground
        self._seen = seen
        self._budget = budget
        self._client = client
        self._shown = shown
        self._callback = callback
        self._held: Carried | None = None
        self._by_answer: Post | None = None
        self._answered = asyncio.Event()
        self._second_sent = False
        self._phase = Phase()
        self._verdict: Verdict | None = None
        self._settled: Interrupt[bool] = Interrupt()

    async def run(self, holds: Mapping[str, Hold]) -> Verdict:
        """Send every leg and wait until the attempt is settled; when this returns, no leg is open.

        ``holds`` counts the legs by instance id; each is released when its leg has ended.
        """
        legs = self._legs(holds)
        decode = legs.pop("decode")
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(leg) for leg in legs.values()]
            with self._settled:
                await decode
            if beside and self._client.ended and self._is_sent("prefill"):
                await _ended(beside)
            for task in beside:
                task.cancel()
        assert self._verdict is not None
        return self._verdict

    def _legs(self, holds: Mapping[str, Hold]) -> dict[Leg, Coroutine[object, object, None]]:
        """Every leg, to be run."""
        legs = {leg.leg: self._run_leg(leg, holds[leg.instance.instance_id]) for leg in self._plan.legs}
        second = self._plan.second
        if second is not None:
            legs[second.leg] = self._run_second(second, holds[second.instance.instance_id])
        return legs

    def _is_sent(self, leg: Leg) -> bool:
        return self._second_sent or self._plan.second is None or self._plan.second.leg != leg

    async def _run_second(self, second: SecondLeg, hold: Hold) -> None:
        """Wait until the leg can be worded, then run it. Its instance is reserved meanwhile, nothing is open."""
        with hold:
            try:
                post = await (self._after_answer() if second.after == "answer" else self._after_call(second))
            except LegFailure as failure:
                self._seen.failed(failure)
                return self._happened(failure.leg, failure.event, failure)
            self._second_sent = True
            await self._run_leg(LegPlan(leg=second.leg, instance=second.instance, post=post), hold)

    async def _after_answer(self) -> Post:
        """Prefill's own deadlines end this wait: when it fails, the attempt is settled."""
        await self._answered.wait()
        assert self._by_answer is not None
        return self._by_answer

    async def _after_call(self, second: SecondLeg) -> Post:
        assert self._callback is not None, "a protocol whose engines call back has an address for it"
        deadline = self._budget.head(self._ground.clock.now())
        try:
            async with asyncio.timeout(deadline.left_s(self._ground.clock.now())):
                words = await self._callback.words()
        except TimeoutError as wrong:
            why = f"the engine did not call the router back: {deadline.sentence()}"
            raise LegFailure("decode", "deadline", why) from wrong
        return _worded(second, words, "decode")

    async def _run_leg(self, plan: LegPlan, hold: Hold) -> None:
        ground, key = self._ground, (plan.instance.instance_id, plan.instance.incarnation)
        with (
            hold,
            ground.metrics.leg(plan.leg) as outcome,
            ground.vigil.leg(key, ground.clock.now, partial(self._froze, plan.leg, outcome)) as watched,
        ):
            try:
                async with LegCall(plan, ground.upstream, self._budget, ground.clock, watched.heard) as call:
                    answer = await call.open()
                    await (self._prefill if plan.leg == "prefill" else self._decode)(call, answer)
                outcome.set("ok")
            except LegFailure as failure:
                outcome.set(failure.event)
                self._seen.failed(failure)
                self._happened(plan.leg, failure.event, failure)

    def _froze(self, leg: Leg, outcome: LegOutcome) -> None:
        outcome.set("frozen")
        failure = LegFailure(leg, "frozen", "the engine stopped answering")
        self._seen.failed(failure)
        self._happened(leg, "frozen", failure)

    def _happened(self, leg: Leg, event: LegEvent, failure: LegFailure | None = None) -> None:
        """Apply the table; the only place where phase and verdict change."""
        effect = decide(self._phase, leg, event)
        self._phase = self._phase.after(event)
        if effect == "ignore":
            self._ground.metrics.late_prefill_failures.inc()
        elif event in ("accepted", "first_byte"):
            self._seen.good(leg)
        elif effect != "wait" and self._verdict is None:
            self._verdict = Verdict(effect, failure, self._held if leg == "decode" else None)
            self._settled.strike(True)  # which the decode leg itself need not be told

    async def _prefill(self, call: LegCall, answer: Answer) -> None:
        body = await call.document(answer)
        second = self._plan.second
        if second is not None and second.after == "answer":
            self._by_answer = _worded(second, body, "prefill")
            self._held = Carried(
                prefill=key_of(self._plan.legs[0].instance), room=self._plan.room, words=body
            )
            self._answered.set()
        self._happened("prefill", "accepted")

    async def _decode(self, call: LegCall, answer: Answer) -> None:
        marked = answer.headers.get(KV_MARK, "").strip().lower() == KV_RECEIVED
        self._happened("decode", "kv_received" if marked else "head")
        headers = {**returned(answer.headers), **self._shown.headers}
        streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
        if streamed and self._budget.stream:
            await self._relay(call, answer, headers)
            return
        body = await call.document(answer)
        if self._budget.stream:
            raise call.failure("garbage", "the answer is not a stream of events")
        self._happened("decode", "first_byte")
        await self._client.whole(answer.status, self._shown.body(body) if self._shown.body else body, headers)
        self._happened("decode", "complete")

    async def _relay(self, call: LegCall, answer: Answer, headers: Mapping[str, str]) -> None:
        """Whole events as they come; our head goes out with the first one, one ``[DONE]`` ends them."""
        cutter, reader = EventCutter(), StreamReader(self._shown.items)
        while chunk := await call.chunk(answer, self._patience()):
            try:
                for event in cutter.push(chunk):
                    if await self._relay_event(event, reader, answer.status, headers):
                        await call.drain(answer)
                        return self._happened("decode", "complete")
            except EventTooLarge as wrong:
                raise call.failure("garbage", str(wrong)) from wrong
        if not reader.finished or cutter.pending:
            raise call.failure("broken", "the stream ended before the answer did")
        await self._client.finish(DONE)
        self._happened("decode", "complete")

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

    def _patience(self) -> Deadline:
        """Until when the stream's next part has to be here."""
        if self._phase.sending:
            return self._budget.silence(self._ground.clock.now())
        return self._budget.whole()


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for ``tasks``, which mostly have all they need, and not for long."""
    await asyncio.sleep(0)  # their turn, which costs a tenth of waiting for them
    if not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=LINGER_S)


def _worded(second: SecondLeg, words: bytes, speaker: Leg) -> Post:
    """The request that ``words`` ask for, or the speaker's failure."""
    try:
        return second.make(words)
    except Unreadable as wrong:
        raise LegFailure(speaker, "garbage", str(wrong)) from wrong
