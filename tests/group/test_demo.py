from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from pdcore.group.demo import QUESTION, NoAnswer, ask, curl
from tests.support.tcp_server import TcpServer

pytestmark = [pytest.mark.integration]

Serve = Callable[[bytes], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def serving(response: bytes) -> AsyncIterator[str]:
    """The URL of a server that answers one request with exactly ``response`` and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(response)
        await writer.drain()

    async with TcpServer(answer) as server:
        yield f"http://{server.endpoint}"


def stream(*events: str) -> bytes:
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return (head + "".join(f"data: {event}\n\n" for event in events)).encode()


def delta(**fields: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": fields}]})


async def answer_of(response: bytes) -> str:
    async with serving(response) as url:
        return "".join([piece async for piece in ask(url, "m", QUESTION, timeout_s=5)])


async def test_the_answer_is_what_the_deltas_say() -> None:
    usage = json.dumps({"choices": [], "usage": {}})
    events = (delta(role="assistant"), delta(content="It is "), delta(content="Paris."), usage, "[DONE]")
    assert await answer_of(stream(*events)) == "It is Paris."


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (b"HTTP/1.1 503 x\r\ncontent-length: 9\r\nconnection: close\r\n\r\nno prefil", "503: no prefil"),
        (stream(delta(content="It"), json.dumps({"error": {"message": "decode died"}})), "decode died"),
        (stream(delta(content="It")), "DONE"),
        (b"", "disconnected"),
    ],
)
async def test_what_is_no_answer_says_why(response: bytes, says: str) -> None:
    with pytest.raises(NoAnswer, match=says):
        await answer_of(response)


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    words = shlex.split(curl("http://h:1", "m"))
    assert words[:3] == ["curl", "-N", "http://h:1/v1/chat/completions"]
    assert json.loads(words[-1])["messages"] == [{"role": "user", "content": QUESTION}]
