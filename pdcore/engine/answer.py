"""One HTTP answer on its way out: whole, streamed, or failed. And the body on its way in.

:class:`Answer` knows how far its answer has gone, so that an error becomes a status, an event of the stream or the
body of a head already sent, whichever is still possible. Every write has a deadline: a client that does not read ends
its own answer and holds no memory beyond the connection's buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from pdcore.engine import openai
from pdcore.errors import ApiError

JSON_TYPE: Final = "application/json"
STREAM_TYPE: Final = "text/event-stream; charset=utf-8"
WRITE_IDLE_S: Final = 60.0
MAX_HEADER_BYTES: Final = 64 << 10

Headers = Mapping[str, str]
NO_HEADERS: Final[Headers] = MappingProxyType({})


class ClientGone(Exception):
    """Nobody is left to answer."""


class Answer:
    """Exactly one of :meth:`whole`, :meth:`begin_json` + :meth:`finish_json`, or :meth:`begin_stream` … is used."""

    def __init__(self, send: Send, request_id: str, *, write_idle_s: float = WRITE_IDLE_S) -> None:
        self._send = send
        self._request_id = request_id
        self._write_idle_s = write_idle_s
        self._streaming = False
        self.status: int | None = None
        self.complete = False

    async def whole(self, status: int, body: bytes, content_type: str, headers: Headers = NO_HEADERS) -> None:
        """A complete answer with its length."""
        await self._head(status, content_type, {**headers, "content-length": str(len(body))})
        await self._write(body, more=False)

    async def json(self, document: object, status: int = 200, headers: Headers = NO_HEADERS) -> None:
        """A complete JSON answer."""
        await self.whole(status, openai.to_json(document), JSON_TYPE, headers)

    async def begin_json(self, headers: Headers) -> None:
        """Send the head of a JSON answer now; its body comes with :meth:`finish_json`."""
        await self._head(200, JSON_TYPE, headers)
        await self._write(b"", more=True)

    async def finish_json(self, document: object) -> None:
        """The body of a head already sent."""
        await self._write(openai.to_json(document), more=False)

    async def begin_stream(self, headers: Headers) -> None:
        """Send the head of an event stream now."""
        self._streaming = True
        await self._head(200, STREAM_TYPE, {**headers, "cache-control": "no-store"})
        await self._write(b"", more=True)

    async def stream(self, data: bytes) -> None:
        """Whole events."""
        await self._write(data, more=True)

    async def finish_stream(self, data: bytes) -> None:
        """The last events."""
        await self._write(data, more=False)

    async def fail(self, error: ApiError) -> None:
        """Tell the client in whatever way is left; after a complete answer, nothing."""
        document = error.body(self._request_id)
        if self.complete:
            return
        if self.status is None:
            await self.json(document, error.status, error.headers())
        elif self._streaming:
            await self.finish_stream(openai.event(document))
        else:
            await self.finish_json(document)

    async def _head(self, status: int, content_type: str, headers: Headers) -> None:
        self.status = status
        every = {"content-type": content_type, "x-request-id": self._request_id, **headers}
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in every.items()]
        await self._bounded({"type": "http.response.start", "status": status, "headers": encoded})

    async def _write(self, data: bytes, *, more: bool) -> None:
        self.complete = not more
        await self._bounded({"type": "http.response.body", "body": data, "more_body": more})

    async def _bounded(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._write_idle_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGone(f"the client has read nothing for {self._write_idle_s:g} s") from None


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body. ApiError 413 as soon as it is too long, 415 when it is compressed."""
    headers = headers_of(scope)
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError("unsupported_media_type", f"content-encoding {encoding[:40]!r} is not supported")
    announced = headers.get("content-length", "0")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        raise _too_long(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left while it was sending")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_long(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def check_headers(scope: Scope) -> None:
    """ApiError 431 when the headers are larger than 64 KiB."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        raise ApiError("headers_too_large", f"the headers are larger than {MAX_HEADER_BYTES} bytes")


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers by lower-case name; of a repeated one, the first."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


async def while_connected(receive: Receive, answer: Answer, work: Awaitable[None]) -> None:
    """Await ``work``, which writes ``answer``; cancel it and raise :class:`ClientGone` when the client leaves first.

    Call it once the body is read: from then on the server has nothing to say but that the client left, which it also
    says when the answer is complete.
    """
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if not answer.complete:
            gone = True
            raise ClientGone("the client left")

    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(watch())
            await work
            watcher.cancel()
    except BaseExceptionGroup as group:
        if gone:
            raise ClientGone("the client left") from None
        raise group.exceptions[0] from None


def _too_long(limit: int) -> ApiError:
    return ApiError("body_too_large", f"the body is larger than {limit} bytes")
