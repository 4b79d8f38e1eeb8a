"""HTTP as the router's server speaks it: a protocol class for uvicorn, leaner than its own.

uvicorn accepts connections, counts them and ends them; this class reads requests from one and runs the application for
each. The application is plain ASGI and runs under uvicorn's own class as well. What it finds here in addition is the
scope's extension :data:`~pdcore.router.departure.DEPARTURE`, which spares it a task per request, and
:data:`~pdcore.router.answer.OUTLET`, which spares it waking one per event.

Requests that come on one connection before the earlier ones are answered wait their turn. A head has its bounds in
bytes and in time, and a connection on which nothing is served is closed after uvicorn's ``timeout_keep_alive``. What
a client still sends when it has its answer is dropped (:mod:`pdcore.http_rest`).

Mutable state: ``_current`` (the exchange being served), ``_queue`` (those that wait), ``_patience`` (when an idle
connection ends), the parser's (``_url``, ``_headers``, ``_expects``, ``_coming``, ``_head_bytes``), the two directions' brakes
(``_held``, ``_full``), ``_whole`` and ``_droppable`` (whether the latest request has come, and how much more of it may
come to nobody), and ``_deaf``, once nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
import msgspec
import uvicorn
from uvicorn.server import ServerState

from pdcore.errors import ApiError, ErrorCode
from pdcore.http_head import HEAD_WITHIN_S, MAX_HEAD_BYTES
from pdcore.http_rest import DROPPED_WITHIN_S, LEAVES_WITHIN_S, MOST_DROPPED_BYTES, say_no_more
from pdcore.router.answer import OUTLET
from pdcore.router.departure import DEPARTURE
from pdcore.router.lazy_timer import LazyTimer
from pdcore.router.wire_exchange import Exchange, Message, RawHeaders
from pdcore.telemetry import logger

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_JSON: Final = (b"content-type", b"application/json")
_log = logger(__name__)


class ServerConnection(asyncio.Protocol):
    """One connection of a client; implements :class:`pdcore.router.wire_exchange.Wire`."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        keep_alive_s: float | None = None,
        head_within_s: float = HEAD_WITHIN_S,
        most_dropped_bytes: int = MOST_DROPPED_BYTES,
        dropped_within_s: float = DROPPED_WITHIN_S,
    ) -> None:
        if not config.loaded:
            config.load()
        self._app = config.loaded_app
        self._head_within_s = head_within_s
        self._most_dropped_bytes = most_dropped_bytes
        self._dropped_within_s = dropped_within_s
        self._keep_alive_s = float(config.timeout_keep_alive) if keep_alive_s is None else keep_alive_s
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self._ends: Message = {}
        self._current: Exchange | None = None
        self._coming: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._patience = LazyTimer(self._close, self._loop.time)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects = False
        self._head_bytes = 0
        self._held = False
        self._full: asyncio.Future[None] | None = None
        self._whole = True
        self._droppable = 0
        self._deaf = False

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's derives from nothing
        self._server.connections.add(self)  # type: ignore[arg-type]
        scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self._ends = {"scheme": scheme, "server": server, "client": client}
        self._patience.set(self._loop.time() + self._head_within_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self.transport = None
        self._patience.cancel()
        self.resume_writing()
        for exchange in (self._current, *self._queue):
            if exchange is not None:
                exchange.leave()
        self._queue.clear()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_listening()
        except httptools.HttpParserError as wrong:
            self._refuse("invalid_request", f"the request is not HTTP: {wrong}")
        if self._coming is None and not self._deaf:
            self._judge_head(len(data))

    def _judge_head(self, came: int) -> None:
        """Of a head that is not whole yet."""
        if not self._head_bytes and self._current is None:
            self._patience.set(self._loop.time() + self._head_within_s)
        self._head_bytes += came
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("headers_too_large", f"the request's head is larger than {MAX_HEAD_BYTES} bytes")

    def pause_writing(self) -> None:
        if self._full is None:
            self._full = self._loop.create_future()
        if self._current is not None:
            self._current.brake()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None and not full.done():
            full.set_result(None)
        if self._current is not None:
            self._current.brake()

    # What uvicorn says

    def shutdown(self) -> None:
        """Close once what is being served is answered."""
        self._queue.clear()
        if self._current is None:
            self._close()
        else:
            self._current.keep_alive = False

    # What the parser says

    def on_message_begin(self) -> None:
        self._url, self._headers, self._coming, self._expects = b"", [], None, False

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._coming is None:  # else a trailer
            lowered = name.lower()
            self._headers.append((lowered, value))
            if lowered == b"expect":
                self._expects = True

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._whole = False
        version = self._parser.get_http_version()
        exchange = self._coming = Exchange(
            self,
            self._scope(version),
            self._loop,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            wants_continue=self._expects,
        )
        exchange.scope["extensions"] = {DEPARTURE: exchange.on_gone, OUTLET: exchange}
        if self._current is None:
            self._start(exchange)
        else:
            self._queue.append(exchange)
            self.hold_back()

    def on_body(self, part: bytes) -> None:
        if self._coming is None:
            return
        self._coming.add(part)
        if self._current is None:
            self._drop(len(part))

    def on_message_complete(self) -> None:
        if self._coming is not None:
            self._whole = True
            self._coming.end_body()
            if self._current is None and not self._deaf:
                self._rest(self._coming)

    def _scope(self, version: str) -> Message:
        raw_path, _, query = self._target().partition(b"?")
        path = raw_path.decode("latin-1")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": self._parser.get_method().decode("latin-1"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state,
            **self._ends,
        }

    def _target(self) -> bytes:
        """The request's target as a path, also where a client named the whole URL."""
        if self._url.startswith(b"/"):
            return self._url
        try:
            parsed = httptools.parse_url(self._url)
        except httptools.HttpParserInvalidURLError:
            return self._url
        path = parsed.path or b"/"
        return path if parsed.query is None else path + b"?" + parsed.query

    # What an exchange asks for

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def writer(self) -> Callable[[bytes], None]:
        return self.write if self.transport is None else self.transport.write

    def drained(self) -> asyncio.Future[None] | None:
        return self._full

    def hold_back(self) -> None:
        if not self._held and self.transport is not None and not self.transport.is_closing():
            self._held = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        if self._held and not self._queue and self.transport is not None and not self.transport.is_closing():
            self._held = False
            self.transport.resume_reading()

    def standing_headers(self) -> RawHeaders:
        return self._server.default_headers

    def ended(self, exchange: Exchange) -> None:
        self._server.total_requests += 1
        self._current = None
        if not self._whole and not self._queue and not self._deaf:
            self._droppable = self._most_dropped_bytes
            self._patience.set(self._loop.time() + self._dropped_within_s)
            self.read_on()
        else:
            self._rest(exchange)

    # Its own affairs

    def _rest(self, answered: Exchange) -> None:
        """``answered`` is over, in both directions."""
        if not answered.keep_alive:
            self._close()
        elif self._queue:
            self._start(self._queue.popleft())
        else:
            self._patience.set(self._loop.time() + self._keep_alive_s)
            self.read_on()

    def _drop(self, came: int) -> None:
        self._droppable -= came
        if self._droppable < 0:
            self._close()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self._patience.set(None)
        task = self._loop.create_task(self._run(exchange))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        """The top of a request's task: what the application raises is reported, and ends the connection."""
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception:
            _log.exception("the application failed", path=exchange.scope["path"])
        exchange.scope.pop("extensions", None)  # or it would hold the exchange that holds it
        if exchange.complete or exchange.gone:
            return
        if exchange.started:
            self._abort()
        else:
            self._current = None
            self._refuse("internal", "the request could not be served")

    def _refuse(self, code: ErrorCode, why: str) -> None:
        """Answer what is no request, or got no answer, unless another answer is on its way; and close."""
        if self._current is not None:
            self._close()
        else:
            error = ApiError(code, why)
            body = msgspec.json.encode(error.body(None))
            self.write(
                b"HTTP/1.1 %d Refused\r\n%b: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
                % (error.status, *_JSON, len(body), body)
            )
            self._part()

    def _stop_listening(self) -> None:
        """The client wants to go on in another protocol: it gets the answer to its request, and no other."""
        self._deaf = True
        if self._coming is not None:
            self._coming.keep_alive = False

    def _part(self) -> None:
        """Close once the client has left, or soon."""
        self._deaf = True
        if self.transport is not None and not self.transport.is_closing():
            say_no_more(self.transport)
            self._patience.set(self._loop.time() + LEAVES_WITHIN_S)

    def _close(self) -> None:
        self._deaf = True
        if self.transport is not None:
            self.transport.close()

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
