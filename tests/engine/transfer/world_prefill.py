"""A prefill rank of the simulated fleet: its ledger, and writes that land, fail, or do both."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pdcore.engine.transfer import slot as slots
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.links import Say
from pdcore.engine.transfer.mapping import GroupRank, RankMapping
from pdcore.engine.transfer.orders import Expect, Fail, PrefillEvent, Send, SendAhead, WriteEnded
from pdcore.engine.transfer.rooms import Count, Effect, Leg, Outcome, Release, Sign, StopWrite, Write
from pdcore.engine.transfer.send_ledger import SendLedger
from pdcore.engine.transfer.slot import Slot, SlotStatus
from tests.engine.transfer.world_decode import DecodeRank

TOKENS = 10
"""Of one block."""
PLANS = ["ok"] * 6 + ["fails", "fails quietly", "fails early", "kv in doubt", "slot in doubt"]


@dataclass(kw_only=True)
class Job:
    """One of a room's writes into one decode rank: ``plan`` is decided when it starts, ``landing`` are blocks under way.
    ``ahead``: no slot follows; ``closed``: nor will one."""

    room: int
    token: bytes
    seq: int
    slot: int
    kv_len: int
    blocks: tuple[int, ...]
    plan: str
    ahead: bool
    landing: list[int] = field(default_factory=list)
    begun: bool = False
    closed: bool = False
    stopped: bool = False


@dataclass(kw_only=True)
class PrefillRank:
    """``late`` are writes that reported failure and may land yet; ``reading`` are rooms whose source may be read."""

    rank: GroupRank
    mapping: RankMapping
    rng: random.Random
    targets: dict[bytes, DecodeRank]
    lose: Callable[[], bool]
    ledger: SendLedger = field(default_factory=SendLedger)
    stopped: int = 0
    up: dict[bytes, deque[wire.ToPrefill]] = field(default_factory=dict)
    down: dict[bytes, deque[wire.ToDecode]] = field(default_factory=dict)
    orders: deque[Expect | SendAhead | Send | Fail] = field(default_factory=deque)
    events: deque[PrefillEvent] = field(default_factory=deque)
    jobs: dict[tuple[int, bytes], Job] = field(default_factory=dict)
    late: list[tuple[Job, int | bytes]] = field(default_factory=list)
    reading: set[int] = field(default_factory=set)
    kv_len: dict[int, int] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    released: set[bytes] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)

    def turn(self, now: float) -> None:
        """What a rank's loop and writers do, each thing perhaps. Writers run on while the loop is busy."""
        self.work(now)
        if self.stopped:
            self.stopped -= 1
            return
        while self.orders and self.rng.random() < 0.8:
            self.obey(self.orders.popleft(), now)
        for token, messages in self.up.items():
            if messages and self.rng.random() < 0.7:
                self.hear(token, messages.popleft(), now)
        self.perform(self.ledger.tick(now))

    def obey(self, order: Expect | SendAhead | Send | Fail, now: float) -> None:
        match order:
            case Expect(room=room, expected_peer=expected, prompt_len=prompt_len):
                leg = Leg(expected, prompt_len, now + order.remaining_ms / 1000)
                self.perform(self.ledger.expect(room, leg, now))
            case Fail(room=room, code=code, message=message):
                self.perform(self.ledger.fail(room, code, message, now))
            case SendAhead() | Send():
                self.send(order, now)

    def send(self, order: SendAhead | Send, now: float) -> None:
        ahead = isinstance(order, SendAhead)
        if self.ledger.has_nothing_to_send(order.room, now, ahead=ahead):
            if order.first:
                self.events.append(WriteEnded(room=order.room))
            return
        self.reading.add(order.room)
        self.kv_len[order.room] = order.kv_len
        if isinstance(order, SendAhead):
            self.seen["sent ahead"] += 1
            self.seen["all ahead"] += order.computed == order.kv_len
            self.perform(self.ledger.send_ahead(order.room, order.kv_len, order.computed))
        else:
            self.complete.add(order.room)
            self.perform(self.ledger.start(order.room, order.kv_len))

    def begin(self, write: Write) -> None:
        shake, kv_len = write.shake, self.kv_len[write.room]
        count, cp = len(shake.blocks[0]), self.mapping.prefill.cp
        mine = range(count * self.rank.cp // cp, count * (self.rank.cp + 1) // cp)
        stop = count if write.tokens.stop == kv_len else write.tokens.stop // TOKENS
        token = shake.link.token
        assert (write.room, token) not in self.jobs, "two writes of a room over one link"
        self.jobs[write.room, token] = Job(
            room=write.room,
            token=token,
            seq=shake.seq,
            slot=shake.slot,
            kv_len=kv_len,
            blocks=tuple(
                shake.blocks[0][position]
                for position in range(write.tokens.start // TOKENS, stop)
                if position in mine
            ),
            plan=self.rng.choice(PLANS),
            ahead=write.room not in self.complete,
        )

    def sign_also(self, job: Job) -> None:
        """The job under way is the last one, unless it is past that."""
        assert job.ahead
        assert not job.closed, "signed twice"
        job.closed = self.rng.random() < 0.3
        job.ahead = job.closed
        self.seen["signs late" if job.closed else "signs also"] += 1

    def hear(self, token: bytes, message: wire.ToPrefill, now: float) -> None:
        if not self.ledger.heard(token, now):
            return
        match message:
            case wire.Handshake():
                self.perform(self.ledger.handshake(message, now))
            case wire.Beat():
                self.perform(self.ledger.beat(message))
            case wire.Abort():
                self.perform(self.ledger.abort(message, now))

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(token=token, message=message):
                    if not self.lose():
                        self.down[token].extend([message] * (1 + self.lose()))
                case Write():
                    self.begin(effect)
                case Sign(room=room, shake=shake):
                    self.sign_also(self.jobs[room, shake.link.token])
                case StopWrite(room=room, token=token):
                    self.jobs[room, token].stopped = True
                case Release(token=token):
                    assert not any(job.token == token for job in self.jobs.values()), "unmapped under a write"
                    self.released.add(token)
                case WriteEnded(room=room):
                    self.reading.discard(room)
                    self.events.append(effect)
                case Count():
                    self.seen[f"count {effect.reason}"] += 1
                case _:
                    self.events.append(effect)

    # Writing

    def work(self, now: float) -> None:
        for job in list(self.jobs.values()):
            if self.rng.random() < 0.6:
                self.write(job, now)
        if self.late and self.rng.random() < 0.3:
            job, what = self.late.pop(self.rng.randrange(len(self.late)))
            self.seen["late"] += 1
            self.land(job, what, now)

    def write(self, job: Job, now: float) -> None:
        """One step of a job: begin, land a block, sign, or break as planned."""
        if not job.begun:
            job.begun = True
            job.landing = self.rng.sample(job.blocks, len(job.blocks))
            if job.stopped:
                self.end(job, "failed", now)
        elif job.plan in ("fails", "fails quietly") and self.rng.random() < 0.5:
            if job.plan == "fails":
                self.sign(job, SlotStatus.FAILED, now)
            self.end(job, "failed", now)
        elif job.plan == "fails early" and job.landing:
            # the record of the failure is there before the data, which lands all the same, in doubt
            self.sign(job, SlotStatus.IN_DOUBT, now)
            self.late += [(job, block) for block in job.landing]
            self.end(job, "in_doubt", now)
        elif job.plan == "kv in doubt" and self.rng.random() < 0.5:
            if self.rng.random() < 0.5:
                self.sign(job, SlotStatus.IN_DOUBT, now)
            self.late += [(job, block) for block in job.landing if self.rng.random() < 0.7]
            self.end(job, "in_doubt", now)
        elif job.landing:
            self.land(job, job.landing.pop(), now)
        elif job.stopped:
            self.end(job, "failed", now)
        elif job.ahead:
            self.end(job, "written", now)
        elif job.plan == "slot in doubt":
            if self.rng.random() < 0.7:
                self.late.append((job, self.record(job, SlotStatus.DELIVERED)))
            self.end(job, "in_doubt", now)
        else:
            self.sign(job, SlotStatus.DELIVERED, now)
            self.end(job, "delivered", now)

    def end(self, job: Job, outcome: Outcome, now: float) -> None:
        self.seen[outcome] += 1
        del self.jobs[job.room, job.token]
        self.perform(self.ledger.write_ended(job.room, job.token, outcome, outcome, now))

    def land(self, job: Job, what: int | bytes, now: float) -> None:
        assert job.room in self.reading, "the source was let go before its write ended"
        target = self.targets[job.token]
        if isinstance(what, bytes):
            target.sign(job.seq, job.slot, what, now)
        else:
            target.land(job.seq, self.rank, what)

    def record(self, job: Job, status: SlotStatus) -> bytes:
        return slots.encode(
            Slot(seq=job.seq, room=job.room, token=job.room % 1000, kv_len=job.kv_len, status=status)
        )

    def sign(self, job: Job, status: SlotStatus, now: float) -> None:
        self.targets[job.token].sign(job.seq, job.slot, self.record(job, status), now)

    def die(self) -> None:
        """Nothing of this rank lands any more."""
        for queue in self.up.values():
            queue.clear()
        self.jobs.clear()
        self.late.clear()
        self.orders.clear()
        self.events.clear()
