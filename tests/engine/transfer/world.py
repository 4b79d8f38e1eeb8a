"""A simulated fleet for the ledgers of both sides: one decode group, mortal prefill groups, a hostile transport.

Everything is driven by one seeded random source. Messages are delayed, dropped and doubled; orders and events between
leaders and ranks are delayed; ranks stand still and go on; writes land block by block in any order, fail half-way,
report failure and land later, or never; a failure's slot overtakes the data it speaks of. Every part of a block and
every slot knows which seq may write it now, and every landing is checked against that.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from pdcore.engine.consensus import DecodeConsensus, PrefillConsensus
from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import asking, wire
from pdcore.engine.transfer.entries import Tell
from pdcore.engine.transfer.links import Pair
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes, RankMapping
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeEvent,
    DecodeGroup,
    Drained,
    Expect,
    Fail,
    HandoffFailed,
    Handshaken,
    Open,
    PrefillEvent,
    PrefillGroup,
    Send,
    SendAhead,
    SendFailed,
    Sent,
    WriteEnded,
)
from pdcore.engine.transfer.plan import RegionShape
from pdcore.errors import ErrorCode
from pdcore.topology.keys import RankPosition
from tests.engine.transfer.world_decode import BLOCKS, HANDOFFS, DecodeRank, Peer
from tests.engine.transfer.world_prefill import PrefillRank

LAYOUT = KvLayout.dense(layers=1, kv_heads=2, head_dim=1, block_size=10, itemsize=1, dtype_name="uint8")
GROUPS = 2


@dataclass
class Group:
    """One start of a prefill instance. ``fenced`` are decode ranks that know of its death."""

    name: str
    ranks: dict[GroupRank, PrefillRank]
    consensus: PrefillConsensus
    legs: list[Expect] = field(default_factory=list)
    kv_len: dict[int, int] = field(default_factory=dict)
    computing: dict[int, int] = field(default_factory=dict)  # room -> tokens that are there
    let_go: set[tuple[GroupRank, int]] = field(default_factory=set)  # whose source a rank has let go of
    alive: bool = True
    fenced: set[GroupRank] = field(default_factory=set)


@dataclass
class Request:
    """What decode's leader knows of one request until its memory is free."""

    room: int
    blocks: tuple[int, ...]
    deadline: float
    over: bool = False


