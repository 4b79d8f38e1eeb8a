"""The router's transport: asyncio, httptools and keep-alive connections of its own.

Connections are kept per origin and given out newest first, so that those a burst needed grow old and close. There are
as many as there are requests in flight: their number is bounded where requests are admitted. Nothing in the environment
(proxies, ``.netrc``) is looked at, no redirect is followed, no encoding is asked for.

Mutable state: ``_idle`` (connections per origin, oldest first; no entry for none), ``_open`` (all of them), ``_targets``
(URLs already read; forgotten when they become many), and ``_sweep``, the timer that closes what was idle too long.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from types import TracebackType
from typing import Final, Self

from pdcore.router.upstream import KEEPALIVE_S, Answer, NotConnected, Post
from pdcore.router.wire_connection import Connection
from pdcore.router.wire_encoding import decoded
from pdcore.router.wire_request import BadUrl, Origin, Target, head, target

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
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._entered = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._entered = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._entered = False
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in self._open:
            connection.close("the pool closed the connection first")
        if self._open:
            async with asyncio.timeout(CLOSING_S):
                await self._empty.wait()

    def post(self, post: Post) -> Exchange:
        """See :meth:`pdcore.router.upstream.Upstream.post`."""
        assert self._entered, "used outside its async with"
        return Exchange(self, post)

    def target(self, url: str) -> Target:
        """Where ``url`` leads; raises NotConnected for a URL that leads nowhere."""
        found = self._targets.get(url)
        if found is None:
            try:
                found = target(url)
            except BadUrl as wrong:
                raise NotConnected(str(wrong), timed_out=False) from wrong
            if len(self._targets) >= MOST_TARGETS:
                self._targets.clear()
            self._targets[url] = found
        return found

    def take(self, origin: Origin) -> Connection | None:
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

    async def connect(self, origin: Origin) -> Connection:
        """A new connection; raises NotConnected."""
        context, gone = self._context() if origin.tls else None, partial(self._gone, origin)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(gone), origin.host, origin.port, ssl=context
                )
        except TimeoutError as wrong:
            raise NotConnected("no connection within the connect budget", timed_out=True) from wrong
        except OSError as wrong:
            raise NotConnected(f"connection refused: {wrong}", timed_out=False) from wrong
        self._open.add(connection)
        self._empty.clear()
        if not self._entered:
            connection.close("the pool closed the connection first")
        return connection

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


class Exchange:
    """One request on its way: entering sends it and waits for the head, leaving gives the connection back."""

    __slots__ = ("_connection", "_origin", "_post", "_upstream")

    def __init__(self, upstream: WireUpstream, post: Post) -> None:
        self._upstream = upstream
        self._post = post
        self._origin: Origin | None = None
        self._connection: Connection | None = None

    async def __aenter__(self) -> Answer:
        upstream, post = self._upstream, self._post
        to = upstream.target(post.url)
        sent = head(to, post.headers, len(post.body))
        connection = upstream.take(to.origin) or await upstream.connect(to.origin)
        try:
            reply = connection.send(sent, post.body)
            await reply.head()
            answer = decoded(reply) if "content-encoding" in reply.headers else reply
        except BaseException:
            connection.close("the request was given up")
            connection.release()
            raise
        self._origin, self._connection = to.origin, connection
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._origin is not None
        assert self._connection is not None
        self._upstream.give_back(self._origin, self._connection)
