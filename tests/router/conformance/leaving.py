"""Clients of a router that speak raw HTTP, many at once, and leave when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def asking(*, stream: bool, prompt: str = "hi") -> bytes:
    """The bytes of one completion request on a connection of its own."""
    body = b'{"prompt":"%s","stream":%s}' % (prompt.encode(), b"true" if stream else b"false")
    lines = (b"POST /v1/completions HTTP/1.1", b"host: x", b"connection: close")
    return b"\r\n".join((*lines, b"content-length: %d" % len(body), b"", body))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection to the router at ``url``, which the client aborts at the end of the block."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def crowd(url: str, count: int) -> AsyncIterator[list[Connection]]:
    """``count`` of them, every other one for a stream; all have asked."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(connected(url)) for _ in range(count)]
        for number, (_, writer) in enumerate(found):
            writer.write(asking(stream=number % 2 == 0))
        yield found
