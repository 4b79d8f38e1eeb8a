"""A rank's end of the ZMQ connection to its leader: schemas in, schemas out, never blocking."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final

import msgspec
import zmq

from pdcore import telemetry
from pdcore.engine import curve
from pdcore.engine.messages import MAX_MESSAGE_BYTES, ToLeader, ToRank

_MOST_PER_TURN: Final = 256
_MOST_UNREAD: Final = 65536

_log = telemetry.logger(__name__)


class LeaderStalled(Exception):
    """The leader has not read for so long that the queue to it is full."""


class LeaderLink:
    """Connected while the ``with`` block lasts."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        identity: bytes,
        *,
        secret: str | None = None,
    ) -> None:
        self._secret = secret
        self._context = context
        self._address = address
        self._identity = identity
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToRank)

    def __enter__(self) -> LeaderLink:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.SNDHWM, _MOST_UNREAD)
        socket.setsockopt(zmq.RCVHWM, _MOST_UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IDENTITY, self._identity)
        socket.setsockopt(zmq.IPV6, 1)
        curve.connecting(socket, self._secret)
        socket.connect(self._address)
        self.socket = socket
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive(self) -> Iterator[ToRank]:
        """Messages that are here now, a bounded number of them."""
        for _ in range(_MOST_PER_TURN):
            if not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # cheaper than an exception
                return
            frame = self.socket.recv(zmq.NOBLOCK)
            try:
                yield self._decoder.decode(frame)
            except msgspec.MsgspecError as wrong:
                _log.error("message refused", peer="leader", bytes=len(frame), reason=str(wrong))

    def send(self, message: ToLeader) -> None:
        """Queue ``message``; raises :class:`LeaderStalled` rather than wait."""
        try:
            self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again as full:
            raise LeaderStalled(f"{_MOST_UNREAD} messages to the leader are unread") from full
