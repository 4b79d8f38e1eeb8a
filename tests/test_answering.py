"""How an HTTP server of this project ends, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import pytest
from starlette.types import Receive, Scope, Send

from pdcore.http_server import answering, listen, port_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ANSWER_BYTES: Final = 32 << 20


async def read_to_the_end(client: socket.socket) -> int:
    """How many bytes come before the connection ends."""
    loop, total = asyncio.get_running_loop(), 0
    try:
        while piece := await loop.sock_recv(client, 1 << 20):
            total += len(piece)
    except ConnectionError:
        pass  # cut: as good an end as any
    return total


async def test_leaving_cuts_a_client_that_reads_nothing() -> None:
    answered = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        answered.set()
        await send({"type": "http.response.body", "body": bytes(ANSWER_BYTES)})

    listener = listen("127.0.0.1", 0, "port")
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        async with asyncio.timeout(20):
            async with answering(answer, listener):
                await loop.sock_connect(client, ("127.0.0.1", port_of(listener)))
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await answered.wait()
            assert await read_to_the_end(client) < ANSWER_BYTES