class World:
    """See the module. ``step`` does one random thing; ``settle`` lets everything end and checks that it did."""

    def __init__(self, seed: int, prefill: GroupSizes, decode: GroupSizes) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.mapping = RankMapping(prefill, decode, LAYOUT)
        self.pool = BlockPool(BLOCKS)
        self.revokes = self.rng.random() < 0.3
        self.decodes = {rank: self.decode_rank(rank) for rank in _ranks(decode)}
        self.consensus = DecodeConsensus([_position(rank) for rank in self.decodes])
        self.open: dict[int, Request] = {}  # hand-off -> request
        self.running: list[Request] = []
        self.ends: Counter[int] = Counter()
        self.seen: Counter[str] = Counter()
        self.rooms = 0
        self.born = 0
        self.lossy = True
        self.groups: list[Group] = []
        for _ in range(GROUPS):
            self.birth()

    def decode_rank(self, rank: GroupRank) -> DecodeRank:
        return DecodeRank(
            rank=rank,
            mapping=self.mapping,
            rng=self.rng,
            revokes=self.revokes,
            send=self.tell,
            seen=Counter(),
        )

    # Prefill groups come and go

    def birth(self) -> None:
        self.born += 1
        name = f"p{self.born}"
        group = Group(name, {}, PrefillConsensus(self.participants))
        for rank in _ranks(self.mapping.prefill):
            group.ranks[rank] = self.prefill_rank(name, rank)
        self.groups.append(group)
        for rank in self.mapping.participants():
            for decode in group.ranks[rank].targets.values():
                decode.decide(decode.ledger.linked(Peer(name, rank), self.now), self.now)

    def prefill_rank(self, name: str, rank: GroupRank) -> PrefillRank:
        made = PrefillRank(
            rank=rank, mapping=self.mapping, rng=self.rng, targets={}, lose=self.lose, seen=self.seen
        )
        sizes = self.mapping.decode
        group = DecodeGroup(instance_id="d", incarnation="d1", dp=0, cp_size=sizes.cp, tp_size=sizes.tp)
        for there in self.mapping.destinations_of(rank):
            token = _token(name, rank, there)
            decode = self.decodes[there]
            made.targets[token] = decode
            made.up[token], made.down[token] = deque(), deque()
            shape = RegionShape(LAYOUT.shard(sizes.tp, there.tp), (BLOCKS,), HANDOFFS * len(decode.sources))
            identity = wire.RankIdentity(instance_id="d", incarnation="d1", tp=there.tp)
            destinations = frozenset(self.mapping.destinations_of(rank))
            made.ledger.welcome(token, Pair(identity, group, destinations, shape), 0.0)
            made.ledger.heard(token, self.now)
        return made

    def participants(self, decode: DecodeGroup) -> list[RankPosition]:
        return [_position(rank) for rank in self.mapping.participants()]

    def kill(self, group: Group) -> None:
        """Dead at once: nothing lands any more. Decode's ranks learn of it later, one by one, at ``fence``."""
        group.alive = False
        for prefill in group.ranks.values():
            prefill.die()

    def fence(self, group: Group, decode: DecodeRank) -> None:
        group.fenced.add(decode.rank)
        decode.read_slots(self.now)
        for source in decode.sources:
            decode.decide(decode.ledger.lost(Peer(group.name, source), "is gone"), self.now)
        if group.fenced == set(self.decodes):
            self.groups.remove(group)
            self.birth()

    # Decode's leader

    def request(self) -> None:
        group = self.rng.choice([group for group in self.groups if not group.fenced] or self.groups)
        count = self.rng.randint(1, 3)
        if group.fenced or not self.pool.can_allocate(count):
            return
        self.rooms += 1
        room = handoff = self.rooms
        blocks = self.pool.allocate(count, handoff)
        assert blocks is not None
        within_s = self.rng.uniform(1, 30)
        self.open[handoff] = Request(room, blocks, self.now + within_s)
        self.consensus.open(handoff)
        order = Open(
            handoff=handoff,
            room=room,
            prefill=PrefillGroup(
                instance_id="p", incarnation=group.name, dp=0, dp_size=1, cp_size=1, tp_size=1, ranks=()
            ),
            blocks=(blocks,),
            prompt_len=count * 10,
            remaining_ms=int(within_s * 1000),
        )
        for decode in self.decodes.values():
            decode.orders.append(order)
        if self.rng.random() < 0.9:
            remaining_ms = int(self.rng.uniform(1, 30) * 1000)
            expected = "d1" if self.rng.random() < 0.9 else None
            group.legs.append(
                Expect(room=room, expected_peer=expected, prompt_len=count * 10, remaining_ms=remaining_ms)
            )

    def tell(self, decode: DecodeRank, tell: Tell) -> None:
        peer, entry = tell.peer, decode.ledger[tell.seq]
        assert isinstance(peer, Peer)
        token = _token(peer.group, peer.rank, decode.rank)
        message: wire.ToPrefill
        if tell.what == "abort":
            message = asking.abort(entry, token)
        else:
            message = asking.handshake(entry, token, self.now)
        self.post(peer, token, message)

    def post(self, peer: Peer, token: bytes, message: wire.ToPrefill) -> None:
        for group in self.groups:
            if group.name == peer.group and group.alive and not self.lose():
                group.ranks[peer.rank].up[token].extend([message] * (1 + self.lose()))

    def beat(self, decode: DecodeRank) -> None:
        """Ask every source how it is doing; now and then one is taken for silent."""
        for group in self.groups:
            for source in decode.sources:
                peer = Peer(group.name, source)
                token = _token(group.name, source, decode.rank)
                self.post(peer, token, wire.Beat(token=token, seqs=tuple(decode.ledger.open_seqs(peer))))
                if self.rng.random() < 0.01:
                    decode.decide(decode.ledger.silent(peer, "is silent", self.now), self.now)

    def decided(self, decode: DecodeRank) -> None:
        """What a rank said reaches the leader."""
        while decode.events and self.rng.random() < 0.7:
            for word in self.consensus.hear(_position(decode.rank), decode.events.popleft()):
                self.follow(word)

    def follow(self, word: DecodeEvent | AbortHandoff) -> None:
        match word:
            case AbortHandoff():
                for decode in self.decodes.values():
                    decode.orders.append(word)
            case HandoffFailed(handoff=handoff):
                self.end_request(handoff)
            case Arrived(handoff=handoff, first_token=token, kv_len=kv_len):
                request = self.open.pop(handoff)
                self.ends[request.room] += 1
                self.seen["arrived"] += 1
                assert token == request.room % 1000, "another request's first token"
                assert kv_len == len(request.blocks) * 10
                self.running.append(request)
            case Drained(handoff=handoff):
                self.seen["drained"] += 1
                assert self.pool.release(handoff) == self.open.pop(handoff).blocks

    def end_request(self, handoff: int) -> None:
        request = self.open[handoff]
        request.over = True
        self.ends[request.room] += 1
        self.pool.quarantine(request.blocks, handoff)

    def abort(self, handoff: int, code: ErrorCode) -> None:
        for word in self.consensus.abort(handoff, code):
            self.end_request(handoff)
            self.follow(word)

    def expire(self) -> None:
        """The leader watches deadlines as well: a rank that stands still cannot keep a request."""
        for handoff, request in list(self.open.items()):
            if not request.over and self.now >= request.deadline + 1:
                self.abort(handoff, "deadline_exceeded")

    def finish(self) -> None:
        if self.running:
            request = self.running.pop(self.rng.randrange(len(self.running)))
            for decode in self.decodes.values():
                decode.check_run(request.blocks, request.room)
            self.pool.free_owner(request.room)

    # Prefill's leader

    def lead(self, group: Group) -> None:
        if group.legs and self.rng.random() < 0.6:
            order = group.legs.pop(0)
            group.consensus.expect(order.room)
            group.kv_len[order.room] = order.prompt_len
            self.order(group, order)
        if self.rng.random() < 0.03:
            room = self.rng.randint(1, self.rooms + 3)
            group.computing.pop(room, None)
            group.consensus.fail(room)
            self.order(group, Fail(room=room, code="cancelled", message=""))
        for room in list(group.computing):
            if self.rng.random() < 0.6:
                self.compute(group, room)
        for rank, prefill in group.ranks.items():
            while prefill.events and self.rng.random() < 0.7:
                event = prefill.events.popleft()
                if isinstance(event, WriteEnded):
                    assert (rank, event.room) not in group.let_go, "let go of twice"
                    group.let_go.add((rank, event.room))
                for word in group.consensus.hear(_position(rank), event):
                    self.led(group, word)

    def led(self, group: Group, word: PrefillEvent | Fail) -> None:
        match word:
            case Handshaken(room=room):
                group.computing[room] = 0
                self.compute(group, room)
            case Fail():
                self.order(group, word)
            case Sent():
                self.seen["sent"] += 1
            case SendFailed(room=room):
                self.seen["send failed"] += 1
                group.computing.pop(room, None)
            case WriteEnded(room=room):
                for prefill in group.ranks.values():
                    assert room not in prefill.reading, "unpinned under a write"

    def compute(self, group: Group, room: int) -> None:
        """A chunk more of the prompt, or all that is left."""
        before, kv_len = group.computing[room], group.kv_len[room]
        group.consensus.send(room)
        if self.rng.random() < 0.5 or before == kv_len:
            del group.computing[room]
            self.order(
                group, Send(room=room, blocks=((0, 1, 2),), first_token=room, kv_len=kv_len, first=not before)
            )
            return
        group.computing[room] = computed = self.rng.randint(before + 1, kv_len)
        self.order(
            group,
            SendAhead(room=room, blocks=((0, 1, 2),), kv_len=kv_len, computed=computed, first=not before),
        )

    def order(self, group: Group, order: Expect | SendAhead | Send | Fail) -> None:
        for prefill in group.ranks.values():
            prefill.orders.append(order)

    # The whole

    def lose(self) -> bool:
        return self.lossy and self.rng.random() < 0.04

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 0.05, 0.3])
        act = self.rng.random()
        if act < 0.3:
            self.request()
        elif act < 0.34:
            live = [handoff for handoff, request in self.open.items() if not request.over]
            if live:
                self.abort(self.rng.choice(live), "cancelled")
        elif act < 0.5:
            self.finish()
        elif act < 0.51:
            self.now += 10
        elif act < 0.52:
            self.kill(self.rng.choice(self.groups))
        elif act < 0.54:
            self.stop()
        self.advance()

    def stop(self) -> None:
        """SIGSTOP somebody for a while."""
        ranks: list[DecodeRank | PrefillRank] = list(self.decodes.values())
        ranks += [prefill for group in self.groups for prefill in group.ranks.values()]
        self.rng.choice(ranks).stopped = self.rng.randint(1, 30)

    def advance(self) -> None:
        for group in list(self.groups):
            self.lead(group)
            for prefill in group.ranks.values():
                if group.alive:
                    prefill.turn(self.now)
            if not group.alive:
                for decode in self.decodes.values():
                    if decode.rank not in group.fenced and self.rng.random() < 0.2:
                        self.fence(group, decode)
        for decode in self.decodes.values():
            self.listen(decode)
            decode.turn(self.now)
            if not decode.stopped and self.rng.random() < 0.2:
                self.beat(decode)
            self.decided(decode)
        self.expire()

    def listen(self, decode: DecodeRank) -> None:
        if decode.stopped:
            return
        for group in list(self.groups):
            for source in decode.sources:
                token = _token(group.name, source, decode.rank)
                messages = group.ranks[source].down[token]
                if messages and self.rng.random() < 0.7 and decode.rank not in group.fenced:
                    effects = decode.ledger.hear(Peer(group.name, source), messages.popleft(), self.now)
                    decode.decide(effects, self.now)

    def is_quiet(self) -> bool:
        """Nothing is under way but what waits for a fence."""
        waits = any(not entry.in_doubt for decode in self.decodes.values() for entry in decode.ledger)
        counts = [prefill.ledger.counts() for group in self.groups for prefill in group.ranks.values()]
        busy = any(count.rooms or count.stashed or count.writing for count in counts)
        orders = any(decode.orders or decode.events for decode in self.decodes.values())
        computing = any(group.legs or group.computing for group in self.groups)
        return not (waits or busy or orders or self.running or computing)

    def settle(self) -> None:
        """No more loss, no more requests: all ends by itself, but for what is in doubt; the fence ends that."""
        self.lossy = False
        for _ in range(600):
            self.now += 0.5
            self.finish()
            self.advance()
            if self.is_quiet():
                break
        assert self.is_quiet(), "something hangs"
        self.end_of_decode()
        for group in list(self.groups):
            self.kill(group)
            for decode in self.decodes.values():
                if decode.rank not in group.fenced:
                    self.fence(group, decode)
        self.end_of_groups()

    def end_of_decode(self) -> None:
        """Decode dies for the prefill ranks: all is released, nothing is pinned."""
        for group in self.groups:
            for prefill in group.ranks.values():
                for token in prefill.targets:
                    prefill.perform(prefill.ledger.lost(token, self.now))
                counts = prefill.ledger.counts()
                assert (counts.rooms, counts.stashed, counts.writing, counts.pinned) == (0, 0, 0, 0)
                assert (counts.links, prefill.released, prefill.reading) == (0, set(prefill.targets), set())

    def end_of_groups(self) -> None:
        """Every prefill rank is fenced: nothing is held, and every request ended once."""
        for decode in self.decodes.values():
            for _ in range(50):
                self.decided(decode)
            ledger = decode.ledger
            assert (len(ledger), ledger.slots_used, decode.asked, len(decode.gathering)) == (0, 0, {}, 0)
            self.seen += decode.seen
        assert (self.open, len(self.consensus), self.pool.free_blocks) == ({}, 0, BLOCKS)
        assert set(self.ends) == set(range(1, self.rooms + 1))
        assert set(self.ends.values()) <= {1}


def _ranks(sizes: GroupSizes) -> list[GroupRank]:
    return [GroupRank(cp, tp) for cp in range(sizes.cp) for tp in range(sizes.tp)]


def _position(rank: GroupRank) -> RankPosition:
    return RankPosition(0, rank.cp, rank.tp)


@cache
def _token(group: str, prefill: GroupRank, decode: GroupRank) -> bytes:
    return f"{group} {prefill}>{decode}".encode().ljust(16, b".")[:16]


def run(seeds: Iterable[int], prefill: GroupSizes, decode: GroupSizes, steps: int) -> Counter[str]:
    """Whole histories; returns what happened in them."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, prefill, decode)
        for _ in range(steps):
            world.step()
        world.settle()
        seen += world.seen
    return seen
