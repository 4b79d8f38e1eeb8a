"""Between the scheduler that decides and the session that moves KV: each role's side of a hand-off.

Called by the rank's loop only. What the session reports goes into the scheduler, what the scheduler planned goes
into the session, and what a leader must know is returned as messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from pdcore import telemetry
from pdcore.engine.messages import Failed, HandedOff, Start, Step, ToLeader
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.plan import Admit, Failure, Handoff
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.transfer.receiving import Arrived, Drained, HandoffFailed, ReceivingSession
from pdcore.engine.transfer.sending import Handshaken, SendFailed, SendingSession, Sent, WriteEnded
from pdcore.errors import ApiError

_log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffGauges:
    """``rooms`` counts hand-offs that are not over for the session, quarantined ones included."""

    slots_total: int = 0
    slots_used: int = 0
    rooms: int = 0


class Handoffs(Protocol):
    """One role's side. Methods never block; messages are for the leader."""

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        """What wakes the loop for this side."""
        ...

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable."""
        ...

    def started(self, start: Start, now: float) -> None:
        """The scheduler holds this new request; raises :class:`ApiError` when the session cannot."""
        ...

    def poll(self, now: float) -> Iterator[ToLeader]:
        """Let the scheduler know what happened since the last call."""
        ...

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[ToLeader]:
        """Ask for the KV of what the plan admitted."""
        ...

    def send(self, handoffs: Sequence[Handoff]) -> None:
        """Send the KV of prompts that are complete."""
        ...

    def give_up(self, failure: Failure) -> None:
        """The scheduler gave up a request; tell the peer that waits for it."""
        ...

    def abort(self, request_id: str, now: float) -> None:
        """Nobody wants this request any more."""
        ...

    def gauges(self) -> HandoffGauges:
        """Counts of this instant."""
        ...


class NoHandoffs:
    """Unified: nothing is handed off."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return ()

    def next_wake(self) -> float:
        return math.inf

    def started(self, start: Start, now: float) -> None:
        pass

    def poll(self, now: float) -> Iterator[ToLeader]:
        return iter(())

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[ToLeader]:
        return iter(())

    def send(self, handoffs: Sequence[Handoff]) -> None:
        pass

    def give_up(self, failure: Failure) -> None:
        pass

    def abort(self, request_id: str, now: float) -> None:
        self._scheduler.abort(request_id)

    def gauges(self) -> HandoffGauges:
        return HandoffGauges()


class PrefillHandoffs:
    """Prefill: rooms wait for a handshake, are computed, sent, and reported when the write has ended."""

    def __init__(self, scheduler: PrefillScheduler, session: SendingSession) -> None:
        self._scheduler = scheduler
        self._session = session

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return self._session.pollables()

    def next_wake(self) -> float:
        return self._session.next_wake()

    def started(self, start: Start, now: float) -> None:
        self._session.expect(
            room=start.room,
            expected_peer=start.expected_peer,
            prompt_len=len(start.prompt),
            deadline=now + start.remaining_ms / 1000,
        )

    def poll(self, now: float) -> Iterator[ToLeader]:
        for event in self._session.poll(now):
            match event:
                case Handshaken(room=room):
                    self._scheduler.handshaken(room)
                case WriteEnded(room=room):
                    self._scheduler.write_ended(room)
                case Sent(room=room):
                    request = self._scheduler.sent(room)
                    if request is not None:
                        yield HandedOff(request_id=request.request_id)
                case SendFailed(room=room, code=code, message=message):
                    request = self._scheduler.failed(room)
                    if request is not None:
                        yield Failed(request_id=request.request_id, code=code, message=message)

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[ToLeader]:
        return iter(())

    def send(self, handoffs: Sequence[Handoff]) -> None:
        for handoff in handoffs:
            _log.debug("prefill done", room=handoff.room, request_id=handoff.request_id)
            self._session.send(handoff.room, handoff.blocks, handoff.first_token, handoff.kv_len)

    def give_up(self, failure: Failure) -> None:
        self._session.fail(failure.room, failure.code, failure.message)

    def abort(self, request_id: str, now: float) -> None:
        request = self._scheduler.find(request_id)
        if request is not None:
            self._scheduler.abort(request_id)
            self._session.fail(request.start.room, "cancelled", "the prefill leg was cancelled")

    def gauges(self) -> HandoffGauges:
        statistics = self._session.statistics()
        return HandoffGauges(rooms=statistics.rooms + statistics.stashed + statistics.writing)


class DecodeHandoffs:
    """Decode: admitted requests ask for their KV; a request runs once it has arrived."""

    def __init__(self, scheduler: DecodeScheduler, session: ReceivingSession, vocab_size: int) -> None:
        self._scheduler = scheduler
        self._session = session
        self._vocab_size = vocab_size

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return self._session.pollables()

    def next_wake(self) -> float:
        return self._session.next_wake()

    def started(self, start: Start, now: float) -> None:
        if start.prefill is None:
            raise ApiError("internal", "a decode request came without the prefill rank that has its KV")

    def poll(self, now: float) -> Iterator[ToLeader]:
        for event in self._session.poll(now):
            match event:
                case Arrived(seq=seq, first_token=token) if token >= self._vocab_size:
                    yield from self._refuse(
                        seq, f"prefill sent token {token}; the model has {self._vocab_size}"
                    )
                case Arrived(seq=seq, first_token=token, kv_len=kv_len):
                    arrived = self._scheduler.arrived(seq, token, kv_len)
                    if arrived is not None:
                        yield Step(outputs=(arrived[1],))
                case HandoffFailed(seq=seq, code=code, message=message):
                    request = self._scheduler.failed(seq)
                    if request is not None:
                        yield Failed(request_id=request.request_id, code=code, message=message)
                case Drained(seq=seq):
                    self._scheduler.drained(seq)

    def _refuse(self, seq: int, why: str) -> Iterator[ToLeader]:
        """End a hand-off whose content makes no sense; it has arrived, so nothing of it can land any more."""
        request = self._scheduler.failed(seq)
        self._scheduler.drained(seq)
        if request is not None:
            yield Failed(request_id=request.request_id, code="prefill_failed", message=why)

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[ToLeader]:
        for item in admitted:
            request = self._scheduler.held(item.request_id)
            assert request.start.prefill is not None, "started without a prefill rank"
            if not self._session.can_open(request.start.prefill, len(item.blocks)):
                self._scheduler.postponed(item.request_id)
                continue
            try:
                seq = self._session.open(
                    room=request.start.room,
                    peer=request.start.prefill,
                    blocks=item.blocks,
                    prompt_len=len(request.start.prompt),
                    deadline=request.deadline,
                )
            except ApiError as refused:
                self._scheduler.not_opened(item.request_id)
                yield Failed(request_id=item.request_id, code=refused.code, message=refused.message)
            else:
                self._scheduler.opened(item.request_id, seq)

    def send(self, handoffs: Sequence[Handoff]) -> None:
        pass

    def give_up(self, failure: Failure) -> None:
        pass

    def abort(self, request_id: str, now: float) -> None:
        seq = self._scheduler.seq_of(request_id)
        self._scheduler.abort(request_id)
        if seq is not None:
            self._session.abort(seq, now)

    def gauges(self) -> HandoffGauges:
        statistics = self._session.statistics()
        return HandoffGauges(
            slots_total=statistics.slots_total,
            slots_used=statistics.slots_used,
            rooms=statistics.rooms + statistics.quarantined,
        )
