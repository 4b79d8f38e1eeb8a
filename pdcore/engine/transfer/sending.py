"""Prefill's session: takes links and handshakes of decode ranks, and writes the KV of finished prompts.

A thin shell round :class:`SendLedger`. It never connects anywhere: decode ranks connect to it, and the only memory it
writes is what they passed over a link the kernel vouched for. The rank's single-threaded loop calls ``expect``, ``send``
and ``fail`` as requests come and go, ``poll`` once per turn, and sleeps on ``pollables`` until ``next_wake``. Nothing
blocks: KV moves on the writers' threads.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import zmq

from pdcore.clock import Clock
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import channel, wire
from pdcore.engine.transfer.engine import Linked, Lost, TransferEngine
from pdcore.engine.transfer.greeting import refusal
from pdcore.engine.transfer.plan import RegionShape, block_problem, copy_blocks
from pdcore.engine.transfer.rooms import (
    Effect,
    Handshaken,
    Leg,
    Release,
    Say,
    SendEvent,
    SendFailed,
    Sent,
    StopWrite,
    WriteEnded,
)
from pdcore.engine.transfer.send_ledger import SendLedger
from pdcore.engine.transfer.states import TransferState
from pdcore.engine.transfer.writing import WriteJob, Writers, Written
from pdcore.errors import ApiError, ErrorCode, PeerGone
from pdcore.telemetry import logger

_MESSAGES_PER_POLL: Final = 256
_OUTBOX_MOST: Final = 4096
_BLAMED_MOST: Final = 1024

__all__ = ["Handshaken", "SendEvent", "SendFailed", "SendStatistics", "SendingSession", "Sent", "WriteEnded"]


class Endpoint(NamedTuple):
    """What the rank's record says about reaching it."""

    rank_ip: str
    rank_port: int
    transfer: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStatistics:
    """``rooms`` have a leg, ``stashed`` wait for theirs, ``writing`` are being written; 0 when nothing is open."""

    rooms: int
    stashed: int
    writing: int
    peers: int
    malformed: int
    strays: int
    dropped: int


@dataclass(slots=True)
class _Decode:
    """How to answer one decode rank. ``route`` follows its latest message: a reconnect changes it."""

    route: bytes
    outbox: channel.Outbox


