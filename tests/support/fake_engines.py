"""Scriptable prefill and decode servers on real sockets: they do to a router what engines do when they break.

A :class:`FakeEngine` answers each request with its script: a list of steps, run one after another on the raw
connection. Everything that was asked is recorded, and so is every connection that the other side closed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from tests.support.tcp_server import TcpServer

MARK: Final = {"x-pdcore-kv": "received"}
SSE: Final = {"content-type": "text/event-stream"}


@dataclass(frozen=True)
class Seen:
    """One recorded request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


@dataclass(frozen=True)
class Send:
    """Write bytes as they are."""

    data: bytes


@dataclass(frozen=True)
class Hang:
    """Say nothing more until the other side leaves, or ``until`` has happened: :attr:`FakeEngine.release` if not given."""

    until: Callable[[], Awaitable[object]] | None = None


@dataclass(frozen=True)
class Do:
    """Something that the engine does meanwhile, whoever listens."""

    action: Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Reset:
    """End with RST."""


@dataclass(frozen=True)
class Fin:
    """End with FIN, wherever the answer is."""


@dataclass(frozen=True)
class Flood:
    """Write ``chunk`` ``times`` times as fast as the other side takes it; counted in :attr:`FakeEngine.flooded`."""

    chunk: bytes
    times: int


Step = Send | Hang | Do | Reset | Fin | Flood
Script = Sequence[Step]


def head(status: int, headers: Mapping[str, str]) -> Send:
    """A response head."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    return Send("\r\n".join([*lines, "", ""]).encode())


def answer(status: int, document: object, headers: Mapping[str, str] | None = None) -> Script:
    """A complete JSON answer."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    named = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
    return (head(status, named), Send(body))


def chunk(data: bytes) -> Send:
    """One part of a chunked body."""
    return Send(b"%x\r\n%s\r\n" % (len(data), data))


CHUNKED: Final = {**SSE, "transfer-encoding": "chunked"}
END: Final = Send(b"0\r\n\r\n")
DONE: Final = b"data: [DONE]\n\n"


def event(text: str, finish_reason: str | None = None) -> bytes:
    """One chat event."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


def stream_head(mark: bool = True) -> Send:
    """The head of a stream."""
    return head(200, {**CHUNKED, **(MARK if mark else {})})


def stream(*events: bytes, mark: bool = True) -> Script:
    """A complete stream."""
    return (stream_head(mark), *(chunk(one) for one in events), END)


def accepted() -> Script:
    """What a native prefill says when its hand-off has ended."""
    return answer(200, {"request_id": "r", "bootstrap_room": 1, "accepted": True})


COMPLETION: Final = {"id": "c", "choices": [{"index": 0, "text": " Paris", "finish_reason": "stop"}]}


@dataclass
class FakeEngine:
    """One server; ``async with`` runs it. ``scripts`` are used up one per request, the last one for ever.

    ``/health`` is no request: it is answered with ``health`` (the usual incarnation unless given) and counted.
    """

    scripts: list[Script]
    health: Script = field(default_factory=lambda: answer(200, {"status": "ok", "incarnation": "i1"}))
    probes: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    left: int = 0  # requests whose connection the other side ended before the script did
    flooded: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self.release = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = TcpServer(self._serve, port=self.port, limit_bytes=1 << 24)
        await self._server.__aenter__()
        self.port = self._server.port
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    async def refuse(self) -> None:
        """Stop listening and end every connection: whoever comes now is refused."""
        await self._server.close()

    def script(self) -> Script:
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (seen := await _read_request(reader)) is not None:
                is_probe = seen.path == "/health"
                self.probes += is_probe
                if not is_probe:
                    self.seen.append(seen)
                self.open_now += 1
                try:
                    script = self.health if is_probe else self.script()
                    if not await self._perform(script, reader, writer):
                        return
                finally:
                    self.open_now -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1

    async def _perform(
        self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Run every step; False when the connection is over."""
        for step in script:
            match step:
                case Send(data):
                    writer.write(data)
                    await writer.drain()
                case Flood(data, times):
                    for _ in range(times):
                        writer.write(data)
                        await writer.drain()
                        self.flooded += len(data)
                case Do(action):
                    await action()
                case Hang(until):
                    if await self._hang(reader, until or self.release.wait):
                        self.left += 1
                        return False
                case Reset():
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return False
                case Fin():
                    return False
        return True

    async def _hang(self, reader: asyncio.StreamReader, until: Callable[[], Awaitable[object]]) -> bool:
        """True when the other side left, False when the hang was released."""

        async def wait() -> None:
            await until()

        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(_wait_left(reader))
            releasing = group.create_task(wait())
            await asyncio.wait((leaving, releasing), return_when=asyncio.FIRST_COMPLETED)
            left = leaving.done()
            leaving.cancel()
            releasing.cancel()
        return left


async def _wait_left(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        return


async def _read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body)
