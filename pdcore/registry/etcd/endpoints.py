"""The members of an etcd cluster: one connection each, unary calls with a deadline, rotation after a failure."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import grpc

from pdcore.errors import StoreUnavailable
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.faults import translate

MAX_MESSAGE_BYTES: Final = 64 << 20
LEAST_ATTEMPT_S: Final = 0.05
RETRY_PAUSE_S: Final = (0.02, 0.1)

# Keep-alive alone does not notice a stopped server, the ping timeout does; a server closes connections that ping more
# often than every 5 s. Short reconnect back-offs: the callers have their own. No HTTP proxy between us and the store.
_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_LEADER_ONLY: Final = (("hasleader", "true"),)  # a member cut off from its leader says so instead of waiting


class _Request(Protocol):
    def SerializeToString(self) -> bytes: ...


RequestT = TypeVar("RequestT", bound=_Request)
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True)
class Method(Generic[RequestT, ResponseT]):
    """One remote procedure: its path on the wire and the two messages."""

    path: str
    request: type[RequestT]
    response: Any  # type[ResponseT]; protobuf's FromString is typed on the instance's class only


RANGE: Final = Method[wire.RangeRequest, wire.RangeResponse](
    "/etcdserverpb.KV/Range", wire.RangeRequest, wire.RangeResponse
)
TXN: Final = Method[wire.TxnRequest, wire.TxnResponse](
    "/etcdserverpb.KV/Txn", wire.TxnRequest, wire.TxnResponse
)
LEASE_GRANT: Final = Method[wire.LeaseGrantRequest, wire.LeaseGrantResponse](
    "/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantRequest, wire.LeaseGrantResponse
)
LEASE_REVOKE: Final = Method[wire.LeaseRevokeRequest, wire.LeaseRevokeResponse](
    "/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeRequest, wire.LeaseRevokeResponse
)
# A stream in both directions on the server's side; one request and one answer look the same on the wire.
LEASE_KEEP_ALIVE: Final = Method[wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse](
    "/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse
)
WATCH: Final = Method[wire.WatchRequest, wire.WatchResponse](
    "/etcdserverpb.Watch/Watch", wire.WatchRequest, wire.WatchResponse
)


class Endpoints:
    """Connections to ``addresses`` (``host:port``), open inside ``async with``. Calls go to :attr:`current`."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        timeout_s: float,
        first: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.addresses = addresses
        self._options = (*_OPTIONS, ("grpc.max_receive_message_length", max_message_bytes))
        self.timeout_s = timeout_s
        # Nobody named: a fleet spreads over the members.
        self._index = random.randrange(len(addresses)) if first is None else first
        self._channels: list[grpc.aio.Channel] = []
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for address in self.addresses:
            channel = await self._open.enter_async_context(self._channel(address))
            self._channels.append(channel)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._channels.clear()
        await self._open.aclose()

    @property
    def current(self) -> str:
        """The address that the next call goes to."""
        return self.addresses[self._index]

    def rotate(self, failed: str) -> None:
        """Leave ``failed`` for the next address, unless somebody already did."""
        if failed == self.current:
            self._index = (self._index + 1) % len(self.addresses)

    def dial(self) -> grpc.aio.Channel:
        """A connection of its own to the current address; the caller closes it."""
        return self._channel(self.current)

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, repeatable: bool
    ) -> ResponseT:
        """The answer to ``request`` within ``timeout_s``, all attempts together.

        Only a ``repeatable`` request (one that may happen twice without harm) is tried again, on the next address.
        """
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        left = max(2, len(self.addresses)) if repeatable else 1
        while True:
            budget_s = deadline - asyncio.get_running_loop().time()
            share_s = budget_s / left if len(self.addresses) > 1 else budget_s
            left -= 1
            try:
                return await self._attempt(method, request, max(share_s, LEAST_ATTEMPT_S))
            except StoreUnavailable:
                if left == 0 or asyncio.get_running_loop().time() + RETRY_PAUSE_S[1] >= deadline:
                    raise
            await asyncio.sleep(random.uniform(*RETRY_PAUSE_S))

    def _channel(self, address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=self._options)

    async def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        address = self.current
        invoke = self._channels[self._index].unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: ResponseT = await invoke(request, timeout=timeout_s, metadata=_LEADER_ONLY)
        except grpc.aio.AioRpcError as error:
            fault = translate(error.code(), error.details(), address)
            if isinstance(fault, StoreUnavailable):
                self.rotate(address)
            raise fault from error
        return response


def open_stream(
    channel: grpc.aio.Channel, method: Method[RequestT, ResponseT]
) -> grpc.aio.StreamStreamCall[RequestT, ResponseT]:
    """A call with messages in both directions; the caller cancels it."""
    invoke = channel.stream_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    return invoke(metadata=_LEADER_ONLY)
