"""Prefill's end of ``tcp``: greets those who connect, and writes frames to them.

The loop's thread alone accepts, greets, notices ends and closes. Writers in other threads take turns on a link (its
``turn``), because frames may not mix; one that fails hangs the link up, which the loop then sees as its end.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import numpy as np

from pdcore.clock import Clock
from pdcore.engine.transfer import sockets, tcp_link
from pdcore.engine.transfer.blame import Blame
from pdcore.engine.transfer.engine import Linked, Lost
from pdcore.engine.transfer.plan import Column, WriteOps, check_bounds
from pdcore.engine.transfer.tcp_link import Head, Kind, Malformed, Offer, Outcome
from pdcore.errors import PeerGone, RejectedByPeer, TransferTimeout
from pdcore.telemetry import logger

_GUESTS_MOST: Final = 64
_ACCEPTS_PER_DRAIN: Final = 64
_SLOWEST_BYTES_S: Final = 16 << 20
"""What a link must move at least; the deadline of a large write grows with its bytes."""


@dataclass(slots=True)
class _Guest:
    """Somebody who connected and has not proven anything yet."""

    connection: socket.socket
    peer: str
    nonce: bytes
    until: float
    heard: bytearray = field(default_factory=bytearray)

    @property
    def missing(self) -> int:
        """Bytes to read next: of the offer's head, then of its rest."""
        if len(self.heard) < tcp_link.OFFER.size:
            return tcp_link.OFFER.size - len(self.heard)
        whole = tcp_link.OFFER.size + tcp_link.offer_length(bytes(self.heard[: tcp_link.OFFER.size]))
        return whole - len(self.heard)


@dataclass(slots=True)
class _Link:
    connection: socket.socket
    peer: str
    offer: Offer
    turn: threading.Lock = field(default_factory=threading.Lock)
    broken: bool = False

    def cut(self) -> None:
        """What was sent of a frame cannot be taken back, and nothing can follow it: the loop will see the end."""
        self.broken = True
        sockets.hang_up(self.connection)


