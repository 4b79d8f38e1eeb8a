"""One watch of a prefix: a stream of its own on a connection of its own, with proof that the other side lives.

The connection is not shared with the unary calls: a watch that went silent starts over on a fresh one, whatever the
network did to the old one. The consumer's pace is the stream's: a bounded queue fills, reading stops, and HTTP/2 flow
control keeps the rest on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from pdcore.beside import running_beside
from pdcore.errors import Compacted, StoreError, StoreUnavailable
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.endpoints import Endpoints, open_stream
from pdcore.registry.etcd.faults import translate
from pdcore.registry.etcd.methods import WATCH
from pdcore.registry.etcd.revisions import RevisionGrouper, key_range
from pdcore.registry.store import Alive, WatchMessage

QUEUE_LIMIT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a watch may be silent before it is asked (``ping_s``), and may take to answer (``answer_s``)."""

    ping_s: float = 4.0
    answer_s: float = 3.0


@asynccontextmanager
async def watch_prefix(
    endpoints: Endpoints, prefix: str, after_revision: int, patience: Patience
) -> AsyncIterator[AsyncIterator[WatchMessage]]:
    """See :meth:`pdcore.registry.store.Store.watch`. A watch that breaks leaves its member for the next one."""
    address = endpoints.current
    async with endpoints.dial() as channel:
        stream = Stream(open_stream(channel, WATCH), address)
        messages = _messages(stream, prefix, after_revision, endpoints.timeout_s, patience)
        try:
            async with running_beside(stream.read()), aclosing(messages):
                yield messages
        except StoreUnavailable:
            endpoints.rotate(address)
            raise
        finally:
            stream.cancel()


async def _messages(
    stream: Stream, prefix: str, after_revision: int, timeout_s: float, patience: Patience
) -> AsyncGenerator[WatchMessage, None]:
    await stream.send(_creation(prefix, after_revision), timeout_s)
    answer = await stream.answer(timeout_s)
    grouper = RevisionGrouper(after_revision)
    while True:
        if answer is None:
            raise StoreUnavailable(f"etcd at {stream.address}: the watch is silent")
        _check(answer, stream.address)
        for revision in grouper.add(answer.events, fragment=answer.fragment):
            yield revision
        if not answer.events:
            yield Alive(answer.header.revision)
        answer = await stream.answer(patience.ping_s)
        if answer is None:
            await stream.send(wire.WatchRequest(progress=wire.WatchProgressRequest()), patience.answer_s)
            answer = await stream.answer(patience.answer_s)


def _creation(prefix: str, after_revision: int) -> wire.WatchRequest:
    key, end = key_range(prefix)
    return wire.WatchRequest(
        create=wire.WatchCreateRequest(
            key=key, range_end=end, start_revision=after_revision + 1, fragment=True
        )
    )


def _check(answer: wire.WatchResponse, address: str) -> None:
    if answer.compact_revision:
        raise Compacted(answer.compact_revision)
    if answer.canceled:
        raise StoreUnavailable(f"etcd at {address} ended the watch: {answer.cancel_reason or 'no reason'}")


class WatchCall(Protocol):
    """What is used of gRPC's call object."""

    async def read(self) -> Any: ...

    async def write(self, request: wire.WatchRequest) -> None: ...

    def cancel(self) -> object: ...


class Stream:
    """The call and its unread answers. ``read`` runs beside the consumer and never raises for the store's faults:
    its last entry in the queue is the fault, in order behind everything that came before."""

    def __init__(self, call: WatchCall, address: str) -> None:
        self.address = address
        self._call = call
        self._answers: asyncio.Queue[wire.WatchResponse | StoreError] = asyncio.Queue(QUEUE_LIMIT)

    async def read(self) -> None:
        """Queue every answer until the stream ends."""
        try:
            while (answer := await self._call.read()) is not grpc.aio.EOF:
                await self._answers.put(answer)
            fault: StoreError = StoreUnavailable(f"etcd at {self.address} ended the watch")
        except grpc.aio.AioRpcError as error:
            fault = translate(error.code(), error.details(), self.address)
        await self._answers.put(fault)

    async def send(self, request: wire.WatchRequest, timeout_s: float) -> None:
        """Send ``request``. On a stream that has ended nothing happens: its fault is in the queue."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)
        except TimeoutError as error:
            raise StoreUnavailable(f"etcd at {self.address} takes no watch request") from error
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def answer(self, within_s: float) -> wire.WatchResponse | None:
        """The next answer, None when there is none in time; raises what ended the stream."""
        try:
            async with asyncio.timeout(within_s):
                answer = await self._answers.get()
        except TimeoutError:
            return None
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def cancel(self) -> None:
        """Give the call up."""
        self._call.cancel()
