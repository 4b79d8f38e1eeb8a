"""A leader's line to its ranks: one ZMQ socket, one :class:`Reply` per request.

The mutable state is ``_replies`` (requests a rank may still speak about), ``_rooms`` (their rooms), ``_unsent`` (aborts
that found a full pipe) and the newest ``Ready`` and ``Stats`` of each rank. A request enters with :meth:`Dispatch.open`
and leaves exactly once, when that context ends; leaving early tells the rank.

Nothing here blocks: sends are non-blocking and a full or missing peer is the caller's error, receiving is driven by the
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import msgspec
import zmq

from pdcore.engine import curve
from pdcore.engine.messages import (
    MAX_MESSAGE_BYTES,
    Abort,
    EndPeer,
    Failed,
    HandedOff,
    Ready,
    Restart,
    Start,
    Stats,
    Step,
    Stop,
    ToLeader,
    ToRank,
)
from pdcore.engine.replies import Reply
from pdcore.errors import ApiError, ConfigError, ErrorCode
from pdcore.telemetry import logger
from pdcore.topology.keys import RankPosition

MESSAGES_PER_TURN: Final = 256
MOST_WISHES: Final = 256

log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchStatistics:
    """What an operator sees of a dispatch."""

    held: int
    rooms: int
    unsent_aborts: int
    garbled: int


class Dispatch:
    """Use as ``with Dispatch(...)`` inside a running loop; ``address`` is bound on entering.

    ``heard`` is called with everything a rank says of itself. With ``secret`` only those who know it are ranks.
    """

    def __init__(
        self,
        address: str,
        ranks: Sequence[RankPosition],
        *,
        max_held: int,
        heard: Callable[[RankPosition, Stats], None] | None = None,
        secret: str | None = None,
    ) -> None:
        self._heard = heard
        self._address = address
        self._secret = secret
        self._ranks = {str(rank).encode(): rank for rank in ranks}
        self._max_held = max_held
        self._replies: dict[str, Reply] = {}
        self._rooms: set[int] = set()
        self._unsent: dict[str, RankPosition] = {}
        self._garbled = 0
        self._ready: dict[RankPosition, Ready] = {}
        self._stats: dict[RankPosition, Stats] = {}
        self._start_failure: str | None = None
        self._changed = asyncio.Event()
        self._wishes: asyncio.Queue[EndPeer | Restart] = asyncio.Queue(MOST_WISHES)
        self._decoder = msgspec.msgpack.Decoder(ToLeader)
        self._encoder = msgspec.msgpack.Encoder()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a rank that connects anew is heard at once
        self._socket.setsockopt(zmq.SNDHWM, 4 * self._max_held + 64)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        curve.listening(self._socket, self._secret)
        self._socket.bind(self._address)
        self._address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._on_readable)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=0)
        self._context.term()

    @property
    def max_held(self) -> int:
        """How many requests it holds at most."""
        return self._max_held

    @property
    def address(self) -> str:
        """Where ranks connect; with the port that was picked."""
        return self._address

    @property
    def stats(self) -> Mapping[RankPosition, Stats]:
        """The newest figures of each rank that has sent some."""
        return self._stats

    def statistics(self) -> DispatchStatistics:
        """Counts of this moment."""
        return DispatchStatistics(
            held=len(self._replies),
            rooms=len(self._rooms),
            unsent_aborts=len(self._unsent),
            garbled=self._garbled,
        )

    async def wait_ready(self) -> Mapping[RankPosition, Ready]:
        """Wait until every rank has said it is ready. ConfigError with a rank's sentence when it refused to start."""
        while len(self._ready) < len(self._ranks):
            self._changed.clear()
            await self._changed.wait()
            if self._start_failure is not None:
                raise ConfigError(self._start_failure)
        return self._ready

    async def next_wish(self) -> EndPeer | Restart:
        """Wait for what a rank wants of its leader."""
        return await self._wishes.get()

    def least_held_rank(self) -> RankPosition:
        """The DP leader rank with the fewest requests."""
        held = dict.fromkeys(self._leaders(), 0)
        for reply in self._replies.values():
            held[reply.rank] += 1
        return min(held, key=lambda rank: (held[rank], rank))

    @contextmanager
    def open(self, start: Start, rank: RankPosition, news: asyncio.Event | None = None) -> Iterator[Reply]:
        """Give ``start`` to ``rank``; leaving before the rank ended it aborts it. ``news`` as :class:`Reply` has it.

        ApiError when the instance holds all it may, the room is taken, or the rank cannot be reached.
        """
        self._admit(start)
        reply = Reply(start, rank, partial(self._abort, start.request_id, rank), news)
        if not self._send(rank, start):
            raise ApiError("backend_unavailable", f"rank {rank} takes no requests now", retry_after_s=1)
        self._replies[start.request_id] = reply
        if start.room:
            self._rooms.add(start.room)
        try:
            yield reply
        finally:
            self._replies.pop(start.request_id, None)
            self._rooms.discard(start.room)
            reply.leave()

    def fail_all(self, code: ErrorCode, message: str) -> int:
        """End every request with an error; how many there were."""
        for reply in self._replies.values():
            reply.fail(code, message)
        return len(self._replies)

    def stop(self) -> None:
        """Ask every DP leader to end, and its group with it; one that cannot be reached is for its parent to kill."""
        for rank in self._leaders():
            self._send(rank, Stop())

    def _leaders(self) -> list[RankPosition]:
        """The ranks that take requests, one per DP group."""
        return [rank for rank in self._ranks.values() if rank.cp == rank.tp == 0]

    def _admit(self, start: Start) -> None:
        if len(self._replies) >= self._max_held:
            message = f"the engine holds {len(self._replies)} requests, its limit; try again"
            raise ApiError("rate_limited", message, retry_after_s=1)
        if start.room and start.room in self._rooms:
            message = f"bootstrap_room {start.room} is running already"
            raise ApiError("room_in_use", message, param="bootstrap_room")

    def _send(self, rank: RankPosition, message: ToRank) -> bool:
        try:
            self._socket.send_multipart(
                [str(rank).encode(), self._encoder.encode(message)], flags=zmq.NOBLOCK
            )
        except (zmq.Again, zmq.ZMQError) as refused:
            log.debug("dispatch refused", rank=str(rank), kind=type(message).__name__, reason=str(refused))
            return False
        finally:
            self._loop.call_soon(
                self._on_readable
            )  # the descriptor is edge-triggered; a send may eat the edge
        return True

    def _on_readable(self) -> None:
        """Take what is there, at most a turn's worth; a rank that speaks has room for an abort again."""
        received = 0
        while received < MESSAGES_PER_TURN and self._receive_one():
            received += 1
        if received:
            self._resend_aborts()
        if received == MESSAGES_PER_TURN:
            self._loop.call_soon(self._on_readable)

    def _receive_one(self) -> bool:
        if self._socket.closed:
            return False
        try:
            frames = self._socket.recv_multipart(flags=zmq.NOBLOCK)
        except zmq.Again:
            return False
        if len(frames) == 2:
            self._receive(frames[0], frames[1])
        else:
            self._note_garbled(f"a message of {len(frames)} frames")
        return True

    def _receive(self, identity: bytes, raw: bytes) -> None:
        rank = self._ranks.get(identity)
        if rank is None:
            self._note_garbled(f"an unknown sender {identity[:32]!r}")
            return
        try:
            message = self._decoder.decode(raw)
        except msgspec.MsgspecError as wrong:
            self._note_garbled(str(wrong))
            return
        self._handle(rank, message)

    def _handle(self, rank: RankPosition, message: ToLeader) -> None:
        match message:
            case Step(outputs=outputs):
                for output in outputs:
                    if (reply := self._replies.get(output.request_id)) is not None:
                        reply.add(output)
            case HandedOff(request_id=request_id):
                if (reply := self._replies.get(request_id)) is not None:
                    reply.mark_handed_off()
            case Failed(request_id="", message=sentence):
                self._start_failure = sentence
                self._changed.set()
            case Failed(request_id=request_id, code=code, message=sentence):
                if (reply := self._replies.get(request_id)) is not None:
                    reply.fail(code, sentence)
            case Stats():
                self._stats[rank] = message
                if self._heard is not None:
                    self._heard(rank, message)
            case Ready():
                self._ready[rank] = message
                self._changed.set()
            case EndPeer() | Restart():
                if self._wishes.full():
                    log.warning("wish not taken", rank=str(rank), wish=type(message).__name__)
                else:
                    self._wishes.put_nowait(message)

    def _abort(self, request_id: str, rank: RankPosition) -> None:
        if not self._send(rank, Abort(request_id=request_id)):
            self._unsent[request_id] = rank

    def _resend_aborts(self) -> None:
        waiting, self._unsent = self._unsent, {}
        for request_id, rank in waiting.items():
            self._abort(request_id, rank)

    def _note_garbled(self, what: str) -> None:
        self._garbled += 1
        if self._garbled == 1:
            log.error("dispatch garbled", what=what)
