"""A TCP relay between a client and a server under test, for everything a network does to a connection."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from tests.support.tcp_server import TcpServer

CHUNK_BYTES: Final = 16 << 10


class Relay:
    """Listens on a port of ``listen`` and passes every connection on to ``host:port``, while its block lasts.

    ``delay_s`` holds every chunk back; :meth:`pause` is a black hole (connections stay, nothing passes);
    :meth:`cut` ends the connections of the moment; :meth:`refuse` also those to come.
    """

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1") -> None:
        self.delay_s = 0.0
        self.connections_total = 0
        self._target = (host, port)
        self._server = TcpServer(self._join, host=listen)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._budget: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @classmethod
    def to(cls, endpoint: str, *, listen: str = "127.0.0.1") -> Self:
        """A relay to ``host:port``."""
        host, _, port = endpoint.rpartition(":")
        return cls(host, int(port), listen=listen)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    @property
    def endpoint(self) -> str:
        """``host:port`` to connect to."""
        return self._server.endpoint

    def pause(self) -> None:
        """Pass nothing on, in both directions, on connections old and new."""
        self._flowing.clear()

    def resume(self) -> None:
        """Pass on what was held back, and everything after it."""
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection; new ones are served."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def cut_after(self, to_client_bytes: int) -> None:
        """Reset every connection once that many more bytes went to clients, in all; then serve new ones."""
        self._budget = to_client_bytes

    def lead_to(self, endpoint: str) -> None:
        """Pass connections to come on to this ``host:port`` instead."""
        host, _, port = endpoint.rpartition(":")
        self._target = (host, int(port))

    def refuse(self) -> None:
        """Reset every connection, and new ones as they come."""
        self._refusing = True
        self.cut()

    def allow(self) -> None:
        """Serve new connections again."""
        self._refusing = False

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_total += 1
        if self._refusing:
            writer.transport.abort()
            return
        pair = {writer}
        self._writers.add(
            writer
        )  # before the far side answers: a cut holds for a connection that is being made
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            pair.add(far_writer)
            self._writers.add(far_writer)
            if writer.transport.is_closing():
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer, pair, to_client=False))
                tasks.create_task(self._pump(far_reader, writer, pair, to_client=True))
        except OSError:
            return  # no far side: the client is reset, as by a host without a listener
        finally:
            for end in pair:
                end.transport.abort()
            self._writers -= pair

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: set[asyncio.StreamWriter],
        *,
        to_client: bool,
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
                if to_client:
                    self._spend(len(data))
        except OSError:
            pass  # one side is gone: the other follows below
        finally:
            for end in pair:
                end.transport.abort()

    def _spend(self, passed: int) -> None:
        if self._budget is None:
            return
        self._budget -= passed
        if self._budget <= 0:
            self._budget = None
            self.cut()
