"""Between a DP leader and its group's other ranks: orders out, reports back, over ZMQ; nothing here waits but ``join``.

The leader binds, the others connect and say :class:`Report` once, which is how the leader knows them. Everything a step
needs is one :class:`StepOrders`, in sequence; a rank that finds a number missing cannot follow any more and ends, and
so does a leader whose rank takes nothing. Tensors do not travel here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Annotated, Final, Self

import msgspec
import zmq
from msgspec import Meta

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine import curve
from pdcore.engine.messages import MAX_MESSAGE_BYTES
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.transfer.orders import Order, SendAhead, SideEvent
from pdcore.topology.keys import RankPosition

MOST_UNREAD: Final = 4096
MOST_PER_TURN: Final = 256
BLAMED_MOST: Final = 64
JOIN_POLL_MS: Final = 100

Number = Annotated[int, Meta(ge=0)]

_log = telemetry.logger(__name__)


class StepOrders(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """What every rank of the group does next: obey ``orders``, then compute ``batch`` together, or ``stop``.

    ``completing`` is to be obeyed when the KV of ``batch`` is in memory. ``number`` counts from 1 without gaps.
    """

    number: Number
    orders: tuple[Order, ...] = ()
    batch: tuple[Compute, ...] = ()
    completing: tuple[SendAhead, ...] = ()
    stop: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What happened at a rank; ``number`` is the step it has done last (0: none, it has just joined)."""

    number: Number
    events: tuple[SideEvent, ...] = ()


class GroupBroken(Exception):
    """The ranks of this group cannot go on together."""


class StepLeader:
    """The DP leader's end; without other ranks it is no socket at all. Bound while the ``with`` block lasts."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        others: Sequence[RankPosition],
        *,
        secret: str | None = None,
    ) -> None:
        self._context = context
        self._address = address
        self._ranks = {str(rank).encode(): rank for rank in others}
        self._secret = secret
        self._joined: set[RankPosition] = set()
        self._number = 0
        self._garbled: Counter[bytes] = Counter()
        self._socket: zmq.Socket[bytes] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Report)

    def __enter__(self) -> Self:
        if self._ranks:
            socket = _open(self._context, zmq.ROUTER)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            curve.listening(socket, self._secret)
            socket.bind(self._address)
            self._address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._socket = socket
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def address(self) -> str:
        """Where the others connect; with the port that was picked."""
        return self._address

    @property
    def garbled(self) -> int:
        """Messages that were none."""
        return self._garbled.total()

    def pollables(self) -> Sequence[zmq.Socket[bytes]]:
        """What wakes the loop for the others."""
        return () if self._socket is None else (self._socket,)

    def join(self, within_s: float, clock: Clock) -> None:
        """Return once every other rank is connected; :class:`GroupBroken` when that takes longer."""
        give_up_at = clock.now() + within_s
        while len(self._joined) < len(self._ranks):
            if clock.now() > give_up_at:
                missing = sorted(set(self._ranks.values()) - self._joined)
                raise GroupBroken(f"not joined within {within_s:g} s: {', '.join(map(str, missing))}")
            for socket in self.pollables():
                socket.poll(JOIN_POLL_MS)
            for _ in self.receive():
                continue

    def broadcast(
        self,
        orders: Sequence[Order] = (),
        batch: Sequence[Compute] = (),
        completing: Sequence[SendAhead] = (),
        *,
        stop: bool = False,
    ) -> None:
        """Queue the next step for every other rank. :class:`GroupBroken` when one of them takes nothing any more."""
        if self._socket is None:
            return
        self._number += 1
        step = StepOrders(
            number=self._number,
            orders=tuple(orders),
            batch=tuple(batch),
            completing=tuple(completing),
            stop=stop,
        )
        frame = self._encoder.encode(step)
        for identity, rank in self._ranks.items():
            try:
                self._socket.send_multipart([identity, frame], zmq.NOBLOCK)
            except zmq.ZMQError as refused:
                raise GroupBroken(f"rank {rank} takes no step: {refused}") from refused

    def receive(self) -> Iterator[tuple[RankPosition, SideEvent]]:
        """What the others have reported, a bounded number of messages of it."""
        if self._socket is None:
            return
        for _ in range(MOST_PER_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            rank, report = self._ranks.get(frames[0]), self._read(frames)
            if rank is not None and report is not None:
                self._joined.add(rank)
                for event in report.events:
                    yield rank, event

    def _read(self, frames: Sequence[bytes]) -> Report | None:
        identity = frames[0]
        try:
            if identity not in self._ranks or len(frames) != 2:
                raise ValueError(f"{len(frames)} frames of a sender that is {identity[:32]!r}")
            return self._decoder.decode(frames[1])
        except (msgspec.MsgspecError, ValueError) as wrong:
            if identity not in self._garbled:
                _log.error("step link garbled", peer=identity[:32].hex(), reason=str(wrong))
            known = identity if len(self._garbled) < BLAMED_MOST else b""
            self._garbled[known] += 1
            return None


class StepFollower:
    """Another rank's end, connected while the ``with`` block lasts."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        identity: bytes,
        *,
        secret: str | None = None,
    ) -> None:
        self._context = context
        self._address = address
        self._identity = identity
        self._secret = secret
        self._done = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepOrders)

    def __enter__(self) -> Self:
        socket = _open(self._context, zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, self._identity)
        curve.connecting(socket, self._secret)
        socket.connect(self._address)
        self.socket = socket
        self.report(())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive(self) -> StepOrders | None:
        """The next step, None while there is none. :class:`GroupBroken` when one was lost."""
        try:
            frame = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            step = self._decoder.decode(frame)
        except msgspec.MsgspecError as wrong:
            raise GroupBroken(f"{len(frame)} bytes of the DP leader are no step: {wrong}") from wrong
        if step.number != self._done + 1:
            raise GroupBroken(f"step {step.number} came after step {self._done}")
        self._done = step.number
        return step

    def report(self, events: Sequence[SideEvent]) -> None:
        """Queue ``events`` for the DP leader; :class:`GroupBroken` when it has not read for long."""
        frame = self._encoder.encode(Report(number=self._done, events=tuple(events)))
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again as full:
            raise GroupBroken(f"{MOST_UNREAD} reports to the DP leader are unread") from full


def _open(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
    socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    return socket
