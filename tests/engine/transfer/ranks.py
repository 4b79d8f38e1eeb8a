"""Ranks for tests of the sessions: what a rank's loop does, reduced to hand-offs."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import zmq

from pdcore.clock import Clock, SystemClock
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer.engine import TransferEngine
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes
from pdcore.engine.transfer.memory import on_host
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Announce,
    DecodeEvent,
    Expect,
    Fail,
    Handshaken,
    Open,
    PrefillEvent,
    PrefillGroup,
    PrefillPeer,
    Send,
    SendAhead,
    TokenLogprobs,
)
from pdcore.engine.transfer.receiving import ReceivingSession
from pdcore.engine.transfer.sending import Endpoint, SendingSession
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.wire import RankIdentity
from pdcore.errors import ErrorCode
from tests.support.eventually import eventually_now

LAYOUT = KvLayout.dense(
    layers=2, kv_heads=2, head_dim=4, block_size=4, itemsize=4, dtype_name="float32", order="head"
)
SOURCE_BLOCKS, DECODE_BLOCKS, SLOTS = 16, 32, 4
CANARY = 0xC5
ONE = GroupSizes(1, 1)
ALONE = GroupRank(0, 0)
Context = zmq.Context[zmq.Socket[bytes]]
Event = TypeVar("Event")


class ShiftedClock(SystemClock):
    """The machine's clock, plus what a test adds to it: deadlines pass without waiting for them."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def now(self) -> float:
        return super().now() + self.shift_s


def source_memory(tp_size: int = 1) -> memoryview:
    """A prefill rank's KV region: every block filled with its own number + 1."""
    block_bytes = LAYOUT.shard(tp_size, 0).block_bytes
    source = mmap.mmap(-1, SOURCE_BLOCKS * block_bytes)
    for block in range(SOURCE_BLOCKS):
        source.write(bytes([block + 1]) * block_bytes)
    return memoryview(source)


def sending(
    context: Context,
    runtime_dir: Path,
    incarnation: str = "p1",
    engine: TransferEngine | None = None,
    *,
    sizes: GroupSizes = ONE,
    rank: GroupRank = ALONE,
    layout: KvLayout = LAYOUT,
    clock: Clock | None = None,
    threads: int = 2,
) -> SendingSession:
    """An unopened prefill session on loopback."""
    return SendingSession(
        layout=layout,
        blocks=(SOURCE_BLOCKS,),
        source=source_memory(sizes.tp),
        sizes=sizes,
        identity=RankIdentity(instance_id="p", incarnation=incarnation, cp=rank.cp, tp=rank.tp),
        engine=engine or ShmEngine(),
        bind_ip="127.0.0.1",
        runtime_dir=runtime_dir,
        context=context,
        clock=clock or SystemClock(),
        threads=threads,
    )


def receiving(
    context: Context,
    incarnation: str = "d1",
    engine: TransferEngine | None = None,
    layout: KvLayout = LAYOUT,
    clock: Clock | None = None,
    *,
    sizes: GroupSizes = ONE,
    rank: GroupRank = ALONE,
    slots: int = SLOTS,
    probes: int = 8,
) -> ReceivingSession:
    """An unopened decode session."""
    return ReceivingSession(
        layout=layout,
        blocks=(DECODE_BLOCKS,),
        slots=slots,
        sizes=sizes,
        identity=RankIdentity(instance_id="d", incarnation=incarnation, cp=rank.cp, tp=rank.tp),
        engine=engine or ShmEngine(),
        context=context,
        clock=clock or SystemClock(),
        probes=probes,
        resend_s=0.05,
    )


def peer_at(endpoint: Endpoint, incarnation: str = "p1", rank: GroupRank = ALONE) -> PrefillPeer:
    """What a leader would read in the keyspace."""
    return PrefillPeer(
        instance_id="p",
        incarnation=incarnation,
        dp=0,
        cp=rank.cp,
        tp=rank.tp,
        rank_ip=endpoint.rank_ip,
        rank_port=endpoint.rank_port,
        transfer=endpoint.transfer,
    )


def group_of(*peers: PrefillPeer, sizes: GroupSizes = ONE) -> PrefillGroup:
    """The DP group that these ranks are."""
    return PrefillGroup(
        instance_id="p",
        incarnation=peers[0].incarnation,
        dp=0,
        dp_size=1,
        cp_size=sizes.cp,
        tp_size=sizes.tp,
        ranks=peers,
    )


