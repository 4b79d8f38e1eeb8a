"""Decode's decisions about its open hand-offs. Pure: messages and instants in, effects out.

Two things end apart from each other. The *request* ends with exactly one of Arrived, HandoffFailed or the caller's own
abort. The *memory* (blocks and slot of its seq) is free again at Arrived, or at exactly one Drained: when the source
rank said that every write ended, when its slot said so, when the handshake was never sent, or when the link is lost,
which is the fence. No deadline frees memory, and a write in doubt waits for the fence.

Mutable state: ``_entries`` (one per seq whose memory is not free), ``_slots`` (free slot indices), ``_linked`` (peers
that take handshakes), ``_next_seq``. One counter serves all peers, so seqs grow strictly towards each of them and one
seq names one hand-off of this rank's whole life.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from pdcore.engine.transfer.slot import Slot, SlotStatus
from pdcore.engine.transfer.states import TransferEvent, TransferState, advance
from pdcore.errors import ApiError, ErrorCode

RESEND_CAP_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """KV and first token are here. The blocks belong to the request alone; its slot is free already."""

    seq: int
    room: int
    first_token: int
    kv_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffFailed:
    """The request is over. Its blocks stay quarantined until ``Drained`` of the same seq."""

    seq: int
    room: int
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """No write of this seq can land any more: its blocks may be used again."""

    seq: int


ReceiveEvent = Arrived | HandoffFailed | Drained


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this about ``seq`` to ``peer``."""

    peer: Hashable
    what: Literal["handshake", "query", "abort"]
    seq: int


Effect = ReceiveEvent | Tell


@dataclass(slots=True, kw_only=True)
class Entry:
    """One seq whose memory is not free. ``peer_name`` is for messages; ``resend_at`` is when to tell again."""

    seq: int
    room: int
    peer: Hashable
    peer_name: str
    slot: int
    blocks: tuple[int, ...]
    prompt_len: int
    deadline: float
    state: TransferState = TransferState.BOOTSTRAPPING
    asked: bool = False
    accepted: bool = False
    in_doubt: bool = False
    rung: bool = False
    abort_code: ErrorCode = "cancelled"
    resend_at: float = math.inf
    resend_s: float = 0.0

    @property
    def request_over(self) -> bool:
        """The request ended; only its memory is waited for."""
        return self.state is TransferState.FAILED


