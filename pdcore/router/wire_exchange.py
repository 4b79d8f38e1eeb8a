"""One request of a client and its response, as the ASGI application sees them.

The head of a response waits for the first part of its body, as ASGI wants it, and both go out as one. Reading and
writing hold back: a client that sends more than :data:`MOST_AHEAD_BYTES` before anybody looks is not read from, and a
part of a response is taken when the one before has left for the most part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol

MOST_AHEAD_BYTES: Final = 64 << 10

Message = MutableMapping[str, Any]
RawHeaders = Iterable[tuple[bytes, bytes]]
Framing = Literal["chunked", "length", "close", "none"]

DISCONNECT: Final[Mapping[str, Any]] = {"type": "http.disconnect"}


class Wire(Protocol):
    """What an exchange asks of its connection."""

    def write(self, data: bytes) -> None: ...

    def writer(self) -> Callable[[bytes], None]:
        """``write`` itself, for as long as the connection is open."""
        ...

    def read_on(self) -> None:
        """The client may send again."""
        ...

    def hold_back(self) -> None:
        """The client shall wait."""
        ...

    def drained(self) -> asyncio.Future[None] | None:
        """What to wait for before more is written; None when nothing is in the way."""
        ...

    def ended(self, exchange: Exchange) -> None:
        """The response is complete."""
        ...

    def standing_headers(self) -> RawHeaders:
        """What every response carries."""
        ...


class Exchange:
    """Mutable state: the request's body as far as it came (``_parts``, ``_more``, ``_given``), how far the response is
    (``_head``, ``started``, ``complete``, ``_framing``, ``_left``), and whether the client has ``gone``. ``takes_frames``
    follows from the latter two and from the connection's brake; it is kept because it is asked for every frame.

    Implements :class:`pdcore.router.answer.Outlet`."""

    __slots__ = (
        *("_framing", "_given", "_head", "_left", "_loop", "_more", "_on_gone", "_parts", "_unread_bytes"),
        *("_waiter", "_wants_continue", "_wire", "complete", "gone", "keep_alive", "scope", "started"),
        *("takes_frames", "write_frame"),
    )

    def __init__(
        self,
        wire: Wire,
        scope: Message,
        loop: asyncio.AbstractEventLoop,
        *,
        keep_alive: bool,
        wants_continue: bool,
    ) -> None:
        self._wire = wire
        self._loop = loop
        self.scope = scope
        self.keep_alive = keep_alive
        self._wants_continue = wants_continue
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._more = True
        self._given = False
        self._waiter: asyncio.Future[None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self._head = b""
        self._framing: Framing = "none"
        self._left = 0
        self.started = False
        self.complete = False
        self.gone = False
        self.takes_frames = False
        self.write_frame: Callable[[bytes], None] = wire.write

    # What comes from the client

    def add(self, part: bytes) -> None:
        """A part of the body."""
        if self.complete:
            return
        self._parts.append(part)
        self._unread_bytes += len(part)
        if self._unread_bytes > MOST_AHEAD_BYTES:
            self._wire.hold_back()
        self._wake()

    def end_body(self) -> None:
        """The body is whole."""
        self._more = False
        self._wake()

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        self.takes_frames = False
        if self._on_gone is not None and not self.complete:
            self._on_gone()
        self._wake()

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Have ``call`` called when the client leaves before its response is complete; soon if it has. None: nobody."""
        self._on_gone = call
        if self.gone and call is not None:
            self._loop.call_soon(call)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the application does

    async def receive(self) -> Message:
        """ASGI's ``receive``."""
        if self._wants_continue and not self.gone:
            self._wants_continue = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            if self.gone or self.complete:
                return dict(DISCONNECT)
            if self._parts or not (self._more or self._given):
                return self._take()
            self._wire.read_on()
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _take(self) -> Message:
        parts, self._parts, self._unread_bytes = self._parts, [], 0
        self._given = not self._more
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self._more}

    async def send(self, message: Message) -> None:
        """ASGI's ``send``."""
        kind = message["type"]
        if kind == "http.response.start" and not self.started:
            self.started = True
            self._wants_continue = False
            self._head = self._opening(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.started and not self.complete:
            waiting = self._wire.drained()
            if waiting is not None and not self.gone:
                await waiting
            if not self.gone:
                self._write(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"the application sent {kind!r} out of turn")

    def push(self, part: bytes) -> bool:
        """See :meth:`pdcore.router.answer.Outlet.push`."""
        if not self.started or self.complete or self.gone or self._wire.drained() is not None:
            return False
        self._write(part, more=True)
        return True

    def brake(self) -> None:
        """The connection's brake was set or released, or the response went on."""
        self.takes_frames = (
            self._framing == "chunked"
            and self.started
            and not (self._head or self.complete or self.gone)
            and self._wire.drained() is None
        )
        if self.takes_frames:
            self.write_frame = self._wire.writer()

    def _opening(self, status: int, headers: RawHeaders) -> bytes:
        """The response's head; decides how its body is framed."""
        lines: list[bytes] = []
        self._framing = self._framing_of(status)
        for name, value in (*self._wire.standing_headers(), *headers):
            if name == b"content-length":
                self._framing, self._left = ("none" if self._framing == "none" else "length"), int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                continue
            lines.append(name + b": " + value)
        if self._framing == "chunked":
            lines.append(b"transfer-encoding: chunked")
        self.keep_alive = self.keep_alive and self._framing != "close"
        if not self.keep_alive:
            lines.append(b"connection: close")
        said = b"".join(lines)
        if b"\n" in said or b"\r" in said:
            raise RuntimeError("a response header holds a line end")
        return b"\r\n".join([_status_line(status), *lines, b"\r\n"])

    def _framing_of(self, status: int) -> Framing:
        """How a body of unknown length is framed."""
        if self.scope["method"] == "HEAD" or status in (204, 304):
            return "none"
        return "chunked" if self.scope["http_version"] == "1.1" else "close"

    def _write(self, body: bytes, *, more: bool) -> None:
        framed = self._framed(body, more=more)
        if self._head:
            framed, self._head = self._head + framed, b""
        if framed:
            self._wire.write(framed)
        if not more:
            self.complete = True
            self._wake()
            self._wire.ended(self)
        self.brake()

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        match self._framing:
            case "chunked":
                part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                return part if more else part + b"0\r\n\r\n"
            case "length":
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("the response is not as long as its content-length says")
                return body
            case "close":
                return body
            case "none":
                return b""


def _status_line(status: int) -> bytes:
    line = _STATUS_LINES.get(status)
    return line if line is not None else b"HTTP/1.1 %d Unknown" % status


_STATUS_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}".encode("ascii") for one in HTTPStatus}
