"""The router's transport: asyncio, httptools and keep-alive connections of its own.

Connections are kept per origin and given out newest first, so that those a burst needed grow old and close. There are
as many as there are requests in flight: their number is bounded where requests are admitted. Nothing in the environment
(proxies, ``.netrc``) is looked at, no redirect is followed, no encoding is asked for.

Mutable state: ``_idle`` (connections per origin, oldest first; no entry for none), ``_open`` (all of them), ``_targets``
(URLs already read; forgotten when they become many), ``_worded`` (the headers that were worded last), and ``_sweep``, the timer that closes what was idle too long.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Self

from pdcore.router.upstream import KEEPALIVE_S, NotConnected, Post
from pdcore.router.wire_connection import Connection, Reply
from pdcore.router.wire_request import Origin, Target, head, target, worded
from pdcore.router.within import within

MOST_TARGETS: Final = 16384
CLOSING_S: Final = 1.0


class WireUpstream:
    """Implements :class:`pdcore.router.upstream.Upstream`. ``tls`` speaks to https URLs, the machine's trust if None."""

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        keepalive_s: float = KEEPALIVE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._tls = tls
        self._idle: dict[Origin, dict[Connection, None]] = {}
        self._open: set[Connection] = set()
        self._targets: dict[str, Target] = {}
        self._worded: tuple[Mapping[str, str], bytes] = ({}, b"")
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._connecting = asyncio.TaskGroup()
        self._calls: set[WireCall] = set()
        self._entered = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._connecting.__aenter__()
        self._entered = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._entered = False
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for call in tuple(self._calls):
            call.fail(NotConnected("the pool closed the connection first", timed_out=False))
        for connection in tuple(self._open):
            connection.close("the pool closed the connection first")
        await self._connecting.__aexit__(None, None, None)
        if self._open:
            await within(CLOSING_S, self._empty.wait())

    def post(self, post: Post, on_change: Callable[[], None]) -> WireCall:
        """See :meth:`pdcore.router.upstream.Upstream.post`."""
        assert self._entered, "used outside its async with"
        call = WireCall(self, on_change)
        try:
            to = self._target(post.url)
        except NotConnected as wrong:
            call.fail(wrong)
            self._loop.call_soon(call.tell)
            return call
        sent = head(to, self._lines_of(post.headers), len(post.body))
        connection = self._take(to.origin)
        if connection is None:
            call.connect(self._connecting.create_task(self._connected(call, to.origin, sent, post.body)))
            self._calls.add(call)
        else:
            call.send(connection, to.origin, sent, post.body)
        return call

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """Keep a connection for the next request if it can serve one."""
        if not connection.release() or not self._entered:
            return
        connection.idle_since = self._loop.time()
        self._idle.setdefault(origin, {})[connection] = None
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._keepalive_s, self._close_old)

    @property
    def open_connections(self) -> int:
        """Connections there are, idle or not."""
        return len(self._open)

    @property
    def busy_connections(self) -> int:
        """Those that serve a request, or are about to be closed."""
        return len(self._open) - sum(map(len, self._idle.values()))

    def _target(self, url: str) -> Target:
        found = self._targets.get(url)
        if found is None:
            found = target(url)
            if len(self._targets) >= MOST_TARGETS:
                self._targets.clear()
            self._targets[url] = found
        return found

    def _lines_of(self, headers: Mapping[str, str]) -> bytes:
        """Both legs of an attempt mostly carry the same ones."""
        last, lines = self._worded
        if headers is not last:
            lines = worded(headers)
            self._worded = (headers, lines)
        return lines

    def _take(self, origin: Origin) -> Connection | None:
        """The idle connection that was used last, if it is still good."""
        idle = self._idle.get(origin)
        while idle:
            connection, _ = idle.popitem()
            if not idle:
                del self._idle[origin]
            if connection.usable and self._loop.time() - connection.idle_since < self._keepalive_s:
                return connection
            connection.close("it was idle too long")
        return None

    async def _connected(self, call: WireCall, origin: Origin, head: bytes, body: bytes) -> None:
        """Send a request on a connection of its own."""
        try:
            connection = await self._connect(origin)
        except NotConnected as wrong:
            call.fail(wrong)
        else:
            call.send(connection, origin, head, body)
        finally:
            self._calls.discard(call)
        call.tell()

    async def _connect(self, origin: Origin) -> Connection:
        context, connection = self._context() if origin.tls else None, Connection(partial(self._gone, origin))
        try:
            coming = self._loop.create_connection(lambda: connection, origin.host, origin.port, ssl=context)
            await within(self._connect_timeout_s, coming)
        except TimeoutError as wrong:
            raise NotConnected("no connection within the connect budget", timed_out=True) from wrong
        except OSError as wrong:
            raise NotConnected(f"connection refused: {wrong}", timed_out=False) from wrong
        except asyncio.CancelledError:
            connection.close("the request was given up")  # it may just have come about
            raise
        self._open.add(connection)
        self._empty.clear()
        if not self._entered:
            connection.close("the pool closed the connection first")
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _gone(self, origin: Origin, connection: Connection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(origin)
        if idle is not None and connection in idle:
            del idle[connection]
            if not idle:
                del self._idle[origin]
        if not self._open:
            self._empty.set()

    def _close_old(self) -> None:
        """Close what has been idle for too long; comes back as long as anything is idle."""
        now = self._loop.time()
        for origin, idle in list(self._idle.items()):
            old = [connection for connection in idle if now - connection.idle_since >= self._keepalive_s]
            for connection in old:
                del idle[connection]
                connection.close("it was idle too long")
            if not idle:
                del self._idle[origin]
        self._sweep = self._loop.call_later(self._keepalive_s / 2, self._close_old) if self._idle else None


class WireCall(Reply):
    """One request on its way; implements :class:`pdcore.router.upstream.Call`."""

    __slots__ = ("_at", "_connecting", "_upstream")

    def __init__(self, upstream: WireUpstream, on_change: Callable[[], None]) -> None:
        super().__init__(on_change)
        self._upstream = upstream
        self._at: tuple[Origin, Connection] | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connect(self, task: asyncio.Task[None]) -> None:
        """``task`` finds it a connection."""
        self._connecting = task

    def send(self, connection: Connection, origin: Origin, head: bytes, body: bytes) -> None:
        """It has one."""
        self._at = origin, connection
        self._connecting = None
        connection.send(self, head, body)

    def close(self) -> None:
        """See :meth:`pdcore.router.upstream.Call.close`."""
        self.forget()
        at, self._at = self._at, None
        if at is not None:
            self._upstream.give_back(*at)
        elif self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
