"""One keep-alive connection to an engine: a request goes out whole, its answer comes in part by part.

A connection serves one request at a time. What arrives is kept in the request's own :class:`Reply`, so that whoever
holds an old one can never read the answer to a later request. Past :data:`MOST_AHEAD_BYTES` that nobody has taken the
socket is left alone, and TCP holds the engine back.

Mutable state of a connection: ``_reply`` (the request being served, None while idle), ``_transport``, ``_paused``, and
``_strayed``, which once set means that bytes came that belong to no request: such a connection is not used again; and
``_between_chunks``, while the parser has seen whole chunks and nothing of a further one. That of a reply: what has come, changed by its connection and by whoever takes it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final, cast

import httptools

from pdcore.router.upstream import Broken, Frames, NotConnected, State
from pdcore.router.wire_encoding import Inflater, inflater

MOST_AHEAD_BYTES: Final = 64 << 10
MAX_HEAD_BYTES: Final = 64 << 10
_CAN_ACKNOWLEDGE_LATE: Final = hasattr(socket, "TCP_QUICKACK")  # Linux


def _nobody() -> None:
    """Is told of nothing."""


class Reply:
    """The answer to one request, as far as it has come."""

    __slots__ = (
        *("_broken", "_connection", "_inflater", "_parts", "_tell", "changed", "head_bytes", "headers"),
        *("frames", "keep_alive", "state", "status", "unread_bytes", "until_close"),
    )

    def __init__(self, tell: Callable[[], None] = _nobody) -> None:
        self._tell = tell
        self._connection: Connection | None = None
        self._inflater: Inflater | None = None
        self._parts: list[bytes] = []
        self._broken: NotConnected | Broken | None = None
        self.changed = False
        self.frames: Frames | None = None
        self.state: State = "head"
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.keep_alive = False
        self.until_close = False
        self.head_bytes = 0
        self.unread_bytes = 0

    # What whoever asked does

    def take(self) -> bytes:
        """See :meth:`pdcore.router.upstream.Call.take`."""
        if self._inflater is None:
            return self._take_raw()
        part = self._inflater.take()
        while not part and self._parts:
            self._inflater.feed(self._take_raw())
            part = self._inflater.take()
        if not part and self.state == "complete":
            self._inflater.check_end()
        return part

    def failure(self) -> NotConnected | Broken:
        """See :meth:`pdcore.router.upstream.Call.failure`."""
        assert self._broken is not None, "it has not failed"
        return self._broken

    def offer_frames(self, take: Frames) -> None:
        """See :meth:`pdcore.router.upstream.Call.offer_frames`."""
        if self._inflater is None:
            self.frames = take
        if self._connection is not None:
            self._connection.expect_many(self)

    def forget(self) -> None:
        """Nobody wants to be told any more."""
        self._tell = _nobody
        self.frames = None

    # What its connection does

    def sent(self, connection: Connection) -> None:
        """It is on its way."""
        self._connection = connection

    def begin(self, status: int, headers: Mapping[str, str], *, keep_alive: bool) -> None:
        """The head has come."""
        self.status, self.headers, self.keep_alive = status, headers, keep_alive
        self.until_close = "content-length" not in headers and "transfer-encoding" not in headers
        if "content-encoding" in headers:
            try:
                self._inflater = inflater(headers["content-encoding"])
            except Broken as wrong:
                self.status = 0
                return self.fail(wrong)
        self.state = "body"
        self.changed = True

    def add(self, part: bytes) -> None:
        """A part of the body has come."""
        self._parts.append(part)
        self.unread_bytes += len(part)
        self.changed = True

    def complete(self) -> None:
        """That was all."""
        self.state = "complete"
        self.changed = True

    def fail(self, why: NotConnected | Broken) -> None:
        """Nothing more will come, and it was not all; what has come may still be taken."""
        if self.state in ("head", "body"):
            self.state, self._broken = "failed", why
            self.changed = True

    def tell(self) -> None:
        """Have it looked at, if there is anything new."""
        if self.changed:
            self.changed = False
            self._tell()

    def _take_raw(self) -> bytes:
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        if self.unread_bytes > MOST_AHEAD_BYTES and self._connection is not None:
            self._connection.resume(self)
        self.unread_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Connection(asyncio.Protocol):
    """One connection, made by ``create_connection``. ``on_closed`` is told when it is gone."""

    def __init__(self, on_closed: Callable[[Connection], None]) -> None:
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._informational = False
        self._between_chunks = False
        self._paused = False
        self._strayed = False
        self.idle_since = 0.0

    def send(self, reply: Reply, head: bytes, body: bytes) -> None:
        """Begin a request on this idle connection; its answer goes into ``reply``."""
        assert self._reply is None, "one request at a time"
        self._reply = reply
        reply.sent(self)
        if self._transport is None or self._transport.is_closing():
            reply.fail(NotConnected("the connection is closed", timed_out=False))
        else:
            self._headers = []
            self._write(self._transport, head, body)

    def _write(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if len(body) <= MOST_AHEAD_BYTES:
            transport.write(head + body)  # to copy what is small is cheaper than to send two pieces
        else:
            transport.writelines((head, body))

    def release(self) -> bool:
        """Forget the request. True when the next one may come, else the connection is closed."""
        reply, self._reply = self._reply, None
        if reply is not None and reply.state == "complete" and reply.keep_alive and self.usable:
            self._read_on()
            return True
        self.close("the request was given up")
        return False

    @property
    def usable(self) -> bool:
        """Open, and everything that ever came was an answer."""
        return self._transport is not None and not self._strayed and not self._transport.is_closing()

    def close(self, why: str) -> None:
        """End it at once, on this side's own account."""
        reply = self._reply
        if reply is not None:
            reply.fail(Broken(why) if reply.status else NotConnected(why, timed_out=False))
            reply.tell()
        if self._transport is not None:
            self._transport.abort()

    def resume(self, reply: Reply) -> None:
        """``reply`` can take more; if it is the one being served, read from the socket again."""
        if reply is self._reply:
            self._read_on()

    def expect_many(self, reply: Reply) -> None:
        """``reply`` comes in many small parts: have not every one of them acknowledged when it is read.

        Linux does that by itself, and it is a tenth of what such a part costs. See tcp(7), ``TCP_QUICKACK``: the setting
        holds until the kernel finds that a part waited for its acknowledgement in vain.
        """
        if not _CAN_ACKNOWLEDGE_LATE or reply is not self._reply or not self.usable:
            return
        assert self._transport is not None, "it is usable"
        carrier = self._transport.get_extra_info("socket")
        if carrier is not None:
            carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)

    def _read_on(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._paused = False

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from nothing

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        reply = self._reply
        if reply is not None:
            if exc is None and reply.until_close and reply.state == "body":
                reply.complete()
            else:
                reply.fail(Broken(_how_it_ended(exc)))
            reply.tell()
        self._on_closed(self)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self._stray()
            return
        if self._between_chunks and reply.frames is not None and reply.frames(data):
            return
        try:
            self._between_chunks = False
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as wrong:
            reply.fail(Broken(f"the answer is not HTTP: {wrong}"))
            self._stray()
        if reply.state == "head":
            self._bound_head(reply, len(data))
        elif reply.unread_bytes > MOST_AHEAD_BYTES and not self._paused:
            self._pause()
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")
        reply.tell()

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _bound_head(self, reply: Reply, more: int) -> None:
        reply.head_bytes += more
        if reply.head_bytes > MAX_HEAD_BYTES:
            reply.fail(Broken(f"the answer's head is larger than {MAX_HEAD_BYTES} bytes"))
            self._stray()

    def _stray(self) -> None:
        self._strayed = True
        if self._transport is not None:
            self._transport.abort()

    # What the parser says

    def on_message_begin(self) -> None:
        reply = self._reply
        if reply is None or reply.state != "head":
            self._strayed = True

    def on_header(self, name: bytes, value: bytes) -> None:
        reply = self._reply
        if reply is None or reply.state != "head":
            return  # a trailer, or an answer to nobody
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        reply = self._reply
        if reply is None or reply.state != "head":
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if 100 <= status < 200:
            self._informational = True
            return
        reply.begin(status, _by_name(headers), keep_alive=self._parser.should_keep_alive())

    def on_body(self, part: bytes) -> None:
        reply = self._reply
        if reply is not None and reply.state == "body":
            reply.add(part)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_message_complete(self) -> None:
        reply = self._reply
        if self._informational:
            self._informational = False
        elif reply is not None and reply.state == "body":
            reply.complete()


def _by_name(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their lower-case names; of several of one name, all that they say."""
    found = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if len(found) == len(headers):
        return found
    every: dict[str, str] = {}
    for raw, value in headers:
        name, said = raw.lower().decode("latin-1"), value.decode("latin-1")
        every[name] = f"{every[name]}, {said}" if name in every else said
    return every


def _how_it_ended(error: Exception | None) -> str:
    if error is None:
        return "the answer ended early: the engine closed the connection"
    return f"the connection was reset: {error}"
