"""What a client still sends of a request that is answered already, such as one that is too large.

A connection that is closed with unread bytes is reset, and the client loses the answer that it had not read yet. So
the rest is read and dropped, within bounds: whoever sends more, or more slowly, is cut off.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_DROPPED_BYTES: Final = 64 << 20
DROPPED_WITHIN_S: Final = 30.0
LEAVES_WITHIN_S: Final = 2.0
"""How long a client that was told off may take to leave."""


def dropping_the_rest(
    app: ASGIApp, most_bytes: int = MOST_DROPPED_BYTES, within_s: float = DROPPED_WITHIN_S
) -> ASGIApp:
    """``app`` on a server that closes as soon as the answer is complete: its last part waits for the request's end."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if not _has_body(scope):
            return await app(scope, receive, send)
        ends = _Ends(receive, send)
        await app(scope, ends.receive, ends.send)
        await ends.meet(most_bytes, within_s)

    return answer


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in scope["headers"]
    )


class _Ends:
    """Mutable: whether the request has come ``_whole``, and whether the answer's end is ``_held`` back until it has."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._whole = False
        self._held = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        if ends and not self._whole:
            self._held = True
            message = {**message, "more_body": True}
        await self._send(message)

    async def meet(self, most_bytes: int, within_s: float) -> None:
        """Drop the rest and end the answer, where that is left to do."""
        if not self._held:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._drop(most_bytes)
        await self._send({"type": "http.response.body"})

    async def _drop(self, most_bytes: int) -> None:
        dropped = 0
        while not self._whole and dropped <= most_bytes:
            dropped += len((await self.receive()).get("body", b""))


def say_no_more(transport: asyncio.WriteTransport) -> None:
    """Tell the client that nothing follows, where the connection can tell it and still be read."""
    if transport.can_write_eof():
        transport.write_eof()
