"""A rank's side of hand-offs: it obeys orders and says what happened. Nothing here decides.

Until the sessions obey and poll orders themselves, :class:`PrefillSide` and :class:`DecodeSide` translate for those of a
group of one rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from pdcore.engine.transfer import receiving, sending
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeGroup,
    Drained,
    Expect,
    Fail,
    HandoffFailed,
    Handshaken,
    Open,
    Order,
    Send,
    SendFailed,
    Sent,
    SideEvent,
    WriteEnded,
)
from pdcore.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class SideGauges:
    """``rooms`` counts hand-offs that are not over for the session, quarantined ones included."""

    slots_total: int = 0
    slots_used: int = 0
    rooms: int = 0


class Side(Protocol):
    """One rank's transfers. Methods never block."""

    def obey(self, order: Order, now: float) -> None:
        """Do it; what comes of it is an event."""
        ...

    def poll(self, now: float) -> Sequence[SideEvent]:
        """Everything that happened since the last call."""
        ...

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        """What wakes the loop for this side."""
        ...

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable."""
        ...

    def gauges(self) -> SideGauges:
        """Counts of this instant."""
        ...


class NoSide:
    """Unified: nothing is handed off."""

    def obey(self, order: Order, now: float) -> None:
        raise TypeError(f"a unified rank was ordered to {type(order).__name__}")

    def poll(self, now: float) -> Sequence[SideEvent]:
        return ()

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return ()

    def next_wake(self) -> float:
        return math.inf

    def gauges(self) -> SideGauges:
        return SideGauges()


class PrefillSide:
    """Orders and events of a :class:`~pdcore.engine.transfer.sending.SendingSession`."""

    def __init__(self, session: sending.SendingSession) -> None:
        self._session = session
        self._refused: list[SideEvent] = []

    def obey(self, order: Order, now: float) -> None:
        match order:
            case Expect(room=room):
                try:
                    self._session.expect(
                        room=room,
                        expected_peer=order.expected_peer,
                        prompt_len=order.prompt_len,
                        deadline=now + order.remaining_ms / 1000,
                    )
                except ApiError as refused:
                    self._refused.append(SendFailed(room=room, code=refused.code, message=refused.message))
            case Send(room=room, blocks=blocks):
                self._session.send(room, blocks[0], order.first_token, order.kv_len)
            case Fail(room=room, code=code, message=message):
                self._session.fail(room, code, message)
            case _:
                raise TypeError(f"a prefill rank was ordered to {type(order).__name__}")

    def poll(self, now: float) -> Sequence[SideEvent]:
        events, self._refused = self._refused, []
        for event in self._session.poll(now):
            match event:
                case sending.Handshaken(room=room):
                    decode = DecodeGroup(instance_id="", incarnation="", dp=0, cp_size=1, tp_size=1)
                    events.append(Handshaken(room=room, decode=decode))
                case sending.WriteEnded(room=room):
                    events.append(WriteEnded(room=room))
                case sending.Sent(room=room):
                    events.append(Sent(room=room))
                case sending.SendFailed(room=room, code=code, message=message):
                    events.append(SendFailed(room=room, code=code, message=message))
        return events

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return self._session.pollables()

    def next_wake(self) -> float:
        return -math.inf if self._refused else self._session.next_wake()

    def gauges(self) -> SideGauges:
        statistics = self._session.statistics()
        return SideGauges(rooms=statistics.rooms + statistics.stashed + statistics.writing)


class DecodeSide:
    """Orders and events of a :class:`~pdcore.engine.transfer.receiving.ReceivingSession`."""

    def __init__(self, session: receiving.ReceivingSession) -> None:
        self._session = session
        self._seqs: dict[int, int] = {}
        self._handoffs: dict[int, int] = {}
        self._refused: list[SideEvent] = []

    def obey(self, order: Order, now: float) -> None:
        match order:
            case Open():
                self._open(order, now)
            case AbortHandoff(handoff=handoff):
                if (seq := self._seqs.get(handoff)) is not None:
                    self._session.abort(seq, now)
            case _:
                raise TypeError(f"a decode rank was ordered to {type(order).__name__}")

    def _open(self, order: Open, now: float) -> None:
        try:
            seq = self._session.open(
                room=order.room,
                peer=order.prefill.ranks[0],
                blocks=order.blocks[0],
                prompt_len=order.prompt_len,
                deadline=now + order.remaining_ms / 1000,
            )
        except ApiError as refused:
            failed = HandoffFailed(handoff=order.handoff, code=refused.code, message=refused.message)
            self._refused += (failed, Drained(handoff=order.handoff))
        else:
            self._seqs[order.handoff], self._handoffs[seq] = seq, order.handoff

    def poll(self, now: float) -> Sequence[SideEvent]:
        events, self._refused = self._refused, []
        for event in self._session.poll(now):
            handoff = self._handoffs[event.seq]
            match event:
                case receiving.Arrived(first_token=token, kv_len=kv_len):
                    events.append(Arrived(handoff=handoff, first_token=token, kv_len=kv_len))
                case receiving.HandoffFailed(code=code, message=message):
                    events.append(HandoffFailed(handoff=handoff, code=code, message=message))
                case receiving.Drained():
                    events.append(Drained(handoff=handoff))
            if not isinstance(event, receiving.HandoffFailed):
                del self._handoffs[event.seq], self._seqs[handoff]
        return events

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return self._session.pollables()

    def next_wake(self) -> float:
        return -math.inf if self._refused else self._session.next_wake()

    def gauges(self) -> SideGauges:
        statistics = self._session.statistics()
        return SideGauges(
            slots_total=statistics.slots_total,
            slots_used=statistics.slots_used,
            rooms=statistics.rooms + statistics.quarantined,
        )
