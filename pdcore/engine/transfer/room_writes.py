"""What becomes of a room's writes: who may still read its source, and what each end means for the room. Pure.

Over each link of a room one write is under way at a time. A prompt that is still computed is written *ahead*, block by
full block; what became ready during a write goes with the next one, and the last one, which signs the slot, begins when
every one before it has returned. With all of the prompt on its way when its first token is there, nothing but the slot
is left for the last one, and a write that is still under way may sign it itself.

A room is *pinned* from its first write until none can read its source blocks any more: each link's pin goes when its
last write returned with a definite result, when the room failed and none is under way, or when the link itself is
released. A write in doubt keeps it until then. The first write or link that fails ends the room for all.

Mutable state: ``_pins`` (per room, the links whose writes may still read its source blocks); ``rooms`` and ``links``
are the ledger's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcore.engine.transfer.failures import Reason
from pdcore.engine.transfer.links import Link
from pdcore.engine.transfer.orders import SendFailed, Sent, WriteEnded
from pdcore.engine.transfer.rooms import (
    Count,
    Effect,
    Outcome,
    Release,
    Room,
    Rooms,
    Shake,
    Sign,
    StopWrite,
    Write,
)
from pdcore.engine.transfer.states import IllegalTransition, TransferEvent, TransferState, advance
from pdcore.errors import ErrorCode

_HANDED_OFF: Final[tuple[ErrorCode, str, Reason]] = (
    "room_in_use",
    "the room was handed off already",
    "admission",
)


class RoomWrites:
    """See the module."""

    def __init__(self, rooms: Rooms, links: dict[bytes, Link]) -> None:
        self._rooms = rooms
        self._links = links
        self._pins: dict[int, set[bytes]] = {}

    @property
    def pinned(self) -> int:
        """Rooms whose source may be read."""
        return len(self._pins)

    def reads(self, room_id: int) -> bool:
        """Whether a write may still read the room's source."""
        return room_id in self._pins

    def send_ahead(self, room_id: int, kv_len: int, computed: int) -> list[Write | Sign]:
        """The KV of so many tokens is there, and more is computed. ``IllegalTransition`` unless the room waits for it."""
        room = self._awaited(room_id, kv_len)
        state = room.state
        if state is not TransferState.SENDING_AHEAD:
            state = advance(state, TransferEvent.BEGUN_AHEAD)
        if not room.ready < computed <= kv_len:
            raise ValueError(f"KV of {computed} of {kv_len} tokens cannot be sent ahead after {room.ready}")
        room.state = state
        return self._go_on(room, computed)

    def start(self, room_id: int, kv_len: int) -> list[Write | Sign]:
        """All KV is there, and the first token. ``IllegalTransition`` unless the room waits for it."""
        room = self._awaited(room_id, kv_len)
        room.state = advance(room.state, TransferEvent.STARTED)
        return self._go_on(room, kv_len)

    def has_nothing_to_send(self, room_id: int, now: float, *, ahead: bool) -> bool:
        """Whether the room is over, or no decode rank needs this rank's KV; unless ``ahead`` that ends it as well."""
        room = self._rooms.get(room_id)
        if room is not None and not room.shakes:
            if not ahead:
                self._rooms.bury(room, *_HANDED_OFF, now)
            return True
        return room is None or room.is_over

    def ended(self, room_id: int, token: bytes, outcome: Outcome, message: str, now: float) -> list[Effect]:
        """The room's write over this link returned. In doubt, the source stays pinned until the link is released."""
        room = self._rooms.get(room_id)
        assert room is not None, "a room stays until its writes have ended"
        [shake] = room.over(token)
        link = shake.link
        shake.writing = False
        link.writing -= 1
        if outcome == "written" and not room.is_over:
            return list(self._begin(room, shake))
        effects: list[Effect] = []
        if outcome == "in_doubt":
            link.in_doubt.add(shake.seq)
            link.pinned.append(room_id)
        else:
            effects += self._unpin(room_id, token)
        if room.state is TransferState.FAILED:
            effects += link.concluded(shake.seq)
            self._bury_if_still(room, now)
        elif outcome == "delivered":
            effects += self._deliver(room, shake, now)
        else:
            reason: Reason = "in_doubt" if outcome == "in_doubt" else "failed"
            effects += self.fail(room, "prefill_failed", message, reason, now, report=True, blamed=link)
        return effects + self.release(link)

    def fail(
        self,
        room: Room,
        code: ErrorCode,
        message: str,
        reason: Reason,
        now: float,
        *,
        report: bool,
        told: Shake | None = None,
        blamed: Link | None = None,
    ) -> list[Effect]:
        """Fail a room once. ``report`` tells the caller; every decode rank but ``told`` hears of it."""
        if room.is_over:
            return []
        room.state = advance(room.state, TransferEvent.FAILED)
        room.why = (code, message, reason)
        effects: list[Effect] = []
        if room.leg is not None:
            effects.append(Count(reason, blamed.pair.decode.place if blamed is not None else ""))
            effects += [SendFailed(room=room.room, code=code, message=message)] if report else []
        for shake in room.shakes.values():
            if shake is not told and not shake.sent:
                effects += shake.link.failed(shake.seq, code, reason, message, writing=shake.writing)
        effects += [StopWrite(room.room, one.link.token) for one in room.shakes.values() if one.writing]
        effects += self._unpin_still(room)
        self._bury_if_still(room, now)
        return effects

    def fail_link(self, link: Link, reason: Reason, why: str, now: float) -> list[Effect]:
        """The decode rank of ``link`` ``why``, a predicate: every room that it asked for fails."""
        message = f"{link.pair.decode} {why}"
        rooms = [room for room in self._rooms if any(room.over(link.token))]
        effects: list[Effect] = []
        for room in rooms:
            effects += self.fail(room, "decode_failed", message, reason, now, report=True, blamed=link)
        return effects

    def release(self, link: Link) -> list[Effect]:
        """Let go of a lost link over which nothing is being written, and of what it held in doubt."""
        if not link.lost or link.writing or link.token not in self._links:
            return []
        del self._links[link.token]
        unpinned = [effect for room in link.pinned for effect in self._unpin(room, link.token)]
        return [Release(link.token), *unpinned]

    def _deliver(self, room: Room, shake: Shake, now: float) -> list[Effect]:
        shake.sent = True
        shake.link.delivered(shake.seq)
        if not all(one.sent for one in room.shakes.values()):
            return []
        room.state = advance(room.state, TransferEvent.DELIVERED)
        self._rooms.bury(room, *_HANDED_OFF, now)
        return [Sent(room=room.room)]

    def _awaited(self, room_id: int, kv_len: int) -> Room:
        """The room, if its KV can be written."""
        room = self._rooms.get(room_id)
        if room is None or room.leg is None:
            raise IllegalTransition(f"room {room_id} has no leg and handshakes to send for")
        if kv_len != room.leg.prompt_len:
            raise ValueError(f"KV of {kv_len} tokens for a prompt of {room.leg.prompt_len}")
        return room

    def _go_on(self, room: Room, ready: int) -> list[Write | Sign]:
        """More is ready: write it wherever nothing is under way."""
        room.ready = ready
        self._pins.setdefault(room.room, {shake.link.token for shake in room.shakes.values()})
        return [write for shake in room.shakes.values() for write in self._begin(room, shake)]

    def _begin(self, room: Room, shake: Shake) -> Iterator[Write | Sign]:
        """The next write over a link, if there is something to write and none is under way."""
        is_last = room.state is TransferState.TRANSFERRING
        if shake.writing:
            if is_last and shake.begun == room.ready:
                yield Sign(room.room, shake)
        elif is_last or shake.begun < room.ready:
            yield Write(room.room, shake, range(shake.begun, room.ready))
            shake.begun, shake.writing = room.ready, True
            shake.link.writing += 1

    def _unpin_still(self, room: Room) -> list[Effect]:
        """A room that failed begins no further write, so that only those under way or in doubt still read its source."""
        still = [one for one in room.shakes.values() if not one.writing and one.seq not in one.link.in_doubt]
        return [effect for one in still for effect in self._unpin(room.room, one.link.token)]

    def _unpin(self, room_id: int, token: bytes) -> list[Effect]:
        pins = self._pins.get(room_id, set())
        if token not in pins:
            return []
        pins.discard(token)
        if pins:
            return []
        del self._pins[room_id]
        return [WriteEnded(room=room_id)]

    def _bury_if_still(self, room: Room, now: float) -> None:
        if not room.writing:
            self._rooms.bury(room, *room.why, now)
