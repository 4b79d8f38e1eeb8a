"""A client that never ends its request's head, by bytes or by time, ends alone; everybody else is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pdcore import http_head
from pdcore.http_head import MAX_HEAD_BYTES, BoundedHead
from pdcore.http_server import answering, listen, port_of

pytestmark = pytest.mark.integration

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SOON_S = 3.0


async def _hello(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


@asynccontextmanager
async def server(within_s: float = 30.0) -> AsyncIterator[int]:
    app = Starlette(routes=[Route("/", _hello, methods=["GET", "POST"])])
    before, BoundedHead.head_within_s = BoundedHead.head_within_s, within_s
    try:
        with listen("127.0.0.1", 0, "port") as listener:
            async with answering(app, listener):
                yield port_of(listener)
    finally:
        BoundedHead.head_within_s = before


@asynccontextmanager
async def client(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server ends the connection."""
    async with asyncio.timeout(SOON_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def answered(reader: asyncio.StreamReader) -> bytes:
    """One small answer."""
    async with asyncio.timeout(SOON_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return head + await reader.readexactly(int(length.split(b":")[1]))


async def test_headers_without_end_are_431_soon_after_the_limit() -> None:
    async with server() as port, client(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        sent = 0
        while sent < MAX_HEAD_BYTES:
            field = b"x-%d: %s\r\n" % (sent, b"y" * 4096)
            writer.write(field)
            sent += len(field)
        await writer.drain()
        said = await rest(reader)
        assert said.startswith(b"HTTP/1.1 431 ")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"
        async with client(port) as (other, asking):
            asking.write(REQUEST)
            assert (await answered(other)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("begun", [b"", b"G", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_is_not_whole_in_time_ends_its_connection(begun: bytes) -> None:
    async with server(within_s=0.2) as port, client(port) as (reader, writer):
        writer.write(begun)
        assert await rest(reader) == b""


async def test_the_next_head_on_a_connection_has_its_own_time_and_bytes() -> None:
    async with server(within_s=0.2) as port, client(port) as (reader, writer):
        for _ in range(3):
            writer.write(REQUEST[:-2] + b"x-pad: " + b"p" * 40_000 + b"\r\n\r\n")
            assert (await answered(reader)).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET / HT")
        assert await rest(reader) == b""


async def test_a_body_that_takes_its_time_is_no_head_and_100_continue_works() -> None:
    async with server(within_s=0.1) as port, client(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n")
        async with asyncio.timeout(SOON_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            async with client(port) as (idle, _):
                assert await rest(idle) == b""  # longer than a head may take
        writer.write(b"hello")
        assert (await answered(reader)).endswith(b"5")


async def test_silent_connections_by_the_hundred_stop_nobody() -> None:
    async with server() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        try:
            async with client(port) as (reader, writer):
                writer.write(REQUEST)
                assert (await answered(reader)).startswith(b"HTTP/1.1 200 ")
        finally:
            for _, writer in silent:
                writer.transport.abort()


def test_the_limits_are_those_of_the_module() -> None:
    assert (BoundedHead.max_head_bytes, BoundedHead.head_within_s) == (
        http_head.MAX_HEAD_BYTES,
        http_head.HEAD_WITHIN_S,
    )
