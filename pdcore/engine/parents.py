"""Between an instance's leader and its follower parents, the parents on its other machines: who lives, who ends.

A follower joins and beats; the leader answers every beat. Silence of either side for ``silence_s`` is its end, which is the
instance's; death is mostly heard of sooner, by the keyspace. What the leader tells is what a follower is to register, and that it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
import zmq
import zmq.asyncio

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine import curve
from pdcore.engine.messages import Ready
from pdcore.topology.keys import RankPosition

BEAT_S: Final = 0.5
MAX_MESSAGE_BYTES: Final = 16 << 20
MOST_UNREAD: Final = 256
GARBLED_SHOWN: Final = 1

log = telemetry.logger(__name__)


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Follower to leader: this machine is here. ``registered`` once its ranks stand in the keyspace."""

    registered: bool


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Follower to leader: this machine takes no part any more, because of ``why``."""

    why: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """Leader to follower: so is the leader. ``ready`` is what the ranks of that machine said, once all have."""

    ready: dict[str, Ready]


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """Leader to follower: the instance ends; leave with this exit status."""

    status: int
    why: str


FromFollower = Beat | Ended
FromLeader = Answer | End
MessageT = TypeVar("MessageT")


class ParentLost(Exception):
    """The other side of the line is gone; the sentence says how."""


class FollowerParents:
    """The leader's end. Use as ``async with``; ``address`` is bound on entering. Without ``nodes`` it is no socket."""

    def __init__(
        self, address: str, nodes: Sequence[int], clock: Clock, *, silence_s: float, secret: str | None
    ) -> None:
        self._silence_s = silence_s
        self._bind = address
        self._nodes = {f"node.{node}".encode(): node for node in nodes}
        self._clock = clock
        self._secret = secret
        self._heard: dict[int, float] = {}
        self._registered: set[int] = set()
        self._all_registered = asyncio.Event()
        self._ready: dict[int, dict[str, Ready]] = {}
        self._garbled = 0
        self.address = ""

    async def __aenter__(self) -> Self:
        if self._nodes:
            self._context = zmq.asyncio.Context()
            self._socket: Any = _socket(self._context, zmq.ROUTER)
            self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            curve.listening(self._socket, self._secret)
            self._socket.bind(self._bind)
            self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        else:
            self._all_registered.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nodes:
            self._socket.close(linger=500)
            self._context.term()

    @property
    def missing(self) -> tuple[int, ...]:
        """The machines that have not joined yet."""
        return tuple(node for node in self._nodes.values() if node not in self._heard)

    async def watch(self) -> str:
        """Answer beats until one machine is lost; how."""
        if not self._nodes:
            await asyncio.Event().wait()
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    frames = await self._socket.recv_multipart()
            except TimeoutError:
                pass
            else:
                if (ended := await self._hear(frames)) is not None:
                    return ended
            now = self._clock.now()
            for node, at in self._heard.items():
                if now - at > self._silence_s:
                    return f"machine {node} has been silent for {self._silence_s:g} s"

    async def _hear(self, frames: Sequence[bytes]) -> str | None:
        node = self._nodes.get(frames[0])
        try:
            if node is None or len(frames) != 2:
                raise ValueError(f"{len(frames)} frames from {frames[0][:32]!r}")
            message = msgspec.msgpack.decode(frames[1], type=FromFollower)
        except (msgspec.MsgspecError, ValueError) as wrong:
            self._garbled += 1
            if self._garbled <= GARBLED_SHOWN:
                log.error("follower line garbled", reason=str(wrong))
            return None
        if isinstance(message, Ended):
            return f"machine {node}: {message.why}"
        if node not in self._heard:
            log.info("machine joined", node=node)
        self._heard[node] = self._clock.now()
        if message.registered:
            self._registered.add(node)
        if len(self._registered) == len(self._nodes):
            self._all_registered.set()
        await self._say(frames[0], Answer(ready=self._ready.get(node, {})))
        return None

    def register(self, ready: Mapping[int, Mapping[RankPosition, Ready]]) -> None:
        """Have each machine register its ranks."""
        self._ready = {node: {str(rank): one for rank, one in ranks.items()} for node, ranks in ready.items()}

    async def wait_registered(self) -> None:
        """Return once every machine's ranks stand in the keyspace."""
        await self._all_registered.wait()

    async def end(self, status: int, why: str) -> None:
        """Tell every machine that it is over; one that does not hear it notices the silence."""
        for identity in self._nodes:
            await self._say(identity, End(status=status, why=why))

    async def _say(self, identity: bytes, message: FromLeader) -> None:
        try:
            await self._socket.send_multipart([identity, msgspec.msgpack.encode(message)], flags=zmq.NOBLOCK)
        except zmq.Again:
            log.warning("machine takes no messages", node=self._nodes[identity])


class LeaderLine:
    """A follower's end, connected while the ``async with`` block lasts."""

    def __init__(
        self, address: str, node: int, clock: Clock, *, silence_s: float, secret: str | None
    ) -> None:
        self._silence_s = silence_s
        self._address = address
        self._node = node
        self._clock = clock
        self._secret = secret
        self._ready: asyncio.Future[dict[str, Ready]] | None = None
        self._heard = False
        self.registered = False

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket: Any = _socket(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"node.{self._node}".encode())
        curve.connecting(self._socket, self._secret)
        self._socket.connect(self._address)
        self._ready = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close(linger=500)
        self._context.term()

    async def beat(self) -> None:
        """Until cancelled."""
        while True:
            await self.say(Beat(registered=self.registered))
            await self._clock.sleep(BEAT_S)

    async def wait_end(self) -> End:
        """Listen until the leader says that it is over. :class:`ParentLost` when it says nothing any more."""
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    message = msgspec.msgpack.decode(await self._socket.recv(), type=FromLeader)
            except TimeoutError:
                raise ParentLost(f"the leader has been silent for {self._silence_s:g} s") from None
            except msgspec.MsgspecError as wrong:
                raise ParentLost(f"the leader speaks another language: {wrong}") from wrong
            if isinstance(message, End):
                return message
            assert self._ready is not None, "entered"
            if message.ready and not self._ready.done():
                self._ready.set_result(message.ready)

    async def wait_ready(self) -> dict[str, Ready]:
        """What this machine's ranks told the leader, once all ranks of the instance have."""
        assert self._ready is not None, "entered"
        return await asyncio.shield(self._ready)

    async def say(self, message: FromFollower) -> None:
        """Send without waiting; a leader that takes nothing is silent as well."""
        try:
            await self._socket.send(msgspec.msgpack.encode(message), flags=zmq.NOBLOCK)
        except zmq.Again:
            return


def _socket(context: zmq.asyncio.Context, kind: int) -> Any:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
    socket.setsockopt(zmq.RCVHWM, MOST_UNREAD)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    return socket
