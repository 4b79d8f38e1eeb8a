"""The members of an etcd cluster: one connection each, unary calls with a deadline, rotation after a failure."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Final, Self

import grpc

from pdcore.errors import StoreUnavailable
from pdcore.registry.etcd.faults import translate
from pdcore.registry.etcd.identity import NOBODY, Identity
from pdcore.registry.etcd.methods import Method, RequestT, ResponseT

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


class Endpoints:
    """Connections to ``addresses`` (``host:port``), open inside ``async with``. Calls go to :attr:`current`."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        timeout_s: float,
        identity: Identity = NOBODY,
        first: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.addresses = addresses
        self._options = (*_OPTIONS, ("grpc.max_receive_message_length", max_message_bytes))
        self.timeout_s = timeout_s
        self._identity = identity
        # Nobody named: a fleet spreads over the members.
        self._index = random.randrange(len(addresses)) if first is None else first
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for address in self.addresses:
            self._channels[address] = await self._open.enter_async_context(self._channel(address))
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
            address = self.current
            try:
                return await self.call_at(address, method, request, max(share_s, LEAST_ATTEMPT_S))
            except StoreUnavailable:
                self.rotate(address)
                if left == 0 or asyncio.get_running_loop().time() + RETRY_PAUSE_S[1] >= deadline:
                    raise
            await asyncio.sleep(random.uniform(*RETRY_PAUSE_S))

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._identity.tls is None:
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, self._identity.tls, options=self._options)

    async def call_at(
        self, address: str, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """The answer of the member at ``address``, tried once."""
        invoke = self._channels[address].unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: ResponseT = await invoke(request, timeout=timeout_s, metadata=_LEADER_ONLY)
        except grpc.aio.AioRpcError as error:
            raise translate(error.code(), error.details(), address) from error
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
