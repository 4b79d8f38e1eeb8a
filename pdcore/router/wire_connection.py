"""One keep-alive connection to an engine: a request goes out whole, its answer comes in part by part.

A connection serves one request at a time. What arrives is kept in the request's own :class:`Reply`, so that whoever
holds an old one can never read the answer to a later request. Past :data:`MOST_AHEAD_BYTES` that nobody has read the
socket is left alone, and TCP holds the engine back.

Mutable state of a connection: ``_reply`` (the request being served, None while idle), ``_transport``, ``_paused``, and
``_strayed``, which once set means that bytes came that belong to no request: such a connection is not used again. That
of a reply: ``state``, ``_parts`` and ``_waiter``, changed by its connection and by its one reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Literal, cast

import httptools

from pdcore.router.upstream import Broken, NotConnected

MOST_AHEAD_BYTES: Final = 64 << 10
MAX_HEAD_BYTES: Final = 64 << 10

State = Literal["head", "body", "complete", "broken"]


class Reply:
    """The answer to one request; implements :class:`pdcore.router.upstream.Answer` once its head is there."""

    __slots__ = (
        *("_closed_here", "_connection", "_loop", "_parts", "_waiter", "_why", "head_bytes"),
        *("headers", "keep_alive", "state", "status", "unread_bytes", "until_close"),
    )

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._parts: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._why = ""
        self._closed_here = False
        self.state: State = "head"
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.keep_alive = False
        self.until_close = False
        self.head_bytes = 0
        self.unread_bytes = 0

    async def head(self) -> None:
        """Return when status and headers are there; raises NotConnected or Broken."""
        while self.state == "head":
            waiter = self._waiter = self._loop.create_future()
            await waiter
        if self.state == "broken" and not self.status:
            raise self._failure()

    async def read(self) -> bytes:
        """Everything that has come and was not read yet, waiting for something; b"" at the end."""
        while not self._parts:
            if self.state == "complete":
                return b""
            if self.state == "broken":
                raise self._failure()
            waiter = self._waiter = self._loop.create_future()
            await waiter
        parts, self._parts = self._parts, []
        if self.unread_bytes > MOST_AHEAD_BYTES:
            self._connection.resume()
        self.unread_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def add(self, part: bytes) -> None:
        """A part of the body has come."""
        self._parts.append(part)
        self.unread_bytes += len(part)
        self.wake()

    def change(self, state: State) -> None:
        """Go on to ``state``."""
        self.state = state
        self.wake()

    def fail(self, why: str, *, closed_here: bool) -> None:
        """Nothing more will come, and it was not all; what has come may still be read."""
        if self.state != "complete":
            self._why, self._closed_here = why, closed_here
            self.change("broken")

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _failure(self) -> Broken | NotConnected:
        if self._closed_here and not self.status:
            return NotConnected(self._why, timed_out=False)
        return Broken(self._why)


class Connection(asyncio.Protocol):
    """One connection, made by ``create_connection``. ``on_closed`` is told when it is gone."""

    def __init__(self, on_closed: Callable[[Connection], None]) -> None:
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._headers: dict[str, str] = {}
        self._informational = False
        self._paused = False
        self._strayed = False
        self.idle_since = 0.0

    def send(self, head: bytes, body: bytes) -> Reply:
        """Begin a request on this idle connection."""
        assert self._reply is None, "one request at a time"
        reply = self._reply = Reply(self, self._loop)
        if self._transport is None or self._transport.is_closing():
            reply.fail("the connection is closed", closed_here=True)
        else:
            self._headers = {}
            self._transport.writelines((head, body))
        return reply

    def release(self) -> bool:
        """Forget the request. True when the next one may come, else the connection is closed."""
        reply, self._reply = self._reply, None
        if reply is not None and reply.state == "complete" and reply.keep_alive and self.usable:
            self.resume()
            return True
        self.close("the request was given up")
        return False

    @property
    def usable(self) -> bool:
        """Open, and everything that ever came was an answer."""
        return self._transport is not None and not self._strayed and not self._transport.is_closing()

    def close(self, why: str) -> None:
        """End it at once, on this side's own account."""
        if self._reply is not None:
            self._reply.fail(why, closed_here=True)
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """Read from the socket again."""
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
                reply.change("complete")
            else:
                reply.fail(_how_it_ended(exc), closed_here=False)
        self._on_closed(self)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self._stray()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as wrong:
            reply.fail(f"the answer is not HTTP: {wrong}", closed_here=False)
            self._stray()
            return
        if reply.state == "head":
            self._bound_head(reply, len(data))
        elif reply.unread_bytes > MOST_AHEAD_BYTES and not self._paused:
            self._pause()

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _bound_head(self, reply: Reply, more: int) -> None:
        reply.head_bytes += more
        if reply.head_bytes > MAX_HEAD_BYTES:
            reply.fail(f"the answer's head is larger than {MAX_HEAD_BYTES} bytes", closed_here=False)
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
        key, text = name.lower().decode("latin-1"), value.decode("latin-1")
        earlier = self._headers.get(key)
        self._headers[key] = text if earlier is None else f"{earlier}, {text}"

    def on_headers_complete(self) -> None:
        reply = self._reply
        if reply is None or reply.state != "head":
            return
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, {}
        if 100 <= status < 200:
            self._informational = True
            return
        reply.status, reply.headers = status, headers
        reply.keep_alive = self._parser.should_keep_alive()
        reply.until_close = "content-length" not in headers and "transfer-encoding" not in headers
        reply.change("body")

    def on_body(self, part: bytes) -> None:
        reply = self._reply
        if reply is not None and reply.state == "body":
            reply.add(part)

    def on_message_complete(self) -> None:
        reply = self._reply
        if self._informational:
            self._informational = False
        elif reply is not None and reply.state == "body":
            reply.change("complete")


def _how_it_ended(error: Exception | None) -> str:
    if error is None:
        return "the answer ended early: the engine closed the connection"
    return f"the connection was reset: {error}"
