"""Between the scheduler that decides and the sides that move KV: what each role makes of plans and events. Pure.

Lives in a DP leader. Words of its group's ranks go through the consensus into the scheduler, what the scheduler planned
becomes orders for every rank of the group, and what a leader must know becomes messages. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from pdcore.engine.consensus import DecodeConsensus, PrefillConsensus
from pdcore.engine.messages import Failed, HandedOff, Start, Step, ToLeader
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.plan import Admit, Ahead, Failure, Handoff
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    Drained,
    Expect,
    Fail,
    HandoffFailed,
    Handshaken,
    Open,
    Order,
    Send,
    SendAhead,
    SendFailed,
    Sent,
    SideEvent,
    WriteEnded,
)
from pdcore.errors import ApiError
from pdcore.topology.keys import RankPosition

Effect = ToLeader | Order
"""Something for the leader, or for every rank of the group."""


class Handoffs(Protocol):
    """One role's way with hand-offs."""

    def started(self, start: Start) -> Iterator[Effect]:
        """The scheduler holds this new request; raises :class:`ApiError` when it cannot be handed off."""
        ...

    def hear(self, rank: RankPosition, event: SideEvent) -> Iterator[Effect]:
        """A rank of the group says this."""
        ...

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[Effect]:
        """Ask for the KV of what the plan admitted."""
        ...

    def send_ahead(self, parts: Sequence[Ahead]) -> Iterator[SendAhead]:
        """Send what is there of prompts whose first token is not known yet."""
        ...

    def send(self, handoffs: Sequence[Handoff]) -> Iterator[Effect]:
        """Send the KV of prompts that are complete."""
        ...

    def give_up(self, failure: Failure) -> Iterator[Effect]:
        """The scheduler gave up a request; tell whoever still works on it."""
        ...

    def abort(self, request_id: str) -> Iterator[Effect]:
        """Nobody wants this request any more."""
        ...


