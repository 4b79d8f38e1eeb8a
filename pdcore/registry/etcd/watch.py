"""One watch of a prefix: a stream of its own on a connection of its own, with proof that the other side lives.

The connection is not shared with the unary calls: a watch that went silent starts over on a fresh one, whatever the
network did to the old one. The consumer's pace is the stream's: a bounded queue fills, reading stops, and HTTP/2 flow
control keeps the rest on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from pdcore.beside import running_beside
from pdcore.errors import Compacted, StoreError, StoreUnavailable
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.endpoints import Endpoints, metadata
from pdcore.registry.etcd.faults import HandshakeRefused, translate, translate_cancel
from pdcore.registry.etcd.identity import Pass
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
    async with endpoints.dial(address) as channel:
        try:
            stream, created = await _create(endpoints, channel, address, _creation(prefix, after_revision))
            try:
                messages = _messages(stream, created, RevisionGrouper(after_revision), patience)
                async with running_beside(stream.read()), aclosing(messages):
                    yield messages
            finally:
                stream.cancel()
        except (StoreUnavailable, HandshakeRefused):
            endpoints.rotate(address)
            raise


def _creation(prefix: str, after_revision: int) -> wire.WatchRequest:
    key, end = key_range(prefix)
    return wire.WatchRequest(
        create=wire.WatchCreateRequest(
            key=key, range_end=end, start_revision=after_revision + 1, fragment=True
        )
    )


async def _create(
    endpoints: Endpoints, channel: grpc.aio.Channel, address: str, request: wire.WatchRequest
) -> tuple[Stream, wire.WatchResponse]:
    """A stream with the watch on it, and the answer that says so."""
    invoke = channel.stream_stream(
        WATCH.path,
        request_serializer=WATCH.request.SerializeToString,
        response_deserializer=WATCH.response.FromString,
    )

    async def attempt(shown: Pass, left_s: float) -> tuple[Stream, wire.WatchResponse]:
        stream = Stream(invoke(metadata=metadata(shown)), address)
        try:
            return stream, await stream.first_answer(request, left_s)
        except BaseException:
            stream.cancel()
            raise

    return await endpoints.as_ourselves(address, endpoints.timeout_s, attempt)


async def _messages(
    stream: Stream, created: wire.WatchResponse, grouper: RevisionGrouper, patience: Patience
) -> AsyncGenerator[WatchMessage, None]:
    answer: wire.WatchResponse | None = created
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


def _check(answer: wire.WatchResponse, address: str) -> None:
    if answer.compact_revision:
        raise Compacted(answer.compact_revision)
    if answer.canceled:
        raise translate_cancel(answer.cancel_reason, address)


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

    async def first_answer(self, request: wire.WatchRequest, within_s: float) -> wire.WatchResponse:
        """Send ``request``, and what comes back; before anybody calls ``read``. Raises what ends the watch."""
        try:
            async with asyncio.timeout(within_s):
                with suppress(asyncio.InvalidStateError):  # it has ended already: reading says why
                    await self._call.write(request)
                answer = await self._call.read()
        except TimeoutError as error:
            raise StoreUnavailable(f"etcd at {self.address}: no watch in time") from error
        except grpc.aio.AioRpcError as error:
            raise translate(error.code(), error.details(), self.address) from error
        if answer is grpc.aio.EOF:
            raise StoreUnavailable(f"etcd at {self.address} ended the watch")
        _check(answer, self.address)
        first: wire.WatchResponse = answer
        return first

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
