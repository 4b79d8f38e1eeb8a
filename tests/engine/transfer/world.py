"""A simulated fleet for the two ledgers: one decode rank, mortal prefill ranks, a hostile transport.

Everything is driven by one seeded random source. Messages are delayed, dropped and doubled; writes land block by block
in any order, fail half-way, report failure and land later, or never; a failure slot overtakes the data it speaks of.
Every block and slot knows which seq may write it now, and every landing is checked against that.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import slot as slots
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.receive_ledger import Arrived, Drained, HandoffFailed, ReceiveLedger, Tell
from pdcore.engine.transfer.receive_ledger import Effect as ReceiveEffect
from pdcore.engine.transfer.rooms import (
    Effect,
    Handshaken,
    Leg,
    Outcome,
    Release,
    Say,
    StopWrite,
    WriteEnded,
)
from pdcore.engine.transfer.send_ledger import SendLedger
from pdcore.engine.transfer.slot import SLOT_BYTES, Slot, SlotArray, SlotStatus
from pdcore.errors import ApiError

BLOCKS, SLOTS = 10, 3
LAYOUT = KvLayout.dense(layers=1, kv_heads=1, head_dim=1, block_size=10, itemsize=1, dtype_name="uint8")
DECODE = wire.RankIdentity(instance_id="d", incarnation="d1")


@dataclass
class Job:
    """One room's write: ``plan`` is decided when it starts, ``landing`` are blocks under way."""

    room: int
    seq: int
    blocks: tuple[int, ...]
    slot: int
    plan: str
    landing: list[int] = field(default_factory=list)
    begun: bool = False
    stopped: bool = False


@dataclass
class Prefill:
    """One incarnation of a prefill rank. ``late`` are writes that reported failure and may land yet."""

    name: str
    token: bytes
    ledger: SendLedger = field(default_factory=SendLedger)
    alive: bool = True
    up: deque[wire.ToPrefill] = field(default_factory=deque)
    down: deque[wire.ToDecode] = field(default_factory=deque)
    legs: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    late: list[tuple[Job, int | bytes]] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)
    released: bool = False


@dataclass
class Request:
    """What decode knows of one request until its memory is free."""

    room: int
    blocks: tuple[int, ...]


