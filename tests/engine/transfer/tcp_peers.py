"""Peers of a ``tcp`` link that are made of a bare socket: they say what a test wants, when it wants."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import numpy as np

from pdcore.engine.transfer import tcp_link
from pdcore.engine.transfer.tcp_link import Head, Kind, Offer
from tests.support.eventually import eventually_now

IP: Final = "127.0.0.1"
DEADLINE_S: Final = 10.0
PUBLISHED: Final = "cd" * tcp_link.KEY_BYTES


class RawPrefill:
    """Listens as a prefill rank does; ``meet`` takes one receiver through the greeting."""

    def __enter__(self) -> Self:
        self.listener = socket.create_server((IP, 0))
        self.listener.settimeout(DEADLINE_S)
        self.connections: list[socket.socket] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (*self.connections, self.listener):
            opened.close()

    def endpoint(self) -> dict[str, object]:
        return {
            "engine": "tcp",
            "version": tcp_link.LINK_VERSION,
            "host": IP,
            "port": self.listener.getsockname()[1],
            "key": PUBLISHED,
        }

    def accept(self) -> socket.socket:
        connection, _address = self.listener.accept()
        connection.settimeout(DEADLINE_S)
        self.connections.append(connection)
        return connection

    def meet(self) -> tuple[socket.socket, Offer]:
        key, nonce = tcp_link.link_key(PUBLISHED, b""), secrets.token_bytes(tcp_link.NONCE_BYTES)
        connection = self.accept()
        connection.sendall(tcp_link.greeting(nonce))
        length = tcp_link.offer_length(exactly(connection, tcp_link.OFFER.size))
        offer = tcp_link.read_offer(exactly(connection, length), nonce, key)
        connection.sendall(tcp_link.welcome(offer, nonce, key))
        return connection, offer


def raw_decode(endpoint: dict[str, object], offer: Offer, drain: Callable[[], object]) -> socket.socket:
    """Links to a sender as a decode rank does. ``drain`` turns the sender's loop."""
    where = tcp_link.read_endpoint(endpoint, "tcp")
    key = tcp_link.link_key(where.key, b"")
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((where.host, where.port), DEADLINE_S))
        nonce = tcp_link.read_greeting(turning(connection, tcp_link.GREETING.size, drain))
        connection.sendall(tcp_link.offer_frame(offer, nonce, key))
        tcp_link.check_welcome(turning(connection, tcp_link.PROOF_BYTES, drain), offer, nonce, key)
        stack.pop_all()
    return connection


def exactly(connection: socket.socket, size: int) -> bytes:
    """The next bytes; ``EOFError`` at their end."""
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def turning(connection: socket.socket, size: int, drain: Callable[[], object]) -> bytes:
    """The same while the other side's loop must be turned for it."""
    connection.settimeout(0.01)
    data = b""

    def more() -> bool:
        nonlocal data
        drain()
        try:
            chunk = connection.recv(size - len(data))
        except TimeoutError:
            return False
        if not chunk:
            raise EOFError
        data += chunk
        return len(data) == size

    eventually_now(more, DEADLINE_S, f"{size} bytes")
    connection.settimeout(DEADLINE_S)
    return data


def frame(rows: list[tuple[int, int]], seq: int, kind: Kind = Kind.BLOCKS) -> bytes:
    """Everything of a frame but its payload: rows of (offset, length)."""
    offsets = np.array([offset for offset, _ in rows], np.int64)
    lengths = np.array([length for _, length in rows], np.int64)
    return tcp_link.frame(Head(kind, len(rows), int(lengths.sum()), seq), offsets, lengths)
