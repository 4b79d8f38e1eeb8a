"""The members of an etcd cluster: one connection each, unary calls with a deadline, rotation after a failure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, Self, TypeVar

import grpc

from pdcore.errors import StoreError, StoreUnavailable
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.faults import HandshakeRefused, TokenRefused, translate
from pdcore.registry.etcd.identity import NO_PASS, NOBODY, Identity, Login, Pass
from pdcore.registry.etcd.methods import AUTHENTICATE, Method, RequestT, ResponseT

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
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_LEADER_ONLY: Final = (("hasleader", "true"),)  # a member cut off from its leader says so instead of waiting

DoneT = TypeVar("DoneT")
Attempt = Callable[[Pass, float], Awaitable[DoneT]]
"""Does something with a pass, within so many seconds."""


class Endpoints:
    """Connections to ``addresses`` (``host:port``) as ``identity``, open inside ``async with``.

    Calls go to :attr:`current`, which changes when it fails.
    """

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
        self._options = (
            *_OPTIONS,
            # How long connecting may take, TLS included.
            ("grpc.min_reconnect_backoff_ms", int(timeout_s * 1000)),
            ("grpc.max_receive_message_length", max_message_bytes),
        )
        self.timeout_s = timeout_s
        # Nobody named: a fleet spreads over the members.
        self._index = random.randrange(len(addresses)) if first is None else first
        self._tls = identity.tls
        self._login = Login(identity)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for address in self.addresses:
            self._channels[address] = await self._open.enter_async_context(self.dial(address))
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

    def dial(self, address: str) -> grpc.aio.Channel:
        """A connection of its own to ``address``; the caller closes it."""
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=self._options)
        return grpc.aio.secure_channel(address, self._tls, options=self._options)

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, repeatable: bool
    ) -> ResponseT:
        """The answer to ``request`` within ``timeout_s``, all attempts together.

        Only a ``repeatable`` request (one that may happen twice without harm) is tried again on the next address, or
        one that was certainly not sent.
        """
        deadline = _now() + self.timeout_s
        left = max(2, len(self.addresses))
        worst: StoreError | None = None
        while True:
            address, budget_s = self.current, deadline - _now()
            share_s = budget_s / left if repeatable and len(self.addresses) > 1 else budget_s
            try:
                return await self.call_at(address, method, request, share_s)
            except HandshakeRefused as fault:
                worst, may_repeat = worst or fault, True
            except StoreUnavailable as fault:
                worst, may_repeat = fault, repeatable
            self.rotate(address)
            left -= 1
            if left == 0 or not may_repeat or _now() + RETRY_PAUSE_S[1] >= deadline:
                raise worst
            await asyncio.sleep(random.uniform(*RETRY_PAUSE_S))

    async def call_at(
        self, address: str, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """The answer of the member at ``address``."""

        async def attempt(shown: Pass, left_s: float) -> ResponseT:
            return await self._send(address, method, request, shown, left_s)

        return await self.as_ourselves(address, timeout_s, attempt)

    async def as_ourselves(self, address: str, timeout_s: float, attempt: Attempt[DoneT]) -> DoneT:
        """What ``attempt`` does with our pass, or with a new one when that is refused; both within ``timeout_s``.

        Logging in, should that be needed, happens at ``address``.
        """
        deadline = _now() + timeout_s
        shown = await self._pass_after(None, address, deadline)
        try:
            return await attempt(shown, _left_s(deadline))
        except TokenRefused:
            if not self._login.has_user:
                raise
        shown = await self._pass_after(shown, address, deadline)
        return await attempt(shown, _left_s(deadline))

    async def _pass_after(self, refused: Pass | None, address: str, deadline: float) -> Pass:
        async def authenticate(request: wire.AuthenticateRequest) -> wire.AuthenticateResponse:
            return await self._send(address, AUTHENTICATE, request, NO_PASS, _left_s(deadline))

        try:
            async with asyncio.timeout_at(deadline):
                return await self._login.pass_after(refused, authenticate)
        except TimeoutError as error:
            raise StoreUnavailable(f"etcd at {address}: no login in time") from error

    async def _send(
        self,
        address: str,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        shown: Pass,
        timeout_s: float,
    ) -> ResponseT:
        invoke = self._channels[address].unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response: ResponseT = await invoke(request, timeout=timeout_s, metadata=metadata(shown))
        except grpc.aio.AioRpcError as error:
            raise translate(error.code(), error.details(), address) from error
        return response


def metadata(shown: Pass) -> tuple[tuple[str, str], ...]:
    """What goes with every call."""
    return _LEADER_ONLY + shown.metadata


def _now() -> float:
    return asyncio.get_running_loop().time()


def _left_s(deadline: float) -> float:
    return max(deadline - _now(), LEAST_ATTEMPT_S)
