"""Decode's decisions about the seqs it has open, each towards one prefill rank. Pure: messages and instants in, effects
out. (``gathering`` makes hand-offs of them.)

Two things end apart from each other. The *request* ends with exactly one of Delivered, Ended or the caller's own abort.
The *memory* (blocks and slot of its seq) is free again at Delivered, or at exactly one Freed: when the source rank said
that every write ended, when its slot said so, when the handshake was never sent, when the engine proved that nothing of
the seq lands any more, or when the link is lost, which is the fence. No deadline frees memory, and a write in doubt
waits for the engine's proof or the fence.

An abort is repeated until the source rank answers it, also where the engine has proven the memory free before.

Mutable state: ``_entries`` (one per seq whose memory is not free or whose abort is not answered), ``_slots`` (free slot
indices), ``_linked`` (peers that take handshakes), ``_live`` (how many requests wait for each peer), ``_next_seq``. One
counter serves all peers, so seqs grow strictly towards each of them and one seq names one transfer of this rank's life.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Final

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.entries import Allow, Delivered, Effect, Ended, Entry, Freed, Revoke, Tell
from pdcore.engine.transfer.failures import Reason, given_up
from pdcore.engine.transfer.slot import Slot, SlotStatus
from pdcore.engine.transfer.states import Deadline, TransferEvent, advance, runs_in
from pdcore.errors import ErrorCode

RESEND_CAP_S: Final = 2.0
UNANSWERED_MOST: Final = 1024


class ReceiveLedger:
    """See the module. Methods return the effects in the order in which they must happen."""

    def __init__(self, *, slots_total: int, resend_s: float = 0.2) -> None:
        self._resend_s = resend_s
        self._slots_total = slots_total
        self._slots = list(range(slots_total - 1, -1, -1))
        self._entries: dict[int, Entry] = {}
        self._linked: set[Hashable] = set()
        self._live: Counter[Hashable] = Counter()
        self._next_seq = 1
        self._wake_at = math.inf

    def __getitem__(self, seq: int) -> Entry:
        return self._entries[seq]

    def __contains__(self, seq: int) -> bool:
        return seq in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def slots_free(self) -> int:
        """How many seqs can be opened."""
        return len(self._slots)

    @property
    def slots_used(self) -> int:
        """Slots that are not free, quarantined ones included."""
        return self._slots_total - len(self._slots)

    def waits_for(self, peer: Hashable) -> bool:
        """Whether a request waits for ``peer``."""
        return self._live[peer] > 0

    def knows(self, peer: Hashable) -> bool:
        """Whether any seq, over or not, concerns ``peer``."""
        return any(entry.peer == peer for entry in self._entries.values())

    def open_seqs(self, peer: Hashable) -> list[int]:
        """What ``peer`` accepted and has not ended."""
        entries = self._entries.values()
        return [e.seq for e in entries if e.peer == peer and e.accepted and not e.request_over]

    def next_seq(self) -> int:
        """A seq that was never used."""
        self._next_seq += 1
        return self._next_seq - 1

    def open(
        self,
        *,
        room: int,
        peer: Hashable,
        peer_name: str,
        blocks: BlockLists,
        prompt_len: int,
        deadline: float,
        now: float,
    ) -> tuple[Entry, list[Effect]]:
        """A new seq in BOOTSTRAPPING, asked for at once if the peer takes handshakes. The caller saw a free slot."""
        entry = Entry(
            seq=self.next_seq(),
            room=room,
            peer=peer,
            peer_name=peer_name,
            slot=self._slots.pop(),
            blocks=blocks,
            prompt_len=prompt_len,
            deadline=deadline,
        )
        self._entries[entry.seq] = entry
        self._live[peer] += 1
        self._wake_at = min(self._wake_at, deadline)
        return entry, self._ask(entry, now) if peer in self._linked else []

    def linked(self, peer: Hashable, now: float) -> list[Effect]:
        """``peer`` takes handshakes: ask for everything that waited for it."""
        self._linked.add(peer)
        waiting = [e for e in self if e.peer == peer and not e.asked and not e.request_over]
        return [effect for entry in waiting for effect in self._ask(entry, now)]

    def lost(self, peer: Hashable, why: str, reason: Reason = "gone") -> list[Effect]:
        """The fence (or no link was ever made): nothing of ``peer`` can land any more."""
        self._linked.discard(peer)
        effects: list[Effect] = []
        for entry in [entry for entry in self if entry.peer == peer]:
            entry.allowed = False
            effects += self._end(entry, "prefill_failed", f"{entry.peer_name} {why}", reason)
            effects += self._free(entry)
            self._forget(entry)
        return effects

    def silent(self, peer: Hashable, why: str, now: float) -> list[Effect]:
        """``peer`` owes an answer for too long: its requests end, their memory waits on."""
        effects: list[Effect] = []
        for entry in [e for e in self if e.peer == peer and runs_in(e.state, Deadline.SILENCE)]:
            effects += self._end(entry, "prefill_failed", f"{entry.peer_name} {why}", "silent")
            effects += self._settle(entry, now)
        return effects

    def hear(self, peer: Hashable, message: wire.ToDecode, now: float) -> list[Effect]:
        """What ``peer`` said about a seq; anything else, and another peer's seqs, change nothing."""
        entry = self._of(peer, getattr(message, "seq", 0))
        if entry is None:
            return []
        match message:
            case wire.Accepted() if not entry.request_over:
                entry.accepted = True  # from now on the beats ask how it is doing
                entry.resend_at = math.inf
            case wire.Failed():
                return self._failed(entry, message, now)
            case wire.Drained(in_doubt=in_doubt):
                why = f"{entry.peer_name} gave the hand-off up"
                effects = self._end(entry, "prefill_failed", why, "failed")
                return effects + self._conclude(entry, in_doubt=in_doubt)
        return []

    def _failed(self, entry: Entry, notice: wire.Failed, now: float) -> list[Effect]:
        why = f"{entry.peer_name}: {notice.message}"
        effects = self._end(entry, notice.code, why, notice.reason)
        if notice.drained or notice.in_doubt:
            return effects + self._conclude(entry, in_doubt=notice.in_doubt)
        return effects + self._settle(entry, now)

    def revoked(self, peer: Hashable, seq: int) -> list[Effect]:
        """The engine proved that nothing of a seq that is over lands any more."""
        entry = self._of(peer, seq)
        if entry is None or not entry.request_over:
            return []
        effects = self._free(entry)
        if entry.in_doubt:  # the abort was answered, and by that answer nothing was certain
            self._forget(entry)
        return effects

    def rang(self, peer: Hashable, seq: int) -> None:
        """The doorbell of this seq: its slot and blocks are visible."""
        entry = self._of(peer, seq)
        if entry is not None:
            entry.rung = True

    def wrote(self, seq: int, slot: Slot) -> list[Effect]:
        """The seq's own slot was read: the last word of a rank that submits nothing after it."""
        entry = self._entries.get(seq)
        if entry is None or entry.in_doubt or not entry.held:
            return []
        if slot.status is SlotStatus.DELIVERED and not entry.request_over:
            return self._deliver(entry, slot)
        in_doubt = slot.status is SlotStatus.IN_DOUBT
        why = f"{entry.peer_name} could not write the KV"
        effects = self._end(entry, "prefill_failed", why, "in_doubt" if in_doubt else "failed")
        return effects + self._conclude(entry, in_doubt=in_doubt)

    def abort(self, seq: int, code: ErrorCode, now: float) -> list[Effect]:
        """The caller ended the request: no Ended, only the memory is waited for. Unknown seqs are ignored."""
        entry = self._entries.get(seq)
        if entry is None or entry.request_over:
            return []
        self._end(entry, code, "", given_up(code))
        entry.abort_code = code
        return self._settle(entry, now)

    def tick(self, now: float) -> list[Effect]:
        """Deadlines that passed, messages to repeat."""
        if now < self._wake_at:
            return []
        effects: list[Effect] = []
        for entry in self:
            if runs_in(entry.state, Deadline.REQUEST) and now >= entry.deadline:
                message = f"no KV from {entry.peer_name} before the deadline"
                entry.abort_code = "deadline_exceeded"
                effects += self._end(entry, "deadline_exceeded", message, "deadline")
                effects += self._settle(entry, now)
            elif now >= entry.resend_at:
                effects += self._tell(entry, now)
        self._wake_at = min((entry.wake_at for entry in self._entries.values()), default=math.inf)
        return effects

    def next_wake(self) -> float:
        """An instant before which ``tick`` has nothing to do (infinity: none)."""
        return self._wake_at

    def _of(self, peer: Hashable, seq: int) -> Entry | None:
        entry = self._entries.get(seq)
        return entry if entry is not None and entry.peer == peer else None

    def _ask(self, entry: Entry, now: float) -> list[Effect]:
        entry.state = advance(entry.state, TransferEvent.HANDSHAKEN)
        entry.asked = entry.allowed = True
        entry.resend_s = self._resend_s
        return [Allow(entry.peer, entry.seq), *self._tell(entry, now)]

    def _tell(self, entry: Entry, now: float) -> list[Effect]:
        entry.resend_at = now + entry.resend_s
        entry.resend_s = min(entry.resend_s * 2, RESEND_CAP_S)
        self._wake_at = min(self._wake_at, entry.resend_at)
        return [Tell(entry.peer, "abort" if entry.request_over else "handshake", entry.seq)]

    def _settle(self, entry: Entry, now: float) -> list[Effect]:
        """The request is over: what about its memory?"""
        if not entry.asked:
            effects = self._free(entry)
            self._forget(entry)
            return effects
        if entry.in_doubt:
            return []
        entry.resend_s = self._resend_s
        self._bound_the_unanswered()
        return [*self._revoke(entry), *self._tell(entry, now)]

    def _conclude(self, entry: Entry, *, in_doubt: bool) -> list[Effect]:
        """The source said its last word about the memory. Once in doubt, nothing but a proof or the fence counts."""
        entry.in_doubt = entry.in_doubt or in_doubt
        entry.resend_at = math.inf
        if entry.in_doubt and entry.held:
            return self._revoke(entry)
        effects = [*self._revoke(entry), *self._free(entry)]
        self._forget(entry)
        return effects

    def _deliver(self, entry: Entry, slot: Slot) -> list[Effect]:
        revoke = self._revoke(entry)
        if slot.kv_len != entry.prompt_len:
            message = f"{entry.peer_name} sent KV of {slot.kv_len} tokens for a prompt of {entry.prompt_len}"
            effects = [*self._end(entry, "prefill_failed", message, "disagreed"), *self._free(entry)]
            self._forget(entry)
            return revoke + effects
        entry.state = advance(entry.state, TransferEvent.DELIVERED)
        self._live[entry.peer] -= 1
        self._free(entry)
        self._forget(entry)
        return [*revoke, Delivered(seq=entry.seq, peer=entry.peer, index=entry.slot, slot=slot)]

    def _end(self, entry: Entry, code: ErrorCode, message: str, reason: Reason) -> list[Effect]:
        if entry.request_over:
            return []
        entry.state = advance(entry.state, TransferEvent.FAILED)
        self._live[entry.peer] -= 1
        return [Ended(seq=entry.seq, peer=entry.peer, code=code, message=message, reason=reason)]

    def _revoke(self, entry: Entry) -> list[Effect]:
        """Once per allowed seq."""
        if not entry.allowed:
            return []
        entry.allowed = False
        return [Revoke(entry.peer, entry.seq)]

    def _free(self, entry: Entry) -> list[Effect]:
        if not entry.held:
            return []
        entry.held = False
        self._slots.append(entry.slot)
        return [Freed(entry.seq, entry.slot)]

    def _forget(self, entry: Entry) -> None:
        self._entries.pop(entry.seq, None)
        if not self._live[entry.peer]:
            del self._live[entry.peer]

    def _bound_the_unanswered(self) -> None:
        """Aborts that hold no memory and that nobody answers: the oldest are no longer repeated."""
        if len(self._entries) > self._slots_total + UNANSWERED_MOST:
            self._forget(next(entry for entry in self._entries.values() if not entry.held))
