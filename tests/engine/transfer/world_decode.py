"""A decode rank of the simulated fleet: its two ledgers, its memory, and who may write into it now."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pdcore.engine.transfer.entries import Allow, Delivered, Effect, Ended, Freed, Revoke, Tell
from pdcore.engine.transfer.gathering import Gathering, GiveUp, Part
from pdcore.engine.transfer.mapping import GroupRank, RankMapping
from pdcore.engine.transfer.orders import AbortHandoff, DecodeEvent, Drained, HandoffFailed, Open
from pdcore.engine.transfer.receive_ledger import ReceiveLedger
from pdcore.engine.transfer.slot import SLOT_BYTES, SlotArray

BLOCKS, HANDOFFS = 10, 3
Mark = tuple[str, int]
"""What lies in a source rank's part of a block: ("free"|"kv"|"run", seq or room)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank of one start of a prefill group, as decode names it."""

    group: str
    rank: GroupRank


@dataclass
class Asked:
    """What decode knows of one seq until its memory is free."""

    handoff: int
    room: int
    source: GroupRank
    blocks: tuple[int, ...]
    slot: int


@dataclass(kw_only=True)
class DecodeRank:
    """``send`` carries a message towards a peer. ``revokes``: this rank's engine looks at every write itself."""

    rank: GroupRank
    mapping: RankMapping
    rng: random.Random
    revokes: bool
    send: Callable[[DecodeRank, Tell], None]
    stopped: int = 0
    orders: deque[Open | AbortHandoff] = field(default_factory=deque)
    events: deque[DecodeEvent] = field(default_factory=deque)
    seen: Counter[str] = field(default_factory=Counter)
    asked: dict[int, Asked] = field(default_factory=dict)
    allowed: set[int] = field(default_factory=set)
    proofs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources = self.mapping.sources_of(self.rank)
        slots = HANDOFFS * len(self.sources)
        self.ledger = ReceiveLedger(slots_total=slots, resend_s=0.5)
        self.gathering = Gathering()
        self.memory: list[dict[GroupRank, Mark]] = [{} for _ in range(BLOCKS)]
        self.slot_memory = bytearray(slots * SLOT_BYTES)
        self.slots = SlotArray(memoryview(self.slot_memory))

    # One turn

    def turn(self, now: float) -> None:
        """What a rank's loop does, each thing perhaps."""
        if self.stopped:
            self.stopped -= 1
            return
        while self.orders and self.rng.random() < 0.8:
            self.obey(self.orders.popleft(), now)
        if self.rng.random() < 0.7:
            self.read_slots(now)
        while self.proofs and self.rng.random() < 0.5:
            self.prove(self.proofs.pop(), now)
        self.decide(self.ledger.tick(now), now)

    def obey(self, order: Open | AbortHandoff, now: float) -> None:
        if isinstance(order, AbortHandoff):
            self.gather(self.gathering.abort(order.handoff, order.code), now)
            return
        if len(self.sources) > self.ledger.slots_free:
            self.events.append(HandoffFailed(handoff=order.handoff, code="peer_backlog", message=""))
            self.events.append(Drained(handoff=order.handoff))
            return
        effects: list[Effect] = []
        seqs = []
        for source in self.sources:
            entry, tells = self.ledger.open(
                room=order.room,
                peer=Peer(order.prefill.incarnation, source),
                peer_name=f"{order.prefill.incarnation} {source}",
                blocks=order.blocks,
                prompt_len=order.prompt_len,
                deadline=now + order.remaining_ms / 1000,
                now=now,
            )
            self.asked[entry.seq] = Asked(order.handoff, order.room, source, order.blocks[0], entry.slot)
            self.slots.watch(entry.slot, seq=entry.seq, room=order.room)
            for block in order.blocks[0]:
                self.memory[block][source] = ("asked", entry.seq)
            seqs.append(entry.seq)
            effects += tells
        self.gathering.open(order.handoff, seqs)
        self.decide(effects, now)

    def decide(self, effects: Iterable[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    if effect.seq in self.ledger:
                        self.send(self, effect)
                case Allow(seq=seq):
                    self.allowed.add(seq)
                case Revoke(seq=seq):
                    self.allowed.remove(seq)
                    if self.revokes and self.rng.random() < 0.7:
                        self.prove(seq, now)
                    elif self.revokes:
                        self.proofs.append(seq)
                case Delivered(seq=seq, slot=slot):
                    self.take_delivery(seq)
                    self.gather(self.gathering.delivered(seq, Part(slot)), now)
                case Ended(seq=seq, code=code, message=message):
                    self.gather(self.gathering.ended(seq, code, message), now)
                case Freed(seq=seq):
                    self.seen["freed"] += 1
                    self.let_go(seq)
                    self.gather(self.gathering.freed(seq), now)

    def prove(self, seq: int, now: float) -> None:
        if seq in self.ledger:
            self.seen["proven"] += 1
            self.decide(self.ledger.revoked(self.ledger[seq].peer, seq), now)

    def gather(self, said: Iterable[DecodeEvent | GiveUp], now: float) -> None:
        for event in said:
            if isinstance(event, GiveUp):
                self.decide(self.ledger.abort(event.seq, event.code, now), now)
            else:
                self.events.append(event)

    def take_delivery(self, seq: int) -> None:
        """Everything that this source was to write is there, and of this very seq."""
        asked = self.asked[seq]
        for block in self.part(asked):
            assert self.memory[block][asked.source] == ("kv", seq), "foreign or missing bytes"
            self.memory[block][asked.source] = ("run", asked.room)
        self.seen["delivered"] += 1
        self.let_go(seq)

    def let_go(self, seq: int) -> None:
        """Nobody may write for ``seq`` any more."""
        self.slots.forget(self.asked.pop(seq).slot)

    def read_slots(self, now: float) -> None:
        for _index, record in self.slots.look():
            if record.seq in self.ledger:
                self.decide(self.ledger.wrote(record.seq, record), now)

    def part(self, asked: Asked) -> tuple[int, ...]:
        """The blocks of which this source writes something."""
        count, cp = len(asked.blocks), self.mapping.prefill.cp
        rank = asked.source.cp
        return asked.blocks[count * rank // cp : count * (rank + 1) // cp]

    # What lands here

    def land(self, seq: int, source: GroupRank, block: int) -> None:
        """A write that this rank's engine lets through; foreign ones are the bug that is looked for."""
        if self.revokes and seq not in self.allowed:
            self.seen["refused"] += 1
            return
        asked = self.asked.get(seq)
        assert asked is not None, f"a write of seq {seq} into block {block}, which it does not own"
        assert asked.source == source
        assert block in self.part(asked)
        self.memory[block][source] = ("kv", seq)

    def sign(self, seq: int, slot: int, record: bytes, now: float) -> None:
        """In two pieces, with a look of this rank between them."""
        if self.revokes and seq not in self.allowed:
            self.seen["refused"] += 1
            return
        asked = self.asked.get(seq)
        assert asked is not None, f"a write of seq {seq} into slot {slot}, which it does not own"
        assert asked.slot == slot
        start, cut = slot * SLOT_BYTES, self.rng.randint(0, SLOT_BYTES)
        self.slot_memory[start : start + cut] = record[:cut]
        if not self.stopped and self.rng.random() < 0.5:
            self.read_slots(now)
            if seq not in self.asked:
                # its own record was whole, or another part ended the hand-off and the engine let no more of it land
                assert self.revokes or bytes(self.slot_memory[start : start + SLOT_BYTES]) == record
                return
        self.slot_memory[start + cut : start + SLOT_BYTES] = record[cut:]

    def check_run(self, blocks: tuple[int, ...], room: int) -> None:
        """A running request's blocks hold its own KV."""
        for block in blocks:
            for mark in self.memory[block].values():
                assert mark == ("run", room) or mark[0] == "asked", "overwritten while it ran"
