"""What a prefill rank keeps about one decode rank: who it is, and what was and must be said to it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.failures import Reason
from pdcore.engine.transfer.mapping import GroupRank
from pdcore.engine.transfer.orders import DecodeGroup
from pdcore.engine.transfer.plan import RegionShape
from pdcore.errors import ErrorCode

ENDED_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to the decode rank of one link."""

    token: bytes
    message: wire.ToDecode


@dataclass(frozen=True, slots=True)
class Pair:
    """What hello settled about a link: who is there, and which ranks of its group this prefill rank writes to."""

    decode: wire.RankIdentity
    group: DecodeGroup
    destinations: frozenset[GroupRank]
    shape: RegionShape

    @property
    def rank(self) -> GroupRank:
        """Where the decode rank stands in its group."""
        return GroupRank(self.decode.cp, self.decode.tp)


@dataclass(slots=True)
class Link:
    """One decode rank's memory.

    ``ended`` maps seqs to what is answered about them; ``pinned`` are rooms whose write is in doubt, so that their
    source blocks are held until the link is released. ``heard_at`` is when decode last said anything.
    """

    token: bytes
    pair: Pair
    heard_at: float
    floor: int = 0
    lost: bool = False
    writing: int = 0
    ended: OrderedDict[int, wire.ToDecode] = field(default_factory=OrderedDict)
    in_doubt: set[int] = field(default_factory=set)
    pinned: list[int] = field(default_factory=list)

    def delivered(self, seq: int) -> None:
        """KV and slot of ``seq`` are there."""
        self._remember(seq, wire.Accepted(token=self.token, seq=seq))

    def failed(
        self, seq: int, code: ErrorCode, reason: Reason, message: str, *, writing: bool = False
    ) -> list[Say]:
        """``seq`` will not be delivered: say so, unless nobody is left to hear it."""
        in_doubt = seq in self.in_doubt
        notice = wire.Failed(
            token=self.token,
            seq=seq,
            code=code,
            reason=reason,
            message=wire.short(message),
            drained=not writing and not in_doubt,
            in_doubt=in_doubt,
        )
        return self._remember(seq, notice)

    def concluded(self, seq: int) -> list[Say]:
        """The write of a failed ``seq`` ended: what became of its memory."""
        return self._remember(seq, self._drained(seq))

    def drained(self, seq: int) -> Say:
        """The answer to an abort of a seq that is not being written."""
        return Say(self.token, self._drained(seq))

    def accepted(self, seq: int) -> Say:
        """The answer to a handshake that was taken."""
        return Say(self.token, wire.Accepted(token=self.token, seq=seq))

    def last_word(self, seq: int) -> list[Say]:
        """The answer about a seq at or below the floor that no room waits with."""
        if seq in self.ended:
            return [Say(self.token, self.ended[seq])]
        if seq in self.in_doubt:
            return [self.drained(seq)]
        return self.failed(seq, "prefill_failed", "handshake", f"seq {seq} is not known here any more")

    def _drained(self, seq: int) -> wire.Drained:
        return wire.Drained(token=self.token, seq=seq, in_doubt=seq in self.in_doubt)

    def _remember(self, seq: int, message: wire.ToDecode) -> list[Say]:
        self.ended[seq] = message
        while len(self.ended) > ENDED_MOST:
            self.ended.popitem(last=False)
        return [] if self.lost else [Say(self.token, message)]