class NoHandoffs:
    """Unified: nothing is handed off."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def started(self, start: Start) -> Iterator[Effect]:
        return iter(())

    def hear(self, rank: RankPosition, event: SideEvent) -> Iterator[Effect]:
        raise TypeError(f"a unified rank says {event!r}")

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[Effect]:
        return iter(())

    def send_ahead(self, parts: Sequence[Ahead]) -> Iterator[SendAhead]:
        return iter(())

    def send(self, handoffs: Sequence[Handoff]) -> Iterator[Effect]:
        return iter(())

    def give_up(self, failure: Failure) -> Iterator[Effect]:
        return iter(())

    def abort(self, request_id: str) -> Iterator[Effect]:
        self._scheduler.abort(request_id)
        return iter(())


class PrefillHandoffs:
    """Prefill: rooms wait for a handshake, are computed, sent, and reported when the write has ended."""

    def __init__(self, scheduler: PrefillScheduler, consensus: PrefillConsensus) -> None:
        self._scheduler = scheduler
        self._consensus = consensus

    def started(self, start: Start) -> Iterator[Effect]:
        self._consensus.expect(start.room)
        yield Expect(
            room=start.room,
            expected_peer=start.expected_peer,
            prompt_len=len(start.prompt),
            remaining_ms=start.remaining_ms,
        )

    def hear(self, rank: RankPosition, event: SideEvent) -> Iterator[Effect]:
        assert isinstance(event, Handshaken | WriteEnded | Sent | SendFailed), f"prefill heard {event!r}"
        for said in self._consensus.hear(rank, event):
            match said:
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
                case Fail():
                    yield said

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[Effect]:
        return iter(())

    def send_ahead(self, parts: Sequence[Ahead]) -> Iterator[SendAhead]:
        for part in parts:
            self._consensus.send(part.room)
            yield SendAhead(
                room=part.room,
                blocks=part.blocks,
                kv_len=part.kv_len,
                computed=part.computed,
                first=part.first,
            )

    def send(self, handoffs: Sequence[Handoff]) -> Iterator[Effect]:
        for handoff in handoffs:
            self._consensus.send(handoff.room)
            yield Send(
                room=handoff.room,
                blocks=handoff.blocks,
                first_token=handoff.first_token,
                kv_len=handoff.kv_len,
                aux=handoff.logprobs,
                cached_blocks=handoff.cached_blocks,
                first=handoff.first,
            )

    def give_up(self, failure: Failure) -> Iterator[Effect]:
        self._consensus.fail(failure.room)
        yield Fail(room=failure.room, code=failure.code, message=failure.message)

    def abort(self, request_id: str) -> Iterator[Effect]:
        request = self._scheduler.find(request_id)
        if request is not None:
            self._scheduler.abort(request_id)
            self._consensus.fail(request.start.room)
            yield Fail(room=request.start.room, code="cancelled", message="the prefill leg was cancelled")


class DecodeHandoffs:
    """Decode: admitted requests ask for their KV; a request runs once it has arrived."""

    def __init__(self, scheduler: DecodeScheduler, consensus: DecodeConsensus, vocab_size: int) -> None:
        self._scheduler = scheduler
        self._consensus = consensus
        self._vocab_size = vocab_size

    def started(self, start: Start) -> Iterator[Effect]:
        if start.prefill is None:
            raise ApiError("internal", "a decode request came without the prefill ranks that have its KV")
        return iter(())

    def hear(self, rank: RankPosition, event: SideEvent) -> Iterator[Effect]:
        assert isinstance(event, Arrived | HandoffFailed | Drained), f"decode heard {event!r}"
        for said in self._consensus.hear(rank, event):
            match said:
                case Arrived(handoff=handoff, first_token=token) if token >= self._vocab_size:
                    why = f"prefill sent token {token}; the model has {self._vocab_size}"
                    yield from self._failed(
                        HandoffFailed(handoff=handoff, code="prefill_failed", message=why)
                    )
                    self._scheduler.drained(handoff)  # it has arrived, so nothing of it can land any more
                case Arrived():
                    yield from self._arrived(said)
                case HandoffFailed():
                    yield from self._failed(said)
                case Drained(handoff=handoff):
                    self._scheduler.drained(handoff)
                case AbortHandoff():
                    yield said

    def _arrived(self, said: Arrived) -> Iterator[Effect]:
        arrived = self._scheduler.arrived(
            said.handoff, said.first_token, said.kv_len, cached_blocks=said.cached_blocks
        )
        if arrived is None:
            return
        request, output = arrived
        if request.start.sampling.top_logprobs is not None:
            # None: a prefill of another kind. The leader says so rather than answer with an entry too few.
            output = msgspec.structs.replace(output, logprobs=() if said.aux is None else (said.aux,))
        yield Step(outputs=(output,))

    def _failed(self, said: HandoffFailed) -> Iterator[Effect]:
        request = self._scheduler.failed(said.handoff)
        if request is not None:
            yield Failed(request_id=request.request_id, code=said.code, message=said.message)

    def admit(self, admitted: Sequence[Admit], now: float) -> Iterator[Effect]:
        for item in admitted:
            request = self._scheduler.held(item.request_id)
            assert request.start.prefill is not None, "started without prefill ranks"
            self._consensus.open(item.handoff)
            yield Open(
                handoff=item.handoff,
                room=item.room,
                prefill=request.start.prefill,
                blocks=item.blocks,
                prompt_len=len(request.start.prompt),
                remaining_ms=max(0, int((request.deadline - now) * 1000)),
            )

    def send_ahead(self, parts: Sequence[Ahead]) -> Iterator[SendAhead]:
        return iter(())

    def send(self, handoffs: Sequence[Handoff]) -> Iterator[Effect]:
        return iter(())

    def give_up(self, failure: Failure) -> Iterator[Effect]:
        if failure.handoff is not None:
            yield from self._consensus.abort(failure.handoff, failure.code)

    def abort(self, request_id: str) -> Iterator[Effect]:
        handoff = self._scheduler.handoff_of(request_id)
        self._scheduler.abort(request_id)
        if handoff is not None:
            yield from self._consensus.abort(handoff, "cancelled")