class Prefill:
    """A prefill rank that computes nothing: a room that has all its halves is sent from ``blocks`` at once."""

    def __init__(self, session: SendingSession, *, sends: bool = True) -> None:
        self.session = session
        self.sends = sends
        self.clock = SystemClock()
        self.events: list[PrefillEvent] = []

    def expect(self, room: int, tokens: int, *, peer: str | None = "d1", within_s: float = 20.0) -> None:
        """The leg of ``room`` arrives."""
        order = Expect(room=room, expected_peer=peer, prompt_len=tokens, remaining_ms=int(within_s * 1000))
        self.session.obey(order, self.clock.now())

    def send(self, room: int, tokens: int, aux: TokenLogprobs | None = None, *, first: bool = True) -> None:
        """Blocks room, room+1, … (mod the pool); the first token is the room."""
        blocks = (source_blocks(room, tokens),)
        order = Send(room=room, blocks=blocks, first_token=room, kv_len=tokens, aux=aux, first=first)
        self.session.obey(order, self.clock.now())

    def send_ahead(self, room: int, computed: int, *, first: bool = True) -> None:
        """The same for what is computed of the prompt."""
        tokens = tokens_of(room)
        blocks = (source_blocks(room, tokens),)
        order = SendAhead(room=room, blocks=blocks, kv_len=tokens, computed=computed, first=first)
        self.session.obey(order, self.clock.now())

    def announce(self, room: int) -> None:
        """Its slot follows."""
        self.session.obey(Announce(room=room), self.clock.now())

    def fail(self, room: int, code: ErrorCode = "cancelled", message: str = "the client left") -> None:
        """The leg ends."""
        self.session.obey(Fail(room=room, code=code, message=message), self.clock.now())

    def turn(self) -> None:
        """One turn of the loop."""
        for event in self.session.poll(self.clock.now()):
            self.events.append(event)
            if isinstance(event, Handshaken) and self.sends:
                self.send(event.room, tokens_of(event.room))


class Decode:
    """A decode rank that keeps what it was told. Blocks are filled with the canary when it starts."""

    def __init__(self, session: ReceivingSession, clock: Clock | None = None) -> None:
        self.session = session
        self.clock = clock or SystemClock()
        self.events: list[DecodeEvent] = []
        self.handoffs = 0
        memory = on_host(session.region_buffer)
        memory[:] = bytes([CANARY]) * memory.nbytes

    def open(
        self, room: int, prefill: PrefillPeer | PrefillGroup, blocks: tuple[int, ...], within_s: float = 20.0
    ) -> int:
        """Ask for ``room``, whose prompt has ``tokens_of(room)`` tokens; returns the hand-off."""
        self.handoffs += 1
        order = Open(
            handoff=self.handoffs,
            room=room,
            prefill=prefill if isinstance(prefill, PrefillGroup) else group_of(prefill),
            blocks=(blocks,),
            prompt_len=tokens_of(room),
            remaining_ms=int(within_s * 1000),
        )
        self.session.obey(order, self.clock.now())
        return self.handoffs

    def abort(self, handoff: int, code: ErrorCode = "cancelled") -> None:
        """Nobody wants it any more."""
        self.session.obey(AbortHandoff(handoff=handoff, code=code), self.clock.now())

    def turn(self) -> None:
        """One turn of the loop."""
        self.events += self.session.poll(self.clock.now())

    def block(self, index: int) -> set[int]:
        """The distinct byte values in one block."""
        memory = on_host(self.session.region_buffer)
        size = memory.nbytes // DECODE_BLOCKS
        return set(memory[index * size : (index + 1) * size])


def source_blocks(room: int, tokens: int) -> tuple[int, ...]:
    """Where the prompt of ``room`` lies in a prefill rank's memory."""
    return tuple((room + i) % SOURCE_BLOCKS for i in range(LAYOUT.blocks_for(tokens)))


def tokens_of(room: int) -> int:
    """Every test prompt's length follows from its room, so that both sides agree: 5 … 8 tokens, two blocks."""
    return 5 + room % 4


def run(
    check: Callable[[], object],
    *ranks: Prefill | Decode,
    within_s: float = 10.0,
    ageing: ShiftedClock | None = None,
) -> None:
    """Turn the ranks' loops until ``check`` holds. With ``ageing`` each turn is a second later than the last: what
    silence brings comes then, also when answers under way are heard first and the silence begins after them."""

    def turned() -> object:
        if ageing is not None:
            ageing.shift_s += 1
        for rank in ranks:
            rank.turn()
        return check()

    eventually_now(turned, within_s)


def got(rank: Prefill | Decode, kind: type[Event]) -> list[Event]:
    """Events of one kind, in order."""
    return [event for event in rank.events if isinstance(event, kind)]


def has(rank: Prefill | Decode, kind: type[object]) -> bool:
    """Whether an event of that kind came."""
    return any(isinstance(event, kind) for event in rank.events)
