"""Who we are to etcd, and the token that proves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import grpc

from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.faults import AuthOff
from pdcore.registry.tls_files import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """``tls`` encrypts the connections and may hold our certificate; ``user`` logs in with ``password``."""

    tls: grpc.ChannelCredentials | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)


NOBODY: Final = Identity()


def credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """``files`` as gRPC takes them."""
    return grpc.ssl_channel_credentials(files.ca, files.key, files.cert)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What a call shows of us. Two are the same only if they come from the same login."""

    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)


NO_PASS: Final = Pass()
Authenticate = Callable[[wire.AuthenticateRequest], Awaitable[wire.AuthenticateResponse]]


class Login:
    """Our pass at one etcd cluster. It is obtained when first needed and again whenever it was refused.

    While etcd asks nobody for a user it is an empty one, because a token is refused then. Mutable: ``_pass``, changed
    under ``_one_at_a_time`` only.
    """

    def __init__(self, identity: Identity) -> None:
        self._user = identity.user
        self._password = identity.password
        self._pass: Pass | None = NO_PASS if identity.user is None else None
        self._one_at_a_time = asyncio.Lock()

    @property
    def has_user(self) -> bool:
        """Whether another login could help."""
        return self._user is not None

    async def pass_after(self, refused: Pass | None, authenticate: Authenticate) -> Pass:
        """Our pass, which is not ``refused``: logs in unless somebody else did meanwhile.

        Raises :class:`~pdcore.errors.AccessRefused` for a wrong user or password.
        """
        if self._pass is not None and self._pass is not refused:
            return self._pass
        async with self._one_at_a_time:
            if self._pass is None or self._pass is refused:
                self._pass = await self._log_in(authenticate)
            return self._pass

    async def _log_in(self, authenticate: Authenticate) -> Pass:
        try:
            answer = await authenticate(wire.AuthenticateRequest(name=self._user, password=self._password))
        except AuthOff:
            return Pass()
        return Pass((("token", answer.token),))
