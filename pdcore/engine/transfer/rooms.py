"""What a prefill rank keeps about its rooms, and what its ledger can ask its session to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.transfer.failures import Reason
from pdcore.engine.transfer.links import Link, Pair, Say
from pdcore.engine.transfer.mapping import GroupRank
from pdcore.engine.transfer.orders import Handshaken, SendFailed, Sent, WriteEnded
from pdcore.engine.transfer.states import Deadline, TransferState, is_final, runs_in
from pdcore.engine.transfer.tombs import Tombs
from pdcore.errors import ErrorCode

Outcome = Literal["written", "delivered", "failed", "in_doubt"]
"""How a write ended. ``written``: a part that was sent ahead is there; ``delivered``: everything is, slot included."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write over the shake's link the blocks that ``tokens`` have filled, and with the last token all that is left."""

    room: int
    shake: Shake
    tokens: range


@dataclass(frozen=True, slots=True)
class Sign:
    """The write under way over the shake's link is the last one: it may sign the slot as well, unless it has ended."""

    room: int
    shake: Shake


@dataclass(frozen=True, slots=True)
class StopWrite:
    """Let the room's write over this link end early, or not start at all."""

    room: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Release:
    """No write is left on this lost link: unmap and close."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Count:
    """A leg failed for ``reason``; ``peer`` is the decode rank to blame, if one is."""

    reason: Reason
    peer: str = ""


Effect = Handshaken | WriteEnded | Sent | SendFailed | Say | Write | Sign | StopWrite | Release | Count


@dataclass(frozen=True, slots=True)
class Leg:
    """What the leader wants: this prompt, for a decode rank of ``expected_peer`` (None: any)."""

    expected_peer: str | None
    prompt_len: int
    deadline: float

    def welcomes(self, link: Link) -> bool:
        """Whether it may be that decode rank which asks."""
        return self.expected_peer is None or self.expected_peer == link.pair.decode.incarnation

    def refusal_of(self, room: Room) -> str:
        """What a decode rank is told that is not welcome."""
        return f"room {room.room} is for decode incarnation {self.expected_peer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCounts:
    """``rooms`` have a leg, ``stashed`` only shakes; ``writing`` are submitted and not ended; ``pinned`` rooms may be
    read by a write."""

    rooms: int
    stashed: int
    writing: int
    pinned: int
    links: int
    tombs: int


@dataclass(slots=True, kw_only=True)
class Shake:
    """What one decode rank wants, checked against its own region. ``writing``: a write of it was submitted and has not
    ended, and ``begun`` are the tokens up to which it goes; ``sent``: KV and slot are there."""

    link: Link
    seq: int
    slot: int
    blocks: BlockLists
    prompt_len: int
    deadline: float
    begun: int = 0
    writing: bool = False
    sent: bool = False


@dataclass(slots=True)
class Room:
    """One room with at least one half. ``shakes`` are all of one decode group, by the rank that sent them; the KV of its
    first ``ready`` tokens may be written; ``why`` is set when the room fails."""

    room: int
    leg: Leg | None = None
    shakes: dict[GroupRank, Shake] = field(default_factory=dict)
    state: TransferState = TransferState.BOOTSTRAPPING
    ready: int = 0
    why: tuple[ErrorCode, str, Reason] = ("prefill_failed", "", "failed")

    @property
    def is_over(self) -> bool:
        """Whether the leg has ended; a write may be under way still."""
        return is_final(self.state)

    @property
    def deadline(self) -> float:
        """When the room fails by itself."""
        if not runs_in(self.state, Deadline.REQUEST):
            return math.inf
        halves = (self.leg, *self.shakes.values())
        return min((half.deadline for half in halves if half is not None), default=math.inf)

    @property
    def pair(self) -> Pair | None:
        """Any of the links that asked; they agree about the group."""
        return next((shake.link.pair for shake in self.shakes.values()), None)

    @property
    def is_complete(self) -> bool:
        """Whether the leg and every decode rank that needs a part of our KV are here."""
        pair = self.pair
        return self.leg is not None and pair is not None and self.shakes.keys() >= pair.destinations

    @property
    def writing(self) -> bool:
        """Whether any write is under way."""
        return any(shake.writing for shake in self.shakes.values())

    def over(self, token: bytes) -> Iterator[Shake]:
        """What was asked over this link: one shake at most."""
        return (shake for shake in self.shakes.values() if shake.link.token == token)


def unexpected(room: int, code: ErrorCode, message: str, reason: Reason) -> list[Effect]:
    """The answer to a leg that is not taken."""
    return [Count(reason), SendFailed(room=room, code=code, message=message)]


class Rooms:
    """The rooms of one prefill rank that are not over, by room and by seq, and the tombs of those that are."""

    def __init__(self) -> None:
        self._rooms: dict[int, Room] = {}
        self._seqs: dict[tuple[bytes, int], Room] = {}
        self.tombs = Tombs()
        self.legs = 0

    def __iter__(self) -> Iterator[Room]:
        return iter(list(self._rooms.values()))

    @property
    def stashed(self) -> int:
        """Rooms without a leg."""
        return len(self._rooms) - self.legs

    def get(self, room: int) -> Room | None:
        """The room, unless it is over or unknown."""
        return self._rooms.get(room)

    def of(self, token: bytes, seq: int) -> Room | None:
        """The room that this seq is of, unless it is over or unknown."""
        return self._seqs.get((token, seq))

    def expect(self, room_id: int, leg: Leg) -> Room:
        """The room, with its leg."""
        room = self._rooms.setdefault(room_id, Room(room_id))
        room.leg = leg
        self.legs += 1
        return room

    def ask(self, room_id: int, shake: Shake) -> Room:
        """The room, with one more shake."""
        room = self._rooms.setdefault(room_id, Room(room_id))
        room.shakes[shake.link.pair.rank] = shake
        self._seqs[shake.link.token, shake.seq] = room
        return room

    def refuse(self, room: Room, shake: Shake) -> None:
        """Let go of one shake; the room waits on."""
        del room.shakes[shake.link.pair.rank], self._seqs[shake.link.token, shake.seq]

    def bury(self, room: Room, code: ErrorCode, message: str, reason: Reason, now: float) -> None:
        """The room is over, and so are its seqs."""
        del self._rooms[room.room]
        self.legs -= room.leg is not None
        for shake in room.shakes.values():
            del self._seqs[shake.link.token, shake.seq]
        self.tombs.put(room.room, code, message, reason, now)

    def waited_for(self) -> list[Link]:
        """Links of shakes in states in which a peer's silence counts."""
        rooms = (room for room in self._rooms.values() if runs_in(room.state, Deadline.SILENCE))
        links = {shake.link.token: shake.link for room in rooms for shake in room.shakes.values()}
        return list(links.values())
