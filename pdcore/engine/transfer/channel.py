"""Control sockets that never block: what cannot be sent now waits in a bounded queue, or is dropped and counted.

Dropping is safe because every message is repeated by whoever needs its answer.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Literal

import zmq

from pdcore.engine.transfer.wire import MAX_FRAME_BYTES
from pdcore.errors import ConfigError, PeerGone

SOCKET_HWM: Final = 64
Sending = Literal["sent", "later", "no_peer"]


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket with small queues and bounded frames that keeps nothing at close."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, SOCKET_HWM)
    socket.setsockopt(zmq.RCVHWM, SOCKET_HWM)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    return socket


def connect(socket: zmq.Socket[bytes], ip: str, port: int) -> None:
    """Start connecting to a numeric address; ``PeerGone`` when it is none."""
    try:
        host = f"[{ip}]" if ipaddress.ip_address(ip).version == 6 else ip
        socket.setsockopt(zmq.IPV6, int(":" in ip))
        socket.connect(f"tcp://{host}:{port}")
    except (ValueError, zmq.ZMQError) as error:
        raise PeerGone(f"its address {ip}:{port} is not usable: {error}", in_doubt=False) from error


def bind(socket: zmq.Socket[bytes], ip: str) -> int:
    """Listen on a free port of a numeric address and return it; ``ConfigError`` when that is impossible."""
    try:
        host = f"[{ip}]" if ipaddress.ip_address(ip).version == 6 else ip
        socket.setsockopt(zmq.IPV6, int(":" in ip))
        socket.bind(f"tcp://{host}:*")
    except (ValueError, zmq.ZMQError) as error:
        raise ConfigError(f"cannot listen for KV handshakes on {ip}: {error}") from error
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return int(address.rstrip(b"\0").rpartition(b":")[2])


def send(socket: zmq.Socket[bytes], *frames: bytes) -> Sending:
    """Hand one message to ZMQ or say why not."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return "later"
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return "no_peer"
        raise
    return "sent"


def receive(socket: zmq.Socket[bytes], most: int) -> list[list[bytes]]:
    """Messages that are there, at most so many."""
    messages: list[list[bytes]] = []
    while (
        len(messages) < most and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
    ):  # cheaper than an exception
        messages.append(socket.recv_multipart(zmq.NOBLOCK))
    return messages


class Outbox:
    """Frames for one peer in order, one per key: a message that is still waiting is not queued a second time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: OrderedDict[Hashable, bytes] = OrderedDict()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Hashable, frame: bytes) -> None:
        """Queue ``frame`` unless ``key`` waits already (then the newer content takes its place)."""
        if key not in self._waiting and len(self._waiting) >= self._most:
            self.dropped += 1
            return
        self._waiting[key] = frame

    def flush(self, deliver: Callable[[bytes], Sending]) -> None:
        """Send from the front until one cannot go."""
        while self._waiting:
            key, frame = next(iter(self._waiting.items()))
            if deliver(frame) != "sent":
                return
            del self._waiting[key]