class TcpSender:
    """See :class:`pdcore.engine.transfer.engine.Sender`.

    Mutable state: ``_guests`` by file descriptor (bounded, oldest closed first), ``_links`` by token, ``_tokens`` by
    file descriptor. Only the loop's thread changes them; writers only look a link up.
    """

    def __init__(
        self, source: memoryview, *, name: str, bind_ip: str, secret: bytes, timeout_s: float, clock: Clock
    ) -> None:
        self._source = source
        self._name = name
        self._bind_ip = bind_ip
        self._secret = secret
        self._timeout_s = timeout_s
        self._clock = clock
        self._guests: OrderedDict[int, _Guest] = OrderedDict()
        self._links: dict[bytes, _Link] = {}
        self._tokens: dict[int, bytes] = {}
        self._blame = Blame(logger(__name__), "malformed link")

    def __enter__(self) -> Self:
        self._published = secrets.token_hex(tcp_link.KEY_BYTES)
        self._key = tcp_link.link_key(self._published, self._secret)
        self._listener = sockets.listen(self._bind_ip)
        self._port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for token in list(self._links):
            self.release(token)
        for fd in list(self._guests):
            self._dismiss(fd)
        self._epoll.close()
        self._listener.close()

    @property
    def malformed(self) -> int:
        """Connections and answers that were not what they should be."""
        return self._blame.malformed

    def endpoint(self) -> dict[str, object]:
        """Where decode ranks connect, and what their proofs are made with."""
        return {
            "engine": self._name,
            "version": tcp_link.LINK_VERSION,
            "host": self._bind_ip,
            "port": self._port,
            "key": self._published,
        }

    def about(self, token: bytes) -> Mapping[str, str | int]:
        """What the offer of a link that is not released says beside its size."""
        return self._links[token].offer.about

    def pollables(self) -> list[int]:
        """One epoll descriptor for listener, guests and links."""
        return [self._epoll.fileno()]

    def drain(self) -> Sequence[Linked | Lost]:
        """Accept, greet, notice ends."""
        news: list[Linked | Lost] = []
        for fd, mask in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._guests:
                news += self._hear(fd, mask)
            else:
                news.append(self._end(fd))
        now = self._clock.now()
        for fd in [fd for fd, guest in self._guests.items() if guest.until <= now]:
            self._dismiss(fd, "it offered nothing in time")
        return news

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """One frame per 65,536 rows, each acknowledged before the next."""
        link = self._link(token)
        try:
            check_bounds(ops, self._source.nbytes, link.offer.nbytes)
        except ValueError as error:
            raise RejectedByPeer(str(error), in_doubt=False) from error
        for start in range(0, len(ops), tcp_link.MAX_ROWS):
            part = slice(start, start + tcp_link.MAX_ROWS)
            rows = zip(ops.src_off[part].tolist(), ops.length[part].tolist(), strict=True)
            payload = [self._source[offset : offset + length] for offset, length in rows]
            self._exchange(link, Kind.BLOCKS, seq, ops.dst_off[part], ops.length[part], payload)

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """A frame of one row, after which decode's loop is told to look."""
        link = self._link(token)
        if not 0 <= offset <= link.offer.nbytes - len(data):
            raise RejectedByPeer(f"offset {offset} is outside the peer's region", in_doubt=False)
        place = np.array([offset], np.int64), np.array([len(data)], np.int64)
        self._exchange(link, Kind.RECORD, seq, *place, [data])

    def inline_bytes(self, token: bytes) -> int:
        """None: a write waits for decode's ack."""
        return 0

    def check(self, token: bytes) -> None:
        """``PeerGone`` unless the link lives."""
        self._link(token)

    def ring(self, token: bytes, seq: int) -> bool:
        """Decode's end rings by itself when it has read a record."""
        self.check(token)
        return True

    def bell(self, token: bytes, seq: int) -> bool:
        """Ring without having written here; False when that would block."""
        link = self._link(token)
        if not link.turn.acquire(blocking=False):
            return False
        try:
            none = np.array([], np.int64)
            ring = tcp_link.frame(Head(Kind.BELL, 0, 0, seq), none, none)
            if link.connection.send(ring, socket.MSG_NOSIGNAL) < len(ring):
                link.cut()
        except BlockingIOError:
            return False
        except OSError as error:
            raise PeerGone(f"the decode rank hung up: {sockets.reason(error)}", in_doubt=False) from error
        finally:
            link.turn.release()
        return True

    def announce(self, token: bytes) -> None:
        """Not over this."""

    def release(self, token: bytes) -> None:
        """Close the link."""
        link = self._links.pop(token, None)
        if link is None:
            return
        if self._tokens.pop(link.connection.fileno(), None) is not None:
            self._epoll.unregister(link.connection.fileno())
        link.connection.close()

    # Writing, in any thread

    def _link(self, token: bytes) -> _Link:
        link = self._links.get(token)
        if link is None or link.broken:
            raise PeerGone("the decode rank is gone", in_doubt=False)
        return link

    def _exchange(
        self,
        link: _Link,
        kind: Kind,
        seq: int,
        offsets: Column,
        lengths: Column,
        payload: Sequence[bytes | memoryview],
    ) -> None:
        total = int(lengths.sum())
        head = tcp_link.frame(Head(kind, len(lengths), total, seq), offsets, lengths)
        deadline = self._clock.now() + self._timeout_s + total / _SLOWEST_BYTES_S
        with _turn(link, deadline - self._clock.now()):
            try:
                sockets.send_all(link.connection, [head, *payload], deadline, self._clock.now)
                raw = sockets.receive_exactly(link.connection, tcp_link.ACK.size, deadline, self._clock.now)
                outcome = tcp_link.read_ack(bytes(raw), seq)
            except TimeoutError as error:
                link.cut()
                raise TransferTimeout(
                    "the decode rank did not confirm the write in time", in_doubt=True
                ) from error
            except OSError as error:
                link.cut()
                raise PeerGone(f"the link broke: {sockets.reason(error)}", in_doubt=True) from error
            except Malformed as error:
                link.cut()
                self._blame(link.peer, str(error))
                raise PeerGone(f"the decode rank answered nonsense: {error}", in_doubt=True) from error
        if outcome is not Outcome.LANDED:
            why = (
                "wants no more of this room"
                if outcome is Outcome.REVOKED
                else "says that a row is outside its region"
            )
            raise RejectedByPeer(f"the decode rank {why}", in_doubt=False)

    # Greeting and noticing, in the loop's thread

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_DRAIN):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                return  # it hung up already, or no descriptor is left: the next drain tries again
            sockets.tune(connection)
            nonce = secrets.token_bytes(tcp_link.NONCE_BYTES)
            until = self._clock.now() + sockets.LINK_S
            fd = connection.fileno()
            self._guests[fd] = _Guest(connection, str(address[0]), nonce, until)
            self._epoll.register(fd, select.EPOLLIN)
            try:
                connection.send(tcp_link.greeting(nonce), socket.MSG_NOSIGNAL)
            except OSError:
                self._dismiss(fd)
            while len(self._guests) > _GUESTS_MOST:
                self._dismiss(next(iter(self._guests)), "too many connections without an offer")

    def _hear(self, fd: int, mask: int) -> list[Linked | Lost]:
        guest = self._guests[fd]
        try:
            while missing := guest.missing:
                chunk = guest.connection.recv(missing)
                if not chunk:
                    raise ConnectionResetError("it hung up")
                guest.heard += chunk
            return [self._take(fd, guest)]
        except BlockingIOError:
            return []
        except OSError:
            self._dismiss(fd, "it hung up in its offer" if guest.heard else None)
        except Malformed as error:
            self._dismiss(fd, str(error))
        return []

    def _take(self, fd: int, guest: _Guest) -> Linked:
        rest = bytes(guest.heard[tcp_link.OFFER.size :])
        offer = tcp_link.read_offer(rest, guest.nonce, self._key)
        if offer.token in self._links:
            raise Malformed("its token is in use")
        guest.connection.send(tcp_link.welcome(offer, guest.nonce, self._key), socket.MSG_NOSIGNAL)
        del self._guests[fd]
        self._links[offer.token] = _Link(guest.connection, guest.peer, offer)
        self._tokens[fd] = offer.token
        self._epoll.modify(fd, select.EPOLLRDHUP)  # what it says is read by who waits for it
        return Linked(offer.token, offer.nbytes)

    def _end(self, fd: int) -> Lost:
        token = self._tokens.pop(fd)
        self._epoll.unregister(fd)
        self._links[token].broken = True
        return Lost(token)

    def _dismiss(self, fd: int, why: str | None = None) -> None:
        guest = self._guests.pop(fd)
        if why is not None:
            self._blame(guest.peer, why)
        self._epoll.unregister(fd)
        guest.connection.close()


@contextmanager
def _turn(link: _Link, within_s: float) -> Iterator[None]:
    """Alone on a live link; raises while nothing of ours was sent."""
    if not link.turn.acquire(timeout=max(0.0, within_s)):
        raise TransferTimeout("other writes to the decode rank take too long", in_doubt=False)
    try:
        if link.broken:
            raise PeerGone("the decode rank is gone", in_doubt=False)
        yield
    finally:
        link.turn.release()
