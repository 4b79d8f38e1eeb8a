"""A TCP server of a test that owns its connections: whoever ends it ends them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_LIMIT_BYTES: Final = 1 << 16


class TcpServer:
    """Listens on ``host:port`` (0 picks a port) inside its block and runs ``serve`` for every connection, in a task.

    When ``close`` has returned, each task has ended and each socket is closed, also of those who came in that moment.
    ``asyncio.start_server`` leaves its tasks to the end of the loop instead, which may find a connection whose task has
    not begun: nobody closes that, and a later test is blamed for it.
    """

    def __init__(
        self, serve: Serve, *, host: str = "127.0.0.1", port: int = 0, limit_bytes: int = _LIMIT_BYTES
    ) -> None:
        self._serve = serve
        self._address = (host, port)
        self._limit_bytes = limit_bytes
        self._listener: socket.socket | None = None
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._listener = socket.create_server(self._address)
        self._listener.setblocking(False)
        self._address = self._listener.getsockname()[:2]
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        await self._group.__aexit__(None, None, None)  # the block's own exception leaves as it is

    @property
    def port(self) -> int:
        """Where it listens, or did."""
        return self._address[1]

    @property
    def endpoint(self) -> str:
        """``host:port`` to connect to."""
        return "{}:{}".format(*self._address)

    async def close(self) -> None:
        """Refuse whoever comes, and end every connection."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # who came has left again
        connection.setblocking(False)
        task = self._group.create_task(self._run(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: connection.close()
        )  # also of a task that is cancelled before it began

    async def _run(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit_bytes)
        try:
            await self._serve(reader, writer)
            writer.close()
            await writer.wait_closed()
        except OSError:
            return  # the peer hung up
        finally:
            writer.transport.abort()