class World:
    """See the module. ``step`` does one random thing; ``settle`` lets everything end and checks that it did."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.pool = BlockPool(BLOCKS)
        self.ledger = ReceiveLedger(
            slots_total=SLOTS, blocks_total=BLOCKS, resend_s=0.5, peer_share=1.0, total_share=1.0
        )
        self.memory: list[tuple[str, int]] = [("free", 0)] * BLOCKS
        self.slot_memory = bytearray(SLOTS * SLOT_BYTES)
        self.slots = SlotArray(memoryview(self.slot_memory))
        self.may_write: dict[int, int] = {}  # block -> seq
        self.may_sign: dict[int, int] = {}  # slot -> seq
        self.open: dict[int, Request] = {}  # seq -> request
        self.running: list[Request] = []
        self.ends: Counter[int] = Counter()
        self.seen: Counter[str] = Counter()
        self.rooms = 0
        self.born = 0
        self.lossy = True
        self.prefills: list[Prefill] = []
        for _ in range(2):
            self.birth()

    # Prefill ranks come and go

    def birth(self) -> None:
        self.born += 1
        prefill = Prefill(f"p{self.born}", self.born.to_bytes(16, "big"))
        prefill.ledger.welcome(prefill.token, DECODE, RegionShape(LAYOUT, (BLOCKS,), SLOTS))
        self.prefills.append(prefill)
        self.decide(self.ledger.linked(prefill.name, self.now))

    def kill(self, prefill: Prefill) -> None:
        """Dead at once: nothing lands any more. Decode learns of it later, at ``fence``."""
        prefill.alive = False
        prefill.up.clear()
        prefill.jobs.clear()
        prefill.late.clear()

    def fence(self, prefill: Prefill) -> None:
        self.read_slots()
        self.decide(self.ledger.lost(prefill.name, "is gone"))
        self.prefills.remove(prefill)
        self.birth()

    # Decode

    def request(self) -> None:
        prefill = self.rng.choice(self.prefills)
        count = self.rng.randint(1, 3)
        if not self.pool.can_allocate(count) or not self.ledger.can_open(prefill.name, count):
            return
        self.rooms += 1
        room = self.rooms
        blocks = self.pool.allocate(count, room)
        assert blocks is not None
        entry, effects = self.ledger.open(
            room=room,
            peer=prefill.name,
            peer_name=prefill.name,
            blocks=blocks,
            prompt_len=count * 10,
            deadline=self.now + self.rng.uniform(1, 30),
            now=self.now,
        )
        self.open[entry.seq] = Request(room, blocks)
        self.may_sign[entry.slot] = entry.seq
        for block in blocks:
            assert block not in self.may_write
            self.may_write[block] = entry.seq
            self.memory[block] = ("asked", entry.seq)
        self.slots.watch(entry.slot, seq=entry.seq, room=room)
        if self.rng.random() < 0.9:
            prefill.legs.append(room)
        self.decide(effects)

    def decide(self, effects: Iterable[ReceiveEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self.tell(effect)
                case HandoffFailed(seq=seq):
                    self.end_request(seq)
                case Arrived(seq=seq, first_token=token):
                    self.arrive(seq, token)
                case Drained(seq=seq):
                    self.seen["drained"] += 1
                    assert self.open[seq].blocks == self.pool.release(seq)
                    self.let_go(seq)

    def tell(self, tell: Tell) -> None:
        entry = self.ledger[tell.seq]
        [prefill] = [p for p in self.prefills if p.name == tell.peer]
        token = prefill.token
        message: wire.ToPrefill
        if tell.what == "abort":
            message = wire.Abort(token=token, seq=entry.seq, room=entry.room, code=entry.abort_code)
        elif tell.what == "query":
            message = wire.Query(token=token, seq=entry.seq)
        else:
            message = wire.Handshake(
                token=token,
                seq=entry.seq,
                room=entry.room,
                slot=entry.slot,
                groups=(entry.blocks,),
                prompt_len=entry.prompt_len,
                remaining_ms=max(0, int((entry.deadline - self.now) * 1000)),
            )
        if prefill.alive and not self.lose():
            prefill.up.extend([message] * (1 + self.double()))

    def abort(self) -> None:
        live = [entry.seq for entry in self.ledger if not entry.request_over]
        if live:
            seq = self.rng.choice(live)
            self.end_request(seq)
            self.decide(self.ledger.abort(seq, "cancelled", self.now))

    def end_request(self, seq: int) -> None:
        request = self.open[seq]
        self.ends[request.room] += 1
        self.pool.quarantine(request.blocks, seq)

    def arrive(self, seq: int, token: int) -> None:
        request = self.open[seq]
        self.seen["arrived"] += 1
        self.ends[request.room] += 1
        assert token == request.room % 1000, "another request's first token"
        assert all(self.memory[block] == ("kv", seq) for block in request.blocks), "foreign or missing bytes"
        for block in request.blocks:
            self.memory[block] = ("run", request.room)
        self.running.append(request)
        self.let_go(seq)

    def let_go(self, seq: int) -> None:
        """Nobody may write for ``seq`` any more."""
        for block in self.open.pop(seq).blocks:
            assert self.may_write.pop(block) == seq
        [index] = [index for index, owner in self.may_sign.items() if owner == seq]
        del self.may_sign[index]
        self.slots.forget(index)

    def finish(self) -> None:
        if self.running:
            request = self.running.pop(self.rng.randrange(len(self.running)))
            assert all(self.memory[block] == ("run", request.room) for block in request.blocks), "overwritten"
            self.pool.free_owner(request.room)

    def read_slots(self) -> None:
        for _index, record in list(self.slots.look()):
            self.decide(self.ledger.wrote(record.seq, record))

    def hear(self) -> None:
        for prefill in list(self.prefills):
            if prefill.down and self.rng.random() < 0.7:
                self.take(prefill, prefill.down.popleft())

    def take(self, prefill: Prefill, message: wire.ToDecode) -> None:
        name = prefill.name
        match message:
            case wire.Accepted(seq=seq):
                self.decide(self.ledger.accepted(name, seq, self.now))
            case wire.Failed() as f:
                self.decide(
                    self.ledger.failed(
                        name, f.seq, f.code, f.message, drained=f.drained, in_doubt=f.in_doubt, now=self.now
                    )
                )
            case wire.Drained(seq=seq, in_doubt=in_doubt):
                self.decide(self.ledger.drained(name, seq, in_doubt=in_doubt))

    # Prefill

    def turn(self, prefill: Prefill) -> None:
        """One turn of a prefill rank's loop, in which each thing may or may not happen."""
        if not prefill.alive:
            return
        if prefill.up and self.rng.random() < 0.7:
            self.perform(prefill, self.answer(prefill, prefill.up.popleft()))
        if prefill.legs and self.rng.random() < 0.6:
            self.take_leg(prefill, prefill.legs.pop(0))
        if prefill.ready and self.rng.random() < 0.6:
            self.start(prefill, prefill.ready.pop(0))
        if self.rng.random() < 0.03:
            self.perform(
                prefill, prefill.ledger.fail(self.rng.randint(1, self.rooms + 3), "cancelled", "", self.now)
            )
        self.perform(prefill, prefill.ledger.tick(self.now))
        for job in list(prefill.jobs.values()):
            if self.rng.random() < 0.6:
                self.write(prefill, job)
        if prefill.late and self.rng.random() < 0.3:
            job, what = prefill.late.pop(self.rng.randrange(len(prefill.late)))
            self.land(prefill, job, what)

    def answer(self, prefill: Prefill, message: wire.ToPrefill) -> list[Effect]:
        match message:
            case wire.Handshake():
                return prefill.ledger.handshake(message, self.now)
            case wire.Query():
                return prefill.ledger.query(message)
            case wire.Abort():
                return prefill.ledger.abort(message, self.now)
        raise AssertionError(message)

    def take_leg(self, prefill: Prefill, room: int) -> None:
        known = [request for request in self.open.values() if request.room == room]
        tokens = len(known[0].blocks) * 10 if known else 10
        leg = Leg(DECODE.incarnation, tokens, self.now + self.rng.uniform(1, 30))
        try:
            self.perform(prefill, prefill.ledger.expect(room, leg, self.now))
        except ApiError:
            self.seen["leg refused"] += 1

    def start(self, prefill: Prefill, room: int) -> None:
        state = prefill.ledger.state(room)
        if state is None or state.name != "WAITING_FOR_INPUT":
            return  # it ended between its Handshaken and now
        counts = [len(request.blocks) for request in self.open.values() if request.room == room]
        count = counts[0] if counts else 1
        try:
            shake, _shape = prefill.ledger.start(room, count * 10)
        except ValueError:
            return
        plan = self.rng.choice(["ok"] * 6 + ["fails", "fails quietly", "kv in doubt", "slot in doubt"])
        prefill.pinned.add(room)
        prefill.jobs[room] = Job(room, shake.seq, shake.blocks, shake.slot, plan)

    def perform(self, prefill: Prefill, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(message=message):
                    if not self.lose():
                        prefill.down.extend([message] * (1 + self.double()))
                case Handshaken(room=room):
                    prefill.ready.append(room)
                case StopWrite(room=room):
                    self.stop(prefill, prefill.jobs[room])
                case WriteEnded(room=room):
                    prefill.pinned.remove(room)
                case Release():
                    prefill.released = True

    def stop(self, prefill: Prefill, job: Job) -> None:
        job.stopped = True

    def write(self, prefill: Prefill, job: Job) -> None:
        """One step of a job: begin, land a block, sign, or break as planned."""
        if not job.begun:
            job.begun = True
            job.landing = self.rng.sample(job.blocks, len(job.blocks))
            if job.stopped:
                self.end_job(prefill, job, "failed")
        elif job.plan.startswith("fails") and self.rng.random() < 0.5:
            if job.plan == "fails":
                self.sign(prefill, job, SlotStatus.FAILED)
            self.end_job(prefill, job, "failed")
        elif job.plan == "kv in doubt" and self.rng.random() < 0.5:
            if self.rng.random() < 0.5:
                self.sign(prefill, job, SlotStatus.IN_DOUBT)
            prefill.late += [(job, block) for block in job.landing if self.rng.random() < 0.7]
            self.end_job(prefill, job, "in_doubt")
        elif job.landing:
            self.land(prefill, job, job.landing.pop())
        elif job.stopped:
            self.end_job(prefill, job, "failed")
        elif job.plan == "slot in doubt":
            if self.rng.random() < 0.7:
                prefill.late.append((job, self.record(job, SlotStatus.DELIVERED)))
            self.end_job(prefill, job, "in_doubt")
        else:
            self.sign(prefill, job, SlotStatus.DELIVERED)
            self.end_job(prefill, job, "delivered")

    def end_job(self, prefill: Prefill, job: Job, outcome: Outcome) -> None:
        self.seen[outcome] += 1
        del prefill.jobs[job.room]
        self.perform(prefill, prefill.ledger.write_ended(job.room, outcome, outcome, self.now))

    def land(self, prefill: Prefill, job: Job, what: int | bytes) -> None:
        assert job.room in prefill.pinned, "the source was let go before its write ended"
        if isinstance(what, bytes):
            self.put_slot(job, what)
        else:
            assert self.may_write.get(what) == job.seq, f"a foreign write into block {what}"
            self.memory[what] = ("kv", job.seq)

    def record(self, job: Job, status: SlotStatus) -> bytes:
        return slots.encode(
            Slot(
                seq=job.seq,
                room=job.room,
                token=job.room % 1000,
                kv_len=len(job.blocks) * 10,
                status=status,
            )
        )

    def sign(self, prefill: Prefill, job: Job, status: SlotStatus) -> None:
        self.put_slot(job, self.record(job, status))

    def put_slot(self, job: Job, record: bytes) -> None:
        """In two pieces, with a look of decode between them."""
        assert self.may_sign.get(job.slot) == job.seq, f"a foreign write into slot {job.slot}"
        start, cut = job.slot * SLOT_BYTES, self.rng.randint(0, SLOT_BYTES)
        self.slot_memory[start : start + cut] = record[:cut]
        if cut < SLOT_BYTES and self.rng.random() < 0.5:
            before = len(self.open)
            self.read_slots()
            if self.may_sign.get(job.slot) != job.seq:
                assert bytes(self.slot_memory[start : start + SLOT_BYTES]) == record
                assert len(self.open) < before
                return
        self.slot_memory[start + cut : start + SLOT_BYTES] = record[cut:]

    # The whole

    def lose(self) -> bool:
        return self.lossy and self.rng.random() < 0.04

    def double(self) -> bool:
        return self.lossy and self.rng.random() < 0.05

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 0.05, 0.3])
        act = self.rng.random()
        if act < 0.3:
            self.request()
        elif act < 0.34:
            self.abort()
        elif act < 0.5:
            self.finish()
        elif act < 0.51:
            self.now += 10
        elif act < 0.52:
            self.kill(self.rng.choice(self.prefills))
        self.advance()

    def advance(self) -> None:
        for prefill in list(self.prefills):
            self.turn(prefill)
            if not prefill.alive and self.rng.random() < 0.2:
                self.fence(prefill)
        if self.rng.random() < 0.7:
            self.read_slots()
        self.hear()
        self.decide(self.ledger.tick(self.now))

    def busy(self) -> bool:
        counts = [prefill.ledger.counts() for prefill in self.prefills]
        return any(c.rooms or c.stashed or c.writing for c in counts)

    def settle(self) -> None:
        """No more loss, no more requests: all ends by itself, but for what is in doubt; the fence ends that."""
        self.lossy = False
        for _ in range(400):
            self.now += 0.5
            self.finish()
            self.advance()
            if not self.running and all(entry.in_doubt for entry in self.ledger) and not self.busy():
                break
        assert all(entry.in_doubt for entry in self.ledger), "something hangs"
        for prefill in list(self.prefills):
            counts = prefill.ledger.counts()
            assert (counts.rooms, counts.stashed, counts.writing) == (0, 0, 0)
            self.perform(prefill, prefill.ledger.lost(prefill.token, self.now))
            assert (prefill.released, prefill.pinned) == (True, set())
            self.kill(prefill)
            self.fence(prefill)
        assert (len(self.ledger), self.ledger.slots_used, self.open) == (0, 0, {})
        assert self.pool.free_blocks == BLOCKS
        assert set(self.ends) == set(range(1, self.rooms + 1))
        assert set(self.ends.values()) <= {1}