class ReceiveLedger:
    """See the module. Methods return the effects in the order in which they must happen."""

    def __init__(
        self,
        *,
        slots_total: int,
        blocks_total: int,
        resend_s: float = 0.2,
        peer_share: float = 0.25,
        total_share: float = 0.5,
    ) -> None:
        self._resend_s = resend_s
        self._peer_cap = int(blocks_total * peer_share)
        self._total_cap = int(blocks_total * total_share)
        self._slots_total = slots_total
        self._slots = list(range(slots_total - 1, -1, -1))
        self._entries: dict[int, Entry] = {}
        self._linked: set[Hashable] = set()
        self._next_seq = 1

    def __getitem__(self, seq: int) -> Entry:
        return self._entries[seq]

    def __contains__(self, seq: int) -> bool:
        return seq in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def can_open(self, peer: Hashable, blocks: int) -> bool:
        """Whether ``open`` of so many blocks would find a slot and stay under the caps.

        Reserved and quarantined blocks together are capped per peer and in all; a peer (or a pool) with none of
        them may always open one, however large.
        """
        theirs = sum(len(entry.blocks) for entry in self if entry.peer == peer)
        everyone = sum(len(entry.blocks) for entry in self)
        return (
            bool(self._slots)
            and (not theirs or theirs + blocks <= self._peer_cap)
            and (not everyone or everyone + blocks <= self._total_cap)
        )

    def open(
        self,
        *,
        room: int,
        peer: Hashable,
        peer_name: str,
        blocks: tuple[int, ...],
        prompt_len: int,
        deadline: float,
        now: float,
    ) -> tuple[Entry, list[Effect]]:
        """A new seq in BOOTSTRAPPING, asked for at once if the peer takes handshakes.

        Raises ``ApiError`` ``peer_backlog`` when no slot is free or a cap is reached.
        """
        if not self.can_open(peer, len(blocks)):
            raise ApiError("peer_backlog", f"too much memory is waiting for {peer_name}", retry_after_s=1)
        entry = Entry(
            seq=self._next_seq,
            room=room,
            peer=peer,
            peer_name=peer_name,
            slot=self._slots.pop(),
            blocks=blocks,
            prompt_len=prompt_len,
            deadline=deadline,
        )
        self._next_seq += 1
        self._entries[entry.seq] = entry
        return entry, self._ask(entry, now) if peer in self._linked else []

    def linked(self, peer: Hashable, now: float) -> list[Effect]:
        """``peer`` takes handshakes: ask for everything that waited for it."""
        self._linked.add(peer)
        waiting = [e for e in self if e.peer == peer and not e.asked and not e.request_over]
        return [effect for entry in waiting for effect in self._ask(entry, now)]

    def lost(self, peer: Hashable, why: str) -> list[Effect]:
        """The fence (or no link was ever made): nothing of ``peer`` can land any more."""
        self._linked.discard(peer)
        effects: list[Effect] = []
        for entry in [entry for entry in self if entry.peer == peer]:
            effects += self._end(entry, "prefill_failed", f"{entry.peer_name} {why}") + self._drain(entry)
        return effects

    def accepted(self, peer: Hashable, seq: int, now: float) -> list[Effect]:
        """``peer`` knows the seq; from now on it is only asked how it is doing."""
        entry = self._of(peer, seq)
        if entry is not None and not entry.request_over:
            entry.accepted = True
            entry.resend_s = RESEND_CAP_S
            entry.resend_at = now + RESEND_CAP_S
        return []

    def failed(
        self,
        peer: Hashable,
        seq: int,
        code: ErrorCode,
        message: str,
        *,
        drained: bool,
        in_doubt: bool,
        now: float,
    ) -> list[Effect]:
        """``peer`` will not deliver the seq."""
        entry = self._of(peer, seq)
        if entry is None:
            return []
        effects = self._end(entry, code, f"{entry.peer_name}: {message}")
        if drained or in_doubt:
            return effects + self._conclude(entry, in_doubt=in_doubt)
        return effects + self._settle(entry, now)

    def drained(self, peer: Hashable, seq: int, *, in_doubt: bool) -> list[Effect]:
        """``peer`` answers an abort: every write of the seq ended. Also ends a request nobody aborted."""
        entry = self._of(peer, seq)
        if entry is None:
            return []
        effects = self._end(entry, "prefill_failed", f"{entry.peer_name} gave the hand-off up")
        return effects + self._conclude(entry, in_doubt=in_doubt)

    def rang(self, peer: Hashable, seq: int) -> None:
        """The doorbell of this seq: its slot and blocks are visible."""
        entry = self._of(peer, seq)
        if entry is not None:
            entry.rung = True

    def wrote(self, seq: int, slot: Slot) -> list[Effect]:
        """The seq's own slot was read: the last word of a rank that submits nothing after it."""
        entry = self._entries.get(seq)
        if entry is None or entry.in_doubt:
            return []
        if slot.status is SlotStatus.DELIVERED and not entry.request_over:
            return self._deliver(entry, slot)
        effects = self._end(entry, "prefill_failed", f"{entry.peer_name} could not write the KV")
        return effects + self._conclude(entry, in_doubt=slot.status is SlotStatus.IN_DOUBT)

    def abort(self, seq: int, code: ErrorCode, now: float) -> list[Effect]:
        """The caller ended the request: no HandoffFailed, only the memory is waited for. Unknown seqs are ignored."""
        entry = self._entries.get(seq)
        if entry is None or entry.request_over:
            return []
        entry.state = advance(entry.state, TransferEvent.FAILED)
        entry.abort_code = code
        return self._settle(entry, now)

    def tick(self, now: float) -> list[Effect]:
        """Deadlines that passed, messages to repeat."""
        effects: list[Effect] = []
        for entry in list(self):
            if now >= entry.deadline and not entry.request_over:
                message = f"no KV from {entry.peer_name} before the deadline"
                entry.abort_code = "deadline_exceeded"
                effects += self._end(entry, "deadline_exceeded", message) + self._settle(entry, now)
            elif now >= entry.resend_at:
                effects += self._tell(entry, now)
        return effects

    def next_wake(self) -> float:
        """The earliest instant at which ``tick`` has something to do (infinity: none)."""
        return min(
            (min(e.resend_at, math.inf if e.request_over else e.deadline) for e in self), default=math.inf
        )

    @property
    def slots_used(self) -> int:
        """Slots that are not free, quarantined ones included."""
        return self._slots_total - len(self._slots)

    def _of(self, peer: Hashable, seq: int) -> Entry | None:
        entry = self._entries.get(seq)
        return entry if entry is not None and entry.peer == peer else None

    def _ask(self, entry: Entry, now: float) -> list[Effect]:
        entry.state = advance(entry.state, TransferEvent.HANDSHAKEN)
        entry.asked = True
        entry.resend_s = self._resend_s
        return self._tell(entry, now)

    def _tell(self, entry: Entry, now: float) -> list[Effect]:
        what: Literal["handshake", "query", "abort"] = "query" if entry.accepted else "handshake"
        entry.resend_at = now + entry.resend_s
        entry.resend_s = min(entry.resend_s * 2, RESEND_CAP_S)
        return [Tell(entry.peer, "abort" if entry.request_over else what, entry.seq)]

    def _settle(self, entry: Entry, now: float) -> list[Effect]:
        """The request is over: what about its memory?"""
        if not entry.asked:
            return self._drain(entry)
        if entry.in_doubt:
            return []
        entry.resend_s = self._resend_s
        return self._tell(entry, now)

    def _conclude(self, entry: Entry, *, in_doubt: bool) -> list[Effect]:
        """The source said its last word about the memory. Once in doubt, nothing but the fence counts."""
        if in_doubt:
            entry.in_doubt = True
            entry.resend_at = math.inf
        return [] if entry.in_doubt else self._drain(entry)

    def _deliver(self, entry: Entry, slot: Slot) -> list[Effect]:
        if slot.kv_len != entry.prompt_len:
            message = f"{entry.peer_name} sent KV of {slot.kv_len} tokens for a prompt of {entry.prompt_len}"
            return self._end(entry, "prefill_failed", message) + self._drain(entry)
        entry.state = advance(entry.state, TransferEvent.DELIVERED)
        self._forget(entry)
        return [Arrived(seq=entry.seq, room=entry.room, first_token=slot.token, kv_len=slot.kv_len)]

    def _end(self, entry: Entry, code: ErrorCode, message: str) -> list[Effect]:
        if entry.request_over:
            return []
        entry.state = advance(entry.state, TransferEvent.FAILED)
        return [HandoffFailed(seq=entry.seq, room=entry.room, code=code, message=message)]

    def _drain(self, entry: Entry) -> list[Effect]:
        self._forget(entry)
        return [Drained(seq=entry.seq)]

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.seq]
        self._slots.append(entry.slot)