class SendingSession:
    """See the module."""

    def __init__(
        self,
        *,
        layout: KvLayout,
        source: memoryview,
        identity: wire.RankIdentity,
        engine: TransferEngine,
        bind_ip: str,
        runtime_dir: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Clock,
        threads: int = 4,
        rooms_most: int = 4096,
        stash_most: int = 4096,
    ) -> None:
        self._layout = layout
        self._source_blocks = source.nbytes // layout.block_bytes
        self._identity = identity
        self._bind_ip = bind_ip
        self._context = context
        self._clock = clock
        self._sender = engine.sender(source, runtime_dir)
        self._writers = Writers(self._sender, clock, threads)
        self._ledger = SendLedger(rooms_most=rooms_most, stash_most=stash_most)
        self._offers: dict[bytes, int] = {}
        self._decodes: dict[bytes, _Decode] = {}
        self._jobs: dict[int, WriteJob] = {}
        self._unrung: dict[tuple[bytes, int], None] = {}
        self._pending: list[SendEvent] = []
        self._blamed: OrderedDict[bytes, None] = OrderedDict()
        self._malformed = 0
        self._strays = 0
        self._log = logger(__name__)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._router = stack.enter_context(channel.open_socket(self._context, zmq.ROUTER))
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._port = channel.bind(self._router, self._bind_ip)
            stack.enter_context(self._sender)
            stack.enter_context(self._writers)  # left first: no write outlives the mappings
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs.values():
            job.stopped = True
        self._stack.close()

    @property
    def endpoint(self) -> Endpoint:
        """For the rank's record in the keyspace."""
        return Endpoint(self._bind_ip, self._port, self._sender.endpoint())

    def pollables(self) -> list[int | zmq.Socket[bytes]]:
        """What the loop sleeps on."""
        return [self._router, self._writers.fileno(), *self._sender.pollables()]

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable; the past means now."""
        return -math.inf if self._pending else self._ledger.next_wake()

    def expect(self, *, room: int, expected_peer: str | None, prompt_len: int, deadline: float) -> None:
        """The prefill leg of ``room`` arrived. ``Handshaken`` follows when decode's half is there as well.

        ``ApiError``: ``room_in_use`` (active or handed off), the reason why the room is over already,
        ``rate_limited`` (too many), ``invalid_request`` (a room that is no integer in 1 … 2^63-1).
        """
        if type(room) is not int or not 1 <= room <= wire.MAX_ROOM:
            raise ApiError(
                "invalid_request", f"bootstrap_room {room!r} is outside 1..2^63-1", param="bootstrap_room"
            )
        self._apply(self._ledger.expect(room, Leg(expected_peer, prompt_len, deadline), self._clock.now()))

    def send(self, room: int, source_blocks: tuple[int, ...], first_token: int, kv_len: int) -> None:
        """Write the KV of a ``Handshaken`` room; the source blocks are read until ``WriteEnded``.

        ``IllegalTransition`` for a room that does not wait for input, ``ValueError`` for blocks or a length that do
        not fit it; nothing changed then.
        """
        needed = self._layout.blocks_for(kv_len)
        problem = block_problem(source_blocks, self._source_blocks)
        if problem is not None or len(source_blocks) < needed:
            raise ValueError(problem or f"{len(source_blocks)} blocks for {kv_len} tokens")
        shake, shape = self._ledger.start(room, kv_len)
        job = WriteJob(
            room=room,
            token=shake.token,
            seq=shake.seq,
            ops=copy_blocks(source_blocks[:needed], shake.blocks, self._layout.block_bytes),
            slot_offset=shape.slot_offset(shake.slot),
            first_token=first_token,
            kv_len=kv_len,
            deadline=shake.deadline,
        )
        self._jobs[room] = job
        self._writers.start(job)

    def fail(self, room: int, code: ErrorCode, message: str) -> None:
        """The leg ended on our side (error, abort). Decode is told now, or when it asks. Idempotent.

        No ``SendFailed`` follows; ``WriteEnded`` does if a write had started.
        """
        self._apply(self._ledger.fail(room, code, message, self._clock.now()))
        self._flush()

    def state(self, room: int) -> TransferState | None:
        """Where ``room`` stands, None when it is over or unknown."""
        return self._ledger.state(room)

    def poll(self, now: float) -> list[SendEvent]:
        """Everything that happened since the last call."""
        for written in self._writers.drain():
            self._end_write(written, now)
        self._ring_again()
        self._hear_links(now)
        for frames in channel.receive(self._router, _MESSAGES_PER_POLL):
            self._hear(frames, now)
        self._apply(self._ledger.tick(now))
        self._flush()
        events, self._pending = self._pending, []
        return events

    def statistics(self) -> SendStatistics:
        """Counts of this instant."""
        counts = self._ledger.counts()
        return SendStatistics(
            rooms=counts.rooms,
            stashed=counts.stashed,
            writing=counts.writing,
            peers=counts.links,
            malformed=self._malformed,
            strays=self._strays,
            dropped=sum(decode.outbox.dropped for decode in self._decodes.values()),
        )

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<SendingSession {s.rooms} rooms, {s.stashed} stashed, {s.writing} writing, {s.peers} peers>"

    # Hearing

    def _hear_links(self, now: float) -> None:
        for news in self._sender.drain():
            match news:
                case Linked(token=token, nbytes=nbytes):
                    self._offers[token] = nbytes
                case Lost(token=token):
                    self._offers.pop(token, None)
                    self._decodes.pop(token, None)
                    self._apply(self._ledger.lost(token, now))

    def _hear(self, frames: Sequence[bytes], now: float) -> None:
        try:
            message = wire.read_to_prefill(frames[1] if len(frames) == 2 else b"")
        except wire.MalformedFrame as error:
            self._blame(frames[0], error)
            return
        if isinstance(message, wire.Hello):
            self._greet(message, frames[0], now)
        elif self._ledger.is_welcome(message.token):
            self._decodes[message.token].route = frames[0]
            self._apply(self._take(message, now))
        else:
            self._strays += 1

    def _take(self, message: wire.Handshake | wire.Query | wire.Abort, now: float) -> list[Effect]:
        match message:
            case wire.Handshake():
                return self._ledger.handshake(message, now)
            case wire.Query():
                return self._ledger.query(message)
            case wire.Abort():
                return self._ledger.abort(message, now)

    def _greet(self, hello: wire.Hello, route: bytes, now: float) -> None:
        """Answer hello, as often as it comes. The offer was made before hello was sent, so it can be read now."""
        if hello.token not in self._offers:
            self._hear_links(now)
        if hello.token not in self._offers:
            self._strays += 1
            return
        decode = self._decodes.setdefault(hello.token, _Decode(route, channel.Outbox(_OUTBOX_MOST)))
        decode.route = route
        answer: wire.ToDecode = wire.Welcome(token=hello.token)
        if not self._ledger.is_welcome(hello.token):
            why = refusal(hello, self._identity, self._layout, self._offers[hello.token])
            if why is None:
                shape = RegionShape(self._layout, (hello.blocks,), hello.slots)
                self._ledger.welcome(hello.token, hello.decode, shape)
            else:
                answer = wire.Refused(token=hello.token, message=wire.short(why))
                self._log.warning("decode rank refused", peer=str(hello.decode), reason=why)
        decode.outbox.put("hello", wire.encode(answer))

    def _blame(self, route: bytes, error: wire.MalformedFrame) -> None:
        self._malformed += 1
        if route not in self._blamed:
            self._log.warning("malformed control message", route=route.hex(), error=str(error))
        self._blamed[route] = None
        while len(self._blamed) > _BLAMED_MOST:
            self._blamed.popitem(last=False)

    # Doing

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(token=token, message=message):
                    self._say(token, message)
                case StopWrite(room=room):
                    self._writers.stop(self._jobs[room])
                case Release(token=token):
                    self._sender.release(token)
                case _:
                    self._pending.append(effect)

    def _say(self, token: bytes, message: wire.ToDecode) -> None:
        decode = self._decodes.get(token)
        if decode is not None:
            key = (type(message), getattr(message, "seq", 0))
            decode.outbox.put(key, wire.encode(message))

    def _end_write(self, written: Written, now: float) -> None:
        job = written.job
        del self._jobs[job.room]
        if written.unrung:
            self._unrung[job.token, job.seq] = None
        self._apply(self._ledger.write_ended(job.room, written.outcome, written.message, now))

    def _ring_again(self) -> None:
        """Bells that found a full socket: decode sleeps, and off x86 the slot does not count without."""
        for token, seq in list(self._unrung):
            try:
                if self._sender.ring(token, seq):
                    del self._unrung[token, seq]
            except PeerGone:
                del self._unrung[token, seq]

    def _flush(self) -> None:
        for decode in self._decodes.values():
            if len(decode.outbox):
                decode.outbox.flush(partial(channel.send, self._router, decode.route))
