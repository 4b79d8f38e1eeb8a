"""Prefill's decisions about rooms: who asked for them, what may be written, what must be said. Pure.

A room has two halves that arrive in any order: the *leg* (the leader wants this prompt computed) and one *shake* from
each decode rank that needs a part of this rank's KV (it says where that goes). All shakes of a room come from one DP
group of one decode incarnation. Shakes without their leg wait in a bounded stash until their own deadline. A room
whose halves all came is WAITING_FOR_INPUT; the scheduler computes it and starts one write per shake, or several when
it sends ahead. The first shake, write or link that fails ends the room for all.

Per link a *floor* holds the highest seq seen. Nothing at or below it is ever started, so a late or repeated message
cannot bring a room back. Seqs that ended are remembered, bounded, only to answer again; one that is forgotten reads
as "ended", which is what the floor makes of it. A seq is *drained* when every write ever submitted for it returned a
definite result; one in doubt never is, and is remembered as long as its link.

Mutable state: ``_links``, ``_rooms`` (with the tombs of those that ended), and that of ``_writes``.
"""

from __future__ import annotations

import math
from typing import Final

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.failures import Reason, given_up
from pdcore.engine.transfer.greeting import handshake_problem
from pdcore.engine.transfer.links import Link, Pair, Say
from pdcore.engine.transfer.orders import Handshaken
from pdcore.engine.transfer.room_writes import RoomWrites
from pdcore.engine.transfer.rooms import (
    Effect,
    Leg,
    Outcome,
    Release,
    Room,
    Rooms,
    SendCounts,
    Shake,
    Sign,
    Write,
    unexpected,
)
from pdcore.engine.transfer.states import (
    TransferEvent,
    TransferState,
    advance,
)
from pdcore.errors import ErrorCode

SILENCE_S: Final = 20.0


