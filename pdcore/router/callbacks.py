"""The router's private listener: where an engine speaks to one attempt before it answers it.

Each attempt that expects a call has an address nobody can guess, for as long as it runs. What is posted there first
counts; an engine that is not sure whether it was heard posts again, and is told the same. Everything else is 404.

Mutable state: ``_expected``, one entry per attempt that waits or has heard; each is taken out when its attempt ends.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import Receive, Scope, Send

from pdcore.http_server import answering, url_of

PREFIX: Final = "/metaserver/"
MAX_CALL_BYTES: Final = 4 << 20
CALL_S: Final = 10.0


class Callback:
    """One expected call, until it is closed. ``url`` is where it is to be made."""

    def __init__(self, url: str, forget: Callable[[], object]) -> None:
        self.url = url
        self.close = forget
        self._words: bytes | None = None
        self._tell: Callable[[bytes], object] | None = None

    def hear(self, words: bytes) -> None:
        """Take ``words`` unless something was said before."""
        if self._words is None:
            self._words = words
            if self._tell is not None:
                self._tell(words)

    def tell(self, call: Callable[[bytes], object]) -> None:
        """Have ``call`` called with what is said; now, if it was said before."""
        self._tell = call
        if self._words is not None:
            call(self._words)


class Callbacks:
    """Every call that is expected now; the application of the listener at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._expected: dict[str, Callback] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self) -> Callback:
        """An address of its own, to be closed by whoever asked for it."""
        token = secrets.token_urlsafe(16)
        callback = Callback(f"{self._url}{PREFIX}{token}", lambda: self._expected.pop(token, None))
        self._expected[token] = callback
        return callback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        callback = self._expected.get(str(scope["path"]).removeprefix(PREFIX))
        if callback is None or scope["method"] != "POST":
            return await _answer(send, 404)
        try:
            async with asyncio.timeout(CALL_S):
                words = await _body(receive)
        except TimeoutError:
            return await _answer(send, 408)
        if words is None:
            return await _answer(send, 413)
        callback.hear(words)
        await _answer(send, 200)


@asynccontextmanager
async def listening(host: str, listener: socket.socket) -> AsyncIterator[Callbacks]:
    """Answer engines on ``listener`` inside the block."""
    callbacks = Callbacks(url_of(host, listener))
    async with answering(callbacks, listener):
        yield callbacks


async def _body(receive: Receive) -> bytes | None:
    """The body, None when it is too large. One that is cut off is as good as none: nobody hears the answer."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > MAX_CALL_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _answer(send: Send, status: int) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})
