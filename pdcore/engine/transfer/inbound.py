"""One ``tcp`` link as decode's receiving thread lives it: connect, be greeted, then take frames for ever.

A conversation is a generator that yields what its socket must be ready for and is continued when it is.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from pdcore.engine.transfer import sockets, tcp_link
from pdcore.engine.transfer.engine import Linked, Revoked, Rung
from pdcore.engine.transfer.gate import Gate
from pdcore.engine.transfer.tcp_link import Head, Kind, Offer, Outcome

_WINDOW: Final = 256
_SPILL_BYTES: Final = 256 << 10
_TURN_BYTES: Final = 8 << 20
"""After so many bytes the other links have their turn."""

_Steps = Generator[int, None, None]
Tell = Callable[[Linked | Rung | Revoked], None]


class Ended(Exception):
    """The peer hung up. Its words are a predicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What we offer under ``token``, and the key that proves it."""

    token: bytes
    nbytes: int
    key: bytes
    about: Mapping[str, str | int]


class Inbound:
    """See the module. ``until`` is when it must be linked, ``mask`` what epoll waits for."""

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        introduction: Introduction,
        region: memoryview,
        *,
        until: float,
        tell: Tell,
    ) -> None:
        self.connection = connection
        self.peer = peer
        self.introduction = introduction
        self.gate = Gate()
        self.until = until
        self.linked = False
        self.mask = 0
        self._region = region
        self._tell = tell
        self._steps = self._converse()

    def advance(self) -> int:
        """Go on until the socket is not ready; returns the epoll mask to wait for.

        Raises :class:`Ended`, ``OSError`` or ``Malformed``, after which the link is to be closed.
        """
        return next(self._steps)

    def _converse(self) -> _Steps:
        yield select.EPOLLOUT
        status = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            raise OSError(status, os.strerror(status))
        yield from self._introduce()
        self.until = float("inf")
        self.linked = True
        self._tell(Linked(self.introduction.token, self.introduction.nbytes))
        while True:
            yield select.EPOLLIN  # the other links have their turn after every frame
            yield from self._serve(tcp_link.read_head((yield from self._take(tcp_link.HEAD.size))))

    def _serve(self, head: Head) -> _Steps:
        rung = Rung(self.introduction.token, head.seq)
        if head.kind is Kind.BELL:
            self._tell(rung)
            return
        outcome = yield from self._land(head)
        if head.kind is Kind.RECORD and outcome is Outcome.LANDED:
            self._tell(rung)
        yield from self._say(tcp_link.ack(outcome, head.seq))

    def _introduce(self) -> _Steps:
        mine = self.introduction
        nonce = tcp_link.read_greeting((yield from self._take(tcp_link.GREETING.size)))
        offer = Offer(
            token=mine.token,
            nbytes=mine.nbytes,
            nonce=secrets.token_bytes(tcp_link.NONCE_BYTES),
            about=dict(mine.about),
        )
        yield from self._say(tcp_link.offer_frame(offer, nonce, mine.key))
        answer = yield from self._take(tcp_link.PROOF_BYTES)
        tcp_link.check_welcome(answer, offer, nonce, mine.key)

    def _land(self, head: Head) -> Generator[int, None, Outcome]:
        """Read one payload to its end: into the region while its seq is allowed, away from then on."""
        raw = yield from self._take(2 * tcp_link.CELL_BYTES * head.rows)
        offsets, lengths = tcp_link.read_columns(raw, head)
        if not tcp_link.fits(offsets, lengths, len(self._region)):
            yield from self._spill(head.total)
            return Outcome.OUT_OF_BOUNDS
        region = self._region
        rows = zip(offsets.tolist(), lengths.tolist(), strict=True)
        places: list[bytes | memoryview] = [region[offset : offset + length] for offset, length in rows]
        first, left, in_turn = 0, head.total, 0
        while left:
            if not self.gate.enter(head.seq):
                yield from self._spill(left)
                return Outcome.REVOKED
            got = self._piece(places[first : first + _WINDOW])
            if not got:
                yield select.EPOLLIN
                continue
            left -= got
            in_turn += got
            first = sockets.skip(places, first, got)
            if left and in_turn >= _TURN_BYTES:
                in_turn = 0
                yield select.EPOLLIN
        return Outcome.LANDED

    def _piece(self, places: list[bytes | memoryview]) -> int:
        """What is there now, into ``places``; 0 when there is nothing. The gate was entered and is left."""
        try:
            got: int = self.connection.recvmsg_into(places)[0]
        except BlockingIOError:
            return 0
        finally:
            revoked = self.gate.leave()
            if revoked is not None:
                self._tell(Revoked(self.introduction.token, revoked))
        if not got:
            raise Ended("is gone in the middle of a write")
        return got

    def _spill(self, left: int) -> _Steps:
        scratch = memoryview(bytearray(min(left, _SPILL_BYTES)))
        while left:
            try:
                got = self.connection.recv_into(scratch[: min(left, len(scratch))])
            except BlockingIOError:
                yield select.EPOLLIN
                continue
            if not got:
                raise Ended("is gone in the middle of a write")
            left -= got

    def _take(self, size: int) -> Generator[int, None, bytes]:
        buffer = bytearray(size)
        missing = memoryview(buffer)
        while missing:
            try:
                got = self.connection.recv_into(missing)
            except BlockingIOError:
                yield select.EPOLLIN
                continue
            if not got:
                raise Ended("is gone" if self.linked else "cannot be reached: it refused the link")
            missing = missing[got:]
        return bytes(buffer)

    def _say(self, data: bytes) -> _Steps:
        """While it waits to be taken nothing is read, so that a peer that never listens cannot pile up answers."""
        while data:
            try:
                data = data[self.connection.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                yield select.EPOLLOUT