class SendLedger:
    """See the module. Methods return the effects in the order in which they must happen."""

    def __init__(
        self, *, rooms_most: int = 4096, stash_most: int = 4096, silence_s: float = SILENCE_S
    ) -> None:
        self._rooms_most = rooms_most
        self._stash_most = stash_most
        self._silence_s = silence_s
        self._links: dict[bytes, Link] = {}
        self._rooms = Rooms()
        self._writes = RoomWrites(self._rooms, self._links)
        self._wake_at = math.inf

    def counts(self) -> SendCounts:
        """Sizes of everything this ledger holds."""
        return SendCounts(
            rooms=self._rooms.legs,
            stashed=self._rooms.stashed,
            writing=sum(link.writing for link in self._links.values()),
            pinned=self._writes.pinned,
            links=len(self._links),
            tombs=len(self._rooms.tombs),
        )

    def state(self, room: int) -> TransferState | None:
        """Where ``room`` stands, None when there is no such room."""
        found = self._rooms.get(room)
        return None if found is None else found.state

    def destinations(self, room: int) -> list[bytes]:
        """The links over which ``room`` is to be sent."""
        found = self._rooms.get(room)
        return [] if found is None else [shake.link.token for shake in found.shakes.values()]

    # Links

    def welcome(self, token: bytes, pair: Pair, now: float) -> None:
        """A decode rank whose hello was checked."""
        self._links.setdefault(token, Link(token, pair, heard_at=now))

    def heard(self, token: bytes, now: float) -> bool:
        """Whether messages of ``token`` are taken; if so, it is alive."""
        link = self._links.get(token)
        if link is None or link.lost:
            return False
        link.heard_at = now
        return True

    def begin_probe(self, token: bytes, seq: int, probe: int) -> bool:
        """Whether a record of this seq may be written there, now and never again; ``probe_ended`` follows."""
        link = self._links[token]
        if seq <= link.floor or probe >= link.pair.shape.probes:
            return False
        link.floor = seq
        link.writing += 1
        return True

    def probe_ended(self, token: bytes) -> list[Effect]:
        """The probe's write returned."""
        link = self._links[token]
        link.writing -= 1
        return self._writes.release(link)

    def lost(self, token: bytes, now: float) -> list[Effect]:
        """Decode is gone: its rooms fail; its memory is released when the last write returned."""
        link = self._links.get(token)
        if link is None:
            return [Release(token)]
        link.lost = True
        return [*self._writes.fail_link(link, "gone", "is gone", now), *self._writes.release(link)]

    # Messages of decode ranks; the caller asked ``heard``

    def handshake(self, message: wire.Handshake, now: float) -> list[Effect]:
        """Take a room's destination, once; a seq at or below the floor is only answered."""
        link = self._links[message.token]
        if message.seq <= link.floor:
            return [*self._answer(link, message.seq)]
        link.floor = message.seq
        refusal = self._refusal(link, message, now)
        if refusal is not None:
            code, why, reason = refusal
            return [*link.failed(message.seq, code, reason, why)]
        shake = Shake(
            link=link,
            seq=message.seq,
            slot=message.slot,
            blocks=message.groups,
            prompt_len=message.prompt_len,
            deadline=now + message.remaining_ms / 1000,
        )
        room = self._rooms.ask(message.room, shake)
        self._wake_at = min(self._wake_at, shake.deadline, link.heard_at + self._silence_s)
        return [link.accepted(message.seq), *self._join(room, now)]

    def beat(self, message: wire.Beat) -> list[Effect]:
        """Answer, and say the last word again about what is over. A seq above the floor is still to come."""
        link = self._links[message.token]
        effects: list[Effect] = [Say(link.token, wire.Alive(token=link.token))]
        for seq in message.seqs:
            if seq in link.ended or (seq <= link.floor and self._rooms.of(link.token, seq) is None):
                effects += link.last_word(seq)
        return effects

    def abort(self, message: wire.Abort, now: float) -> list[Effect]:
        """Never start this seq. Answered ``Drained`` when nothing of it is in flight, else when its write ended."""
        link = self._links[message.token]
        link.floor = max(link.floor, message.seq)
        room = self._rooms.of(message.token, message.seq)
        if room is None:
            effects = self._abort_unseen(link, message, now)
            return [*effects, link.drained(message.seq)]
        [shake] = room.over(message.token)
        drained = not shake.writing
        why = f"{link.pair.decode} gave the request up ({message.code})"
        effects = self._writes.fail(
            room, message.code, why, given_up(message.code), now, report=True, told=shake
        )
        return [*effects, link.drained(message.seq)] if drained else effects

    # The leader's leg

    def expect(self, room_id: int, leg: Leg, now: float) -> list[Effect]:
        """The leader wants this room; ``SendFailed`` when it is active, over, or too many are."""
        if not 1 <= room_id <= wire.MAX_ROOM:
            outside = f"bootstrap_room {room_id} is outside 1..2^63-1"
            return unexpected(room_id, "invalid_request", outside, "admission")
        room = self._rooms.get(room_id)
        if self._writes.reads(room_id) or (room is not None and (room.leg is not None or room.is_over)):
            return unexpected(room_id, "room_in_use", f"room {room_id} is in use", "admission")
        tomb = self._rooms.tombs.get(room_id, now)
        if tomb is not None:
            return unexpected(room_id, tomb.code, tomb.message, tomb.reason)
        if self._rooms.legs >= self._rooms_most:
            return unexpected(room_id, "rate_limited", f"{self._rooms.legs} rooms are open", "admission")
        effects = self._reject_strangers(room, leg) if room is not None else []
        self._wake_at = min(self._wake_at, leg.deadline)
        return effects + self._join(self._rooms.expect(room_id, leg), now)

    def send_ahead(self, room_id: int, kv_len: int, computed: int) -> list[Write | Sign]:
        """Full blocks of what is computed may be written, over every link over which nothing is. ``IllegalTransition``
        unless the room waits for input or is sent ahead; ``ValueError`` unless ``computed`` grows."""
        return self._writes.send_ahead(room_id, kv_len, computed)

    def start(self, room_id: int, kv_len: int) -> list[Write | Sign]:
        """The last writes begin, one per shake; where one is under way still, when that has ended.
        ``IllegalTransition`` unless the room waits for input or is sent ahead."""
        return self._writes.start(room_id, kv_len)

    def has_nothing_to_send(self, room_id: int, now: float, *, ahead: bool = False) -> bool:
        """Whether the room has ended already, or no decode rank needs this rank's KV: then it ends here, unless the
        rest is still computed."""
        return self._writes.has_nothing_to_send(room_id, now, ahead=ahead)

    def write_ended(
        self, room_id: int, token: bytes, outcome: Outcome, message: str, now: float
    ) -> list[Effect]:
        """The room's write over this link returned; what became ready meanwhile is written next. In doubt, the source
        stays pinned until the link is released."""
        return self._writes.ended(room_id, token, outcome, message, now)

    def fail(self, room_id: int, code: ErrorCode, message: str, now: float) -> list[Effect]:
        """The leg is over on our side; the caller knows, so no SendFailed. Also for rooms not heard of yet."""
        room = self._rooms.get(room_id)
        if room is None:
            if self._rooms.tombs.get(room_id, now) is None:
                self._rooms.tombs.put(room_id, code, message, given_up(code), now)
            return []
        return self._writes.fail(room, code, message, given_up(code), now, report=False)

    # Time

    def tick(self, now: float) -> list[Effect]:
        """Rooms past their deadline and rooms of silent decode ranks fail; old tombstones go."""
        self._rooms.tombs.expire(now)
        if now < self._wake_at:
            return []
        effects: list[Effect] = []
        for room in [room for room in self._rooms if now >= room.deadline]:
            message = f"room {room.room} was not handed off before its deadline"
            effects += self._writes.fail(room, "deadline_exceeded", message, "deadline", now, report=True)
        for link in self._rooms.waited_for():
            if now >= link.heard_at + self._silence_s:
                why = f"has said nothing for {self._silence_s:g} s"
                effects += self._writes.fail_link(link, "silent", why, now)
        deadlines = [room.deadline for room in self._rooms]
        silences = [link.heard_at + self._silence_s for link in self._rooms.waited_for()]
        self._wake_at = min([*deadlines, *silences], default=math.inf)
        return effects

    def next_wake(self) -> float:
        """An instant before which ``tick`` has nothing to do (infinity: none)."""
        return self._wake_at

    # Decisions

    def _refusal(
        self, link: Link, message: wire.Handshake, now: float
    ) -> tuple[ErrorCode, str, Reason] | None:
        problem = handshake_problem(message, link.pair.shape)
        if problem is not None:
            return "prefill_failed", problem, "handshake"
        tomb = self._rooms.tombs.get(message.room, now)
        if tomb is not None:
            return tomb.code, tomb.message, tomb.reason
        room = self._rooms.get(message.room)
        if room is None:
            full = self._rooms.stashed >= self._stash_most
            return ("peer_backlog", "too many handshakes wait for their leg", "admission") if full else None
        foreign = room.pair is not None and room.pair.group != link.pair.group
        if foreign or link.pair.rank in room.shakes or room.is_over:
            return "room_in_use", f"room {message.room} is in use", "admission"
        if room.leg is not None and not room.leg.welcomes(link):
            return "prefill_failed", room.leg.refusal_of(room), "handshake"
        return None

    def _reject_strangers(self, room: Room, leg: Leg) -> list[Effect]:
        strangers = [shake for shake in room.shakes.values() if not leg.welcomes(shake.link)]
        for shake in strangers:
            self._rooms.refuse(room, shake)
        why = leg.refusal_of(room)
        return [
            effect
            for one in strangers
            for effect in one.link.failed(one.seq, "prefill_failed", "handshake", why)
        ]

    def _join(self, room: Room, now: float) -> list[Effect]:
        if room.leg is None or room.pair is None:
            return []
        ours = room.leg.prompt_len
        for shake in room.shakes.values():
            if shake.prompt_len != ours:
                message = f"the prompt has {ours} tokens for prefill and {shake.prompt_len} for decode"
                return self._writes.fail(room, "prefill_failed", message, "handshake", now, report=True)
        if not room.is_complete:
            return []
        room.state = advance(room.state, TransferEvent.HANDSHAKEN)
        return [Handshaken(room=room.room, decode=room.pair.group)]

    def _abort_unseen(self, link: Link, message: wire.Abort, now: float) -> list[Effect]:
        """The aborted handshake never came: a leg that waits for it fails now, one that comes later at once."""
        if message.seq in link.ended or message.seq in link.in_doubt:
            return []
        room = self._rooms.get(message.room)
        why = f"{link.pair.decode} gave the request up ({message.code})"
        if room is None:
            return self.fail(message.room, message.code, why, now)
        waits = link.pair.rank not in room.shakes and (
            room.pair is None or room.pair.group == link.pair.group
        )
        if waits and not room.is_over and room.leg is not None and room.leg.welcomes(link):
            return self._writes.fail(room, message.code, why, given_up(message.code), now, report=True)
        return []

    def _answer(self, link: Link, seq: int) -> list[Say]:
        live = self._rooms.of(link.token, seq) is not None and seq not in link.ended
        return [link.accepted(seq)] if live else link.last_word(seq)
