"""What the ranks of a DP group agree on: each rank's word about a hand-off in, the group's word out. Pure.

A hand-off is one thing to the scheduler and many transfers to the ranks, which end at different times. The group has
got somewhere when its last rank has, and has failed when its first rank did: then the others are ordered to give up
too. What is over is forgotten, so a late word about it changes nothing.

Rank words and the group's word are the same events; orders among the results are for every rank of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeEvent,
    DecodeGroup,
    Drained,
    Fail,
    HandoffFailed,
    Handshaken,
    PrefillEvent,
    SendFailed,
    Sent,
    WriteEnded,
)
from pdcore.errors import ErrorCode
from pdcore.topology.keys import RankPosition

Ranks = frozenset[RankPosition]
Participants = Callable[[DecodeGroup], Collection[RankPosition]]
"""The prefill ranks that write something to that decode group."""

_NOBODY: Final[Ranks] = frozenset()


@dataclass(slots=True)
class _Room:
    """``decode`` and ``taking_part`` are known from the first handshake on."""

    decode: DecodeGroup | None = None
    taking_part: Ranks = _NOBODY
    shaken: set[RankPosition] = field(default_factory=set)
    ended: set[RankPosition] = field(default_factory=set)
    sent: set[RankPosition] = field(default_factory=set)
    sending: bool = False
    failed: bool = False

    def all_of(self, some: set[RankPosition]) -> bool:
        """Whether every rank that takes part is among ``some``."""
        return self.decode is not None and self.taking_part <= some

    @property
    def is_over(self) -> bool:
        """Whether nobody has anything to say about it any more."""
        if self.sending:
            return self.all_of(self.ended) and (self.failed or self.all_of(self.sent))
        return self.failed


class PrefillConsensus:
    """Rooms of one prefill DP group, from ``expect`` until every rank that takes part is done with it."""

    def __init__(self, participants: Participants) -> None:
        self._participants = participants
        self._rooms: dict[int, _Room] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def expect(self, room: int) -> None:
        """Every rank is ordered to expect ``room``."""
        self._rooms[room] = _Room()

    def send(self, room: int) -> None:
        """Every rank is ordered to send ``room``, or a part of it ahead: its blocks are read until ``WriteEnded``."""
        if (known := self._rooms.get(room)) is not None:
            known.sending = True

    def fail(self, room: int) -> None:
        """Every rank is ordered to fail ``room``. Unknown rooms are ignored."""
        known = self._rooms.get(room)
        if known is not None:
            known.failed = True
            self._forget(room, known)

    def hear(self, rank: RankPosition, event: PrefillEvent) -> Iterator[PrefillEvent | Fail]:
        """What the group says now that ``rank`` has said ``event``."""
        known = self._rooms.get(event.room)
        if known is None:
            return
        match event:
            case Handshaken(decode=decode):
                yield from self._shaken(known, rank, event, decode)
            case SendFailed(room=room, code=code, message=message) if not known.failed:
                known.failed = True
                yield event
                yield Fail(room=room, code=code, message=message)
            case Sent():
                known.sent.add(rank)
                if known.all_of(known.sent) and not known.failed:
                    yield event
            case WriteEnded() if known.sending:
                known.ended.add(rank)
                if known.all_of(known.ended):
                    yield event
        self._forget(event.room, known)

    def _shaken(
        self, known: _Room, rank: RankPosition, event: Handshaken, decode: DecodeGroup
    ) -> Iterator[PrefillEvent | Fail]:
        if known.failed:
            return
        if known.decode is None:
            known.decode, known.taking_part = decode, frozenset(self._participants(decode))
        if known.decode != decode:
            known.failed = True
            why = f"{_named(known.decode)} and {_named(decode)} both ask for room {event.room}"
            yield SendFailed(room=event.room, code="room_in_use", message=why)
            yield Fail(room=event.room, code="room_in_use", message=why)
            return
        known.shaken.add(rank)
        if known.all_of(known.shaken):
            yield event

    def _forget(self, room: int, known: _Room) -> None:
        if known.is_over:
            self._rooms.pop(room, None)


@dataclass(slots=True)
class _Handoff:
    """A rank that has ``arrived`` is as good as drained: nothing can land there any more."""

    arrived: dict[RankPosition, Arrived] = field(default_factory=dict)
    drained: set[RankPosition] = field(default_factory=set)
    over: bool = False


class DecodeConsensus:
    """Hand-offs into one decode DP group of ``ranks``, from ``open`` until arrived or drained everywhere."""

    def __init__(self, ranks: Collection[RankPosition]) -> None:
        self._ranks = frozenset(ranks)
        self._handoffs: dict[int, _Handoff] = {}

    def __len__(self) -> int:
        return len(self._handoffs)

    def open(self, handoff: int) -> None:
        """Every rank is ordered to open ``handoff``."""
        self._handoffs[handoff] = _Handoff()

    def abort(self, handoff: int, code: ErrorCode) -> Iterator[AbortHandoff]:
        """The request is over: what to order. ``Drained`` follows. Nothing for a hand-off that is over already."""
        known = self._handoffs.get(handoff)
        if known is not None and not known.over:
            known.over = True
            yield AbortHandoff(handoff=handoff, code=code)

    def hear(self, rank: RankPosition, event: DecodeEvent) -> Iterator[DecodeEvent | AbortHandoff]:
        """What the group says now that ``rank`` has said ``event``."""
        known = self._handoffs.get(event.handoff)
        if known is None:
            return
        match event:
            case Arrived():
                known.arrived[rank] = event
            case Drained():
                known.drained.add(rank)
            case HandoffFailed(handoff=handoff, code=code) if not known.over:
                known.over = True
                yield event
                yield AbortHandoff(handoff=handoff, code=code)
        if known.arrived.keys() | known.drained >= self._ranks:
            del self._handoffs[event.handoff]
            yield from self._concluded(event.handoff, known)

    def _concluded(self, handoff: int, known: _Handoff) -> Iterator[DecodeEvent]:
        """Nothing can land at any rank any more."""
        said = list(known.arrived.values())
        if known.over or len(said) < len(self._ranks):
            if not known.over:
                message = "its KV was given up by some ranks and not by others"
                yield HandoffFailed(handoff=handoff, code="prefill_failed", message=message)
            yield Drained(handoff=handoff)
        elif len({(one.first_token, one.kv_len) for one in said}) > 1:
            told = sorted({(one.first_token, one.kv_len) for one in said})
            message = f"prefill told its decode ranks different (first token, KV length): {told}"
            yield HandoffFailed(handoff=handoff, code="prefill_failed", message=message)
            yield Drained(handoff=handoff)
        else:
            yield next((one for one in said if one.aux is not None), said[0])


def _named(group: DecodeGroup) -> str:
    return f"{group.instance_id} dp {group.dp} (incarnation {group.incarnation})"
