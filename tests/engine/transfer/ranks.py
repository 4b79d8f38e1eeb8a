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
from pdcore.engine.transfer.orders import PrefillPeer
from pdcore.engine.transfer.receiving import ReceiveEvent, ReceivingSession
from pdcore.engine.transfer.sending import Endpoint, Handshaken, SendEvent, SendingSession
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.wire import RankIdentity
from tests.support.eventually import eventually_now

LAYOUT = KvLayout.dense(layers=2, kv_heads=1, head_dim=8, block_size=4, itemsize=4, dtype_name="float32")
SOURCE_BLOCKS, DECODE_BLOCKS, SLOTS = 16, 32, 4
CANARY = 0xC5
Context = zmq.Context[zmq.Socket[bytes]]
Event = TypeVar("Event")


class ShiftedClock(SystemClock):
    """The machine's clock, plus what a test adds to it: deadlines pass without waiting for them."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def now(self) -> float:
        return super().now() + self.shift_s


def source_memory() -> memoryview:
    """A prefill rank's KV region: every block filled with its own number + 1."""
    source = mmap.mmap(-1, SOURCE_BLOCKS * LAYOUT.block_bytes)
    for block in range(SOURCE_BLOCKS):
        source.write(bytes([block + 1]) * LAYOUT.block_bytes)
    return memoryview(source)


def sending(
    context: Context, runtime_dir: Path, incarnation: str = "p1", engine: TransferEngine | None = None
) -> SendingSession:
    """An unopened prefill session on loopback."""
    return SendingSession(
        layout=LAYOUT,
        source=source_memory(),
        identity=RankIdentity(instance_id="p", incarnation=incarnation),
        engine=engine or ShmEngine(),
        bind_ip="127.0.0.1",
        runtime_dir=runtime_dir,
        context=context,
        clock=SystemClock(),
        threads=2,
    )


def receiving(
    context: Context,
    incarnation: str = "d1",
    engine: TransferEngine | None = None,
    layout: KvLayout = LAYOUT,
    clock: Clock | None = None,
) -> ReceivingSession:
    """An unopened decode session."""
    return ReceivingSession(
        layout=layout,
        blocks_total=DECODE_BLOCKS,
        slots_total=SLOTS,
        identity=RankIdentity(instance_id="d", incarnation=incarnation),
        engine=engine or ShmEngine(),
        context=context,
        clock=clock or SystemClock(),
        resend_s=0.05,
        peer_share=1.0,
        total_share=1.0,
    )


def peer_at(endpoint: Endpoint, incarnation: str = "p1") -> PrefillPeer:
    """What a leader would read in the keyspace."""
    return PrefillPeer(
        instance_id="p",
        incarnation=incarnation,
        dp=0,
        cp=0,
        tp=0,
        rank_ip=endpoint.rank_ip,
        rank_port=endpoint.rank_port,
        transfer=endpoint.transfer,
    )


class Prefill:
    """A prefill rank that computes nothing: a room that has both halves is sent from ``blocks`` at once."""

    def __init__(self, session: SendingSession, *, sends: bool = True) -> None:
        self.session = session
        self.sends = sends
        self.events: list[SendEvent] = []

    def expect(self, room: int, tokens: int, *, peer: str | None = "d1", within_s: float = 20.0) -> None:
        """The leg of ``room`` arrives."""
        deadline = SystemClock().now() + within_s
        self.session.expect(room=room, expected_peer=peer, prompt_len=tokens, deadline=deadline)

    def send(self, room: int, tokens: int) -> None:
        """Blocks room, room+1, … (mod the pool); the first token is the room."""
        needed = LAYOUT.blocks_for(tokens)
        blocks = tuple((room + i) % SOURCE_BLOCKS for i in range(needed))
        self.session.send(room, blocks, room, tokens)

    def turn(self) -> None:
        """One turn of the loop."""
        for event in self.session.poll(SystemClock().now()):
            self.events.append(event)
            if isinstance(event, Handshaken) and self.sends:
                self.send(event.room, tokens_of(event.room))


class Decode:
    """A decode rank that keeps what it was told. Blocks are filled with the canary when it starts."""

    def __init__(self, session: ReceivingSession, clock: Clock | None = None) -> None:
        self.session = session
        self.clock = clock or SystemClock()
        self.events: list[ReceiveEvent] = []
        session.region_buffer[:] = bytes([CANARY]) * session.region_buffer.nbytes

    def open(self, room: int, peer: PrefillPeer, blocks: tuple[int, ...], within_s: float = 20.0) -> int:
        """Ask for ``room``, whose prompt has ``tokens_of(room)`` tokens."""
        deadline = self.clock.now() + within_s
        return self.session.open(
            room=room, peer=peer, blocks=blocks, prompt_len=tokens_of(room), deadline=deadline
        )

    def turn(self) -> None:
        """One turn of the loop."""
        self.events += self.session.poll(self.clock.now())

    def block(self, index: int) -> set[int]:
        """The distinct byte values in one block."""
        size = LAYOUT.block_bytes
        return set(self.session.region_buffer[index * size : (index + 1) * size])


def tokens_of(room: int) -> int:
    """Every test prompt's length follows from its room, so that both sides agree: 5 … 8 tokens, two blocks."""
    return 5 + room % 4


def run(check: Callable[[], object], *ranks: Prefill | Decode, within_s: float = 10.0) -> None:
    """Turn the ranks' loops until ``check`` holds."""

    def turned() -> object:
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
