"""What a prefill rank keeps about its links and rooms, and what its ledger can ask its session to do."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.states import TransferState
from pdcore.errors import ErrorCode

Outcome = Literal["delivered", "failed", "in_doubt"]

ENDED_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class Handshaken:
    """Leg and shake are both here: the scheduler may compute the room."""

    room: int


@dataclass(frozen=True, slots=True)
class Sent:
    """KV and slot are in decode's memory."""

    room: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The leg is over without a hand-off."""

    room: int
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """The write that ``send`` started reads its source blocks no more. Comes once per ``send``; in doubt, only when
    the decode rank is gone."""

    room: int


SendEvent = Handshaken | Sent | SendFailed | WriteEnded


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to the decode rank of one link."""

    token: bytes
    message: wire.ToDecode


@dataclass(frozen=True, slots=True)
class StopWrite:
    """Let the room's write end early, or not start at all."""

    room: int


@dataclass(frozen=True, slots=True)
class Release:
    """No write is left on this lost link: unmap and close."""

    token: bytes


Effect = SendEvent | Say | StopWrite | Release


@dataclass(slots=True)
class Link:
    """One decode rank's memory.

    ``ended`` maps seqs to what is answered about them; ``pinned`` are rooms whose write is in doubt, so that their
    source blocks are held until the link is released.
    """

    token: bytes
    decode: wire.RankIdentity
    shape: RegionShape
    floor: int = 0
    lost: bool = False
    writing: int = 0
    ended: OrderedDict[int, wire.ToDecode] = field(default_factory=OrderedDict)
    in_doubt: set[int] = field(default_factory=set)
    pinned: list[int] = field(default_factory=list)

    def remember(self, message: wire.Accepted | wire.Failed | wire.Drained) -> None:
        """Answer later questions about this seq with ``message``."""
        self.ended[message.seq] = message
        while len(self.ended) > ENDED_MOST:
            self.ended.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Leg:
    """What the leader wants: this prompt, for a decode rank of ``expected_peer`` (None: any)."""

    expected_peer: str | None
    prompt_len: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Shake:
    """What a decode rank wants, checked against its own region."""

    token: bytes
    seq: int
    slot: int
    blocks: tuple[int, ...]
    prompt_len: int
    deadline: float


@dataclass(slots=True)
class Room:
    """One room with at least one half."""

    room: int
    leg: Leg | None = None
    shake: Shake | None = None
    state: TransferState = TransferState.BOOTSTRAPPING
    writing: bool = False

    @property
    def deadline(self) -> float:
        """When the room fails by itself."""
        halves = (self.leg, self.shake)
        return min((half.deadline for half in halves if half is not None), default=math.inf)


@dataclass(frozen=True, slots=True)
class Tomb:
    """Why a room is over."""

    code: ErrorCode
    message: str
    until: float
