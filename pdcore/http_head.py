"""uvicorn's HTTP protocol with an end to what a client may send, and for how long, before its request's head is whole.

Without one a client that never ends its headers fills the memory, and one that says nothing keeps its connection for
ever. The cost is one comparison per read: a head that comes in one piece needs no timer. What a client still sends when
it has its answer is dropped (:mod:`pdcore.http_rest`).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pdcore.errors import ApiError
from pdcore.http_rest import (
    DROPPED_WITHIN_S,
    LEAVES_WITHIN_S,
    MOST_DROPPED_BYTES,
    dropping_the_rest,
    say_no_more,
)

MAX_HEAD_BYTES: Final = 64 << 10
HEAD_WITHIN_S: Final = 20.0


class BoundedHead(HttpToolsProtocol):
    """431 and the end for a head that is too large; the end for one that is not whole in time.

    Mutable: whether a head is open, how much of it came, the timer that ends it, and ``_deaf``, once a head was refused.
    The bounds are for a subclass to change.
    """

    head_within_s: float = HEAD_WITHIN_S
    max_head_bytes: int = MAX_HEAD_BYTES
    most_dropped_bytes: int = MOST_DROPPED_BYTES
    dropped_within_s: float = DROPPED_WITHIN_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = dropping_the_rest(self.app, self.most_dropped_bytes, self.dropped_within_s)
        self._deaf = False
        self._head_open = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._start_timer(self.head_within_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(data)
        if self._head_open:
            self._judge_head(len(data))

    def on_message_begin(self) -> None:
        self._head_open, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._stop_timer()
        super().on_headers_complete()

    def _judge_head(self, came: int) -> None:
        self._head_bytes += came
        if self._head_bytes > self.max_head_bytes:
            self._refuse_head()
        elif self._head_timer is None:
            self._start_timer(self.head_within_s)

    def _refuse_head(self) -> None:
        self._head_open, self._deaf = False, True
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(_too_large(self.max_head_bytes))
            say_no_more(self.transport)
            self._start_timer(LEAVES_WITHIN_S)

    def _start_timer(self, within_s: float) -> None:
        self._head_timer = self.loop.call_later(within_s, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self.transport.close()


def _too_large(limit: int) -> bytes:
    error = ApiError("headers_too_large", f"the request's head is larger than {limit} bytes")
    body = json.dumps(error.body(None)).encode()
    lines = (
        f"HTTP/1.1 {error.status} Request Header Fields Too Large",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
