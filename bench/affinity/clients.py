"""Clients of one router, as cheap as Python has them: kept connections, each with one request at a time."""

from __future__ import annotations

import asyncio
from typing import Final, cast

import httptools

from bench.affinity.engines import CHAT

REQUEST_S: Final = 120.0
_HEAD: Final = (
    b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)


class Connection(asyncio.Protocol):
    """One connection. Mutable: the answer that is waited for."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return not self._transport.is_closing()

    def ask(self, request: bytes) -> asyncio.Future[int]:
        """The status of the answer to ``request``; ConnectionError when the other side leaves before its end."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """No more requests."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._transport.close()
        else:
            self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(self._parser.get_status_code())

    def connection_lost(self, error: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error or ConnectionResetError("closed before the end of the answer"))


class Clients:
    """As many as are needed at once. Mutable: the connections that nobody uses."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def ask(self, body: bytes) -> int:
        """The status with which ``body`` was answered; 0 when it was not within ``REQUEST_S``."""
        request = _HEAD % (CHAT, len(body)) + body
        try:
            async with asyncio.timeout(REQUEST_S):
                connection = await self._connection()
                try:
                    status = await connection.ask(request)
                except BaseException:
                    connection.close()
                    raise
        except (TimeoutError, OSError):
            return 0
        self._idle.append(connection)
        return status

    def close(self) -> None:
        """Let go of all that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> Connection:
        while self._idle:
            kept = self._idle.pop()
            if kept.is_open:
                return kept
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return made
