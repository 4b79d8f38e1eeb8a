"""Prefill's decisions about rooms: who asked for them, what may be written, what must be said. Pure.

A room has two halves that arrive in any order: the *leg* (the leader wants this prompt computed) and the *shake* (a
decode rank says where the KV goes). A shake without its leg waits in a bounded stash until its own deadline. A room
whose halves both came is WAITING_FOR_INPUT; the scheduler computes it and starts exactly one write.

Per link a *floor* holds the highest seq seen. Nothing at or below it is ever started, so a late or repeated message
cannot bring a room back. Seqs that ended are remembered, bounded, only to answer again; one that is forgotten reads
as "ended", which is what the floor makes of it. A seq is *drained* when every write ever submitted for it returned a
definite result; one in doubt never is, and is remembered as long as its link.

Rooms that ended leave a tombstone (bounded, with a time to live), so that the other half, arriving late, is refused
at once instead of waiting for a deadline.

Mutable state: ``_links``, ``_rooms``, ``_tombs``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.plan import RegionShape, block_problem
from pdcore.engine.transfer.rooms import (
    Effect,
    Handshaken,
    Leg,
    Link,
    Outcome,
    Release,
    Room,
    Say,
    SendFailed,
    Sent,
    Shake,
    StopWrite,
    Tomb,
    WriteEnded,
)
from pdcore.engine.transfer.states import IllegalTransition, TransferEvent, TransferState, advance
from pdcore.errors import ApiError, ErrorCode

TOMBS_MOST: Final = 4096
TOMB_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCounts:
    """``rooms`` have a leg, ``stashed`` only a shake; ``writing`` are submitted and not ended."""

    rooms: int
    stashed: int
    writing: int
    links: int
    tombs: int


class SendLedger:
    """See the module. Methods return the effects in the order in which they must happen."""

    def __init__(self, *, rooms_most: int = 4096, stash_most: int = 4096) -> None:
        self._rooms_most = rooms_most
        self._stash_most = stash_most
        self._links: dict[bytes, Link] = {}
        self._rooms: dict[int, Room] = {}
        self._seqs: dict[tuple[bytes, int], Room] = {}
        self._tombs: OrderedDict[int, Tomb] = OrderedDict()
        self._legs = 0

    def counts(self) -> SendCounts:
        """Sizes of everything this ledger holds."""
        return SendCounts(
            rooms=self._legs,
            stashed=len(self._rooms) - self._legs,
            writing=sum(link.writing for link in self._links.values()),
            links=len(self._links),
            tombs=len(self._tombs),
        )

    def state(self, room: int) -> TransferState | None:
        """Where ``room`` stands, None when there is no such room."""
        found = self._rooms.get(room)
        return None if found is None else found.state

    # Links

    def welcome(self, token: bytes, decode: wire.RankIdentity, shape: RegionShape) -> None:
        """A decode rank whose hello was checked."""
        self._links.setdefault(token, Link(token, decode, shape))

    def is_welcome(self, token: bytes) -> bool:
        """Whether messages of ``token`` are taken."""
        return token in self._links and not self._links[token].lost

    def lost(self, token: bytes, now: float) -> list[Effect]:
        """Decode is gone: its rooms fail; its memory is released when the last write returned."""
        link = self._links.get(token)
        if link is None:
            return [Release(token)]
        link.lost = True
        effects: list[Effect] = []
        for room in [r for r in self._rooms.values() if r.shake is not None and r.shake.token == token]:
            effects += self._fail(room, "decode_failed", f"{link.decode} is gone", now, report=True)
        return effects + self._release(link)

    # Messages of decode ranks; the caller checked ``is_welcome``

    def handshake(self, message: wire.Handshake, now: float) -> list[Effect]:
        """Take a room's destination, once; a seq at or below the floor is only answered."""
        link = self._links[message.token]
        if message.seq <= link.floor:
            return self._answer(link, message.seq)
        link.floor = message.seq
        refusal = self._malformed(link, message) or self._refusal(link, message, now)
        if refusal is not None:
            return [self._refuse(link, message.seq, *refusal)]
        room = self._rooms.setdefault(message.room, Room(message.room))
        room.shake = Shake(
            token=message.token,
            seq=message.seq,
            slot=message.slot,
            blocks=message.groups[0],
            prompt_len=message.prompt_len,
            deadline=now + message.remaining_ms / 1000,
        )
        self._seqs[message.token, message.seq] = room
        accepted = Say(link.token, wire.Accepted(token=link.token, seq=message.seq))
        return [accepted, *self._join(room, now)]

    def query(self, message: wire.Query) -> list[Effect]:
        """Say how the seq is doing. One above the floor was never seen: its handshake is still to come."""
        link = self._links[message.token]
        return self._answer(link, message.seq) if message.seq <= link.floor else []

    def abort(self, message: wire.Abort, now: float) -> list[Effect]:
        """Never start this seq. Answered ``Drained`` when nothing of it is in flight, else when its write ended."""
        link = self._links[message.token]
        link.floor = max(link.floor, message.seq)
        room = self._seqs.get((message.token, message.seq))
        if room is None:
            effects = self._abort_unseen(link, message, now)
            return [*effects, Say(link.token, self._drained(link, message.seq))]
        why = f"{link.decode} gave the request up ({message.code})"
        effects = self._fail(room, message.code, why, now, report=True, notify=False)
        return effects if room.writing else [*effects, Say(link.token, self._drained(link, message.seq))]

    # The leader's leg

    def expect(self, room_id: int, leg: Leg, now: float) -> list[Effect]:
        """The leader wants this room. ``ApiError`` when it is active, over, or too many are."""
        room = self._rooms.get(room_id)
        if room is not None and (room.leg is not None or room.state is TransferState.FAILED):
            raise ApiError("room_in_use", f"room {room_id} is in use", param="bootstrap_room")
        tomb = self._tomb(room_id, now)
        if tomb is not None:
            raise ApiError(tomb.code, tomb.message)
        if self._legs >= self._rooms_most:
            raise ApiError("rate_limited", f"{self._legs} rooms are open", retry_after_s=1)
        room = self._rooms.setdefault(room_id, Room(room_id))
        effects = self._reject_stranger(room, leg)
        room.leg = leg
        self._legs += 1
        return effects + self._join(room, now)

    def start(self, room_id: int, kv_len: int) -> tuple[Shake, RegionShape]:
        """The room's one write begins. ``IllegalTransition`` unless it waits for input."""
        room = self._rooms.get(room_id)
        if room is None or room.shake is None or room.leg is None:
            raise IllegalTransition(f"room {room_id} has no leg and handshake to send for")
        if kv_len != room.shake.prompt_len:
            raise ValueError(f"KV of {kv_len} tokens for a prompt of {room.shake.prompt_len}")
        room.state = advance(room.state, TransferEvent.STARTED)
        room.writing = True
        link = self._links[room.shake.token]
        link.writing += 1
        return room.shake, link.shape

    def write_ended(self, room_id: int, outcome: Outcome, message: str, now: float) -> list[Effect]:
        """Every write of the room returned. ``delivered`` includes the slot; in doubt, the source stays pinned
        until the link is released."""
        room = self._rooms[room_id]
        assert room.shake is not None
        link = self._links[room.shake.token]
        room.writing = False
        link.writing -= 1
        effects: list[Effect] = []
        if outcome == "in_doubt":
            link.in_doubt.add(room.shake.seq)
            link.pinned.append(room_id)
        else:
            effects.append(WriteEnded(room_id))
        if room.state is TransferState.FAILED:
            self._bury(room, "prefill_failed", f"room {room_id} has ended", now)
            return [*effects, *self._after_failure(link, room.shake.seq), *self._release(link)]
        if outcome == "delivered":
            return effects + self._deliver(room, link, now)
        notice = self._fail(room, "prefill_failed", message, now, report=True)
        return [*effects, *notice, *self._release(link)]

    def fail(self, room_id: int, code: ErrorCode, message: str, now: float) -> list[Effect]:
        """The leg is over on our side; the caller knows, so no SendFailed. Also for rooms not heard of yet."""
        room = self._rooms.get(room_id)
        if room is None:
            if self._tomb(room_id, now) is None:
                self._entomb(room_id, code, message, now)
            return []
        return self._fail(room, code, message, now, report=False)

    # Time

    def tick(self, now: float) -> list[Effect]:
        """Rooms past their deadline fail; old tombstones go."""
        effects: list[Effect] = []
        late = [r for r in self._rooms.values() if now >= r.deadline and r.state is not TransferState.FAILED]
        for room in late:
            message = f"room {room.room} was not handed off before its deadline"
            effects += self._fail(room, "deadline_exceeded", message, now, report=True)
        while self._tombs and next(iter(self._tombs.values())).until <= now:
            self._tombs.popitem(last=False)
        return effects

    def next_wake(self) -> float:
        """The earliest instant at which ``tick`` has something to do (infinity: none)."""
        rooms = self._rooms.values()
        return min((r.deadline for r in rooms if r.state is not TransferState.FAILED), default=math.inf)

    # Decisions

    def _malformed(self, link: Link, message: wire.Handshake) -> tuple[ErrorCode, str] | None:
        blocks = message.groups[0]
        needed = link.shape.layout.blocks_for(message.prompt_len)
        if message.slot >= link.shape.slots:
            return "prefill_failed", f"slot {message.slot} is outside 0..{link.shape.slots - 1}"
        if len(blocks) != needed:
            return "prefill_failed", f"{message.prompt_len} tokens need {needed} blocks, not {len(blocks)}"
        problem = block_problem(blocks, link.shape.blocks[0])
        return None if problem is None else ("prefill_failed", problem)

    def _refusal(self, link: Link, message: wire.Handshake, now: float) -> tuple[ErrorCode, str] | None:
        tomb = self._tomb(message.room, now)
        if tomb is not None:
            return tomb.code, tomb.message
        room = self._rooms.get(message.room)
        if room is None:
            full = len(self._rooms) - self._legs >= self._stash_most
            return ("peer_backlog", "too many handshakes wait for their leg") if full else None
        if room.shake is not None or room.state is TransferState.FAILED:
            return "room_in_use", f"room {message.room} is in use"
        if room.leg is not None and not _is_expected(room.leg, link):
            return "prefill_failed", f"room {message.room} is for decode incarnation {room.leg.expected_peer}"
        return None

    def _reject_stranger(self, room: Room, leg: Leg) -> list[Effect]:
        if room.shake is None or _is_expected(leg, self._links[room.shake.token]):
            return []
        shake, link = room.shake, self._links[room.shake.token]
        room.shake = None
        del self._seqs[shake.token, shake.seq]
        why = f"room {room.room} is for decode incarnation {leg.expected_peer}"
        return [self._refuse(link, shake.seq, "prefill_failed", why)]

    def _join(self, room: Room, now: float) -> list[Effect]:
        if room.leg is None or room.shake is None:
            return []
        ours, theirs = room.leg.prompt_len, room.shake.prompt_len
        if ours != theirs:
            message = f"the prompt has {ours} tokens for prefill and {theirs} for decode"
            return self._fail(room, "prefill_failed", message, now, report=True)
        room.state = advance(room.state, TransferEvent.HANDSHAKEN)
        return [Handshaken(room.room)]

    def _deliver(self, room: Room, link: Link, now: float) -> list[Effect]:
        assert room.shake is not None
        room.state = advance(room.state, TransferEvent.DELIVERED)
        link.remember(wire.Accepted(token=link.token, seq=room.shake.seq))
        self._bury(room, "room_in_use", f"room {room.room} was handed off already", now)
        return [Sent(room.room), *self._release(link)]

    def _abort_unseen(self, link: Link, message: wire.Abort, now: float) -> list[Effect]:
        """The aborted handshake never came: a leg that waits for it fails now, one that comes later at once."""
        if message.seq in link.ended or message.seq in link.in_doubt:
            return []
        room = self._rooms.get(message.room)
        why = f"{link.decode} gave the request up ({message.code})"
        if room is None:
            return self.fail(message.room, message.code, why, now)
        if room.shake is None and room.leg is not None and _is_expected(room.leg, link):
            return self._fail(room, message.code, why, now, report=True)
        return []

    def _fail(
        self, room: Room, code: ErrorCode, message: str, now: float, *, report: bool, notify: bool = True
    ) -> list[Effect]:
        """Fail a room once. ``report`` tells the caller, ``notify`` tells decode."""
        if room.state is TransferState.FAILED:
            return []
        room.state = advance(room.state, TransferEvent.FAILED)
        effects: list[Effect] = []
        if report and room.leg is not None:
            effects.append(SendFailed(room.room, code, message))
        if notify and room.shake is not None:
            effects += self._notify(room, room.shake, code, message)
        if room.writing:
            return [*effects, StopWrite(room.room)]
        self._bury(room, code, message, now)
        return effects

    def _notify(self, room: Room, shake: Shake, code: ErrorCode, message: str) -> list[Effect]:
        link = self._links[shake.token]
        in_doubt = shake.seq in link.in_doubt
        notice = wire.Failed(
            token=link.token,
            seq=shake.seq,
            code=code,
            message=wire.short(message),
            drained=not room.writing and not in_doubt,
            in_doubt=in_doubt,
        )
        link.remember(notice)
        return [] if link.lost else [Say(link.token, notice)]

    def _refuse(self, link: Link, seq: int, code: ErrorCode, message: str) -> Effect:
        notice = wire.Failed(token=link.token, seq=seq, code=code, message=wire.short(message), drained=True)
        link.remember(notice)
        return Say(link.token, notice)

    def _answer(self, link: Link, seq: int) -> list[Effect]:
        if seq in link.ended:
            return [Say(link.token, link.ended[seq])]
        if (link.token, seq) in self._seqs:
            return [Say(link.token, wire.Accepted(token=link.token, seq=seq))]
        if seq in link.in_doubt:
            return [Say(link.token, self._drained(link, seq))]
        return [self._refuse(link, seq, "prefill_failed", f"seq {seq} is not known here any more")]

    def _after_failure(self, link: Link, seq: int) -> list[Effect]:
        answer = self._drained(link, seq)
        link.remember(answer)
        return [] if link.lost else [Say(link.token, answer)]

    def _drained(self, link: Link, seq: int) -> wire.Drained:
        return wire.Drained(token=link.token, seq=seq, in_doubt=seq in link.in_doubt)

    def _release(self, link: Link) -> list[Effect]:
        if not link.lost or link.writing or link.token not in self._links:
            return []
        del self._links[link.token]
        return [Release(link.token), *(WriteEnded(room) for room in link.pinned)]

    def _bury(self, room: Room, code: ErrorCode, message: str, now: float) -> None:
        del self._rooms[room.room]
        self._legs -= room.leg is not None
        if room.shake is not None:
            del self._seqs[room.shake.token, room.shake.seq]
        self._entomb(room.room, code, message, now)

    def _entomb(self, room_id: int, code: ErrorCode, message: str, now: float) -> None:
        self._tombs[room_id] = Tomb(code, message, now + TOMB_S)
        while len(self._tombs) > TOMBS_MOST:
            self._tombs.popitem(last=False)

    def _tomb(self, room_id: int, now: float) -> Tomb | None:
        tomb = self._tombs.get(room_id)
        return tomb if tomb is not None and tomb.until > now else None


def _is_expected(leg: Leg, link: Link) -> bool:
    return leg.expected_peer is None or leg.expected_peer == link.decode.incarnation
