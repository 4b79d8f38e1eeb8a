"""Sockets and HTTP servers of a process: what listens, under which flag, and how it ends.

Signals belong to the process's main, so the servers here leave them alone.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address
from typing import Final, cast

import uvicorn
from starlette.types import ASGIApp

from pdcore.beside import running_beside
from pdcore.errors import ConfigError
from pdcore.http_head import BoundedHead

BACKLOG: Final = 4096
KEEPALIVE_S: Final = 75
CLOSING_S: Final = 2
UNREAD_ANSWER_MS: Final = 60_000


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening TCP socket on ``host:port`` (0 picks a port), or ConfigError naming ``setting`` and its variable."""
    named = f"--{setting.replace('_', '-')} / PDCORE_{setting.upper()}"
    if is_wildcard(host):
        raise ConfigError(f"--host / PDCORE_HOST: {host!r} cannot be advertised; name one address")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as wrong:
        raise ConfigError(f"--host / PDCORE_HOST: {host!r} is no address: {wrong.strerror}") from None
    if not host or ip_address(str(address[0]).partition("%")[0]).is_unspecified:
        raise ConfigError(f"--host / PDCORE_HOST: {host!r} cannot be advertised; name one address")
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _end_unread_connections(listener)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as wrong:
        listener.close()
        if wrong.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host / PDCORE_HOST: {host!r} is no address of this machine") from None
        taken = wrong.errno == errno.EADDRINUSE
        reason = "is taken by another process" if taken else f"cannot be used: {wrong.strerror}"
        raise ConfigError(f"{named}: port {port} on {host} {reason}") from None
    listener.setblocking(False)
    return listener


def is_wildcard(host: str) -> bool:
    """Whether ``host`` means every address of the machine, which nobody can connect to."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host


def port_of(listener: socket.socket) -> int:
    """The port it got."""
    port: int = listener.getsockname()[1]
    return port


def url_of(host: str, listener: socket.socket, *, tls: bool = False) -> str:
    """Where ``listener`` answers, by the name it was given."""
    named = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{named}:{port_of(listener)}"


@asynccontextmanager
async def answering(
    app: ASGIApp,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
    protocol: Callable[..., asyncio.Protocol] = BoundedHead,
) -> AsyncIterator[None]:
    """Answer HTTP on ``listener`` with the ASGI ``app`` inside the block; leaving cuts what is still open soon.

    With ``tls`` only encrypted; a certificate loaded into it later counts for connections from then on. ``protocol`` is
    what makes a protocol, as uvicorn wants it.
    """
    config = uvicorn.Config(
        app,
        interface="asgi3",
        loop="none",
        http=cast("type[asyncio.Protocol]", protocol),  # whatever makes one will do
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEPALIVE_S,
        timeout_graceful_shutdown=CLOSING_S,
    )
    config.load()
    config.ssl = tls
    server = _Server(config)
    ended = asyncio.Event()

    async def serve() -> None:
        await server.serve(sockets=[listener])
        ended.set()

    async with running_beside(serve()):
        try:
            yield
        finally:
            server.should_exit = True
            with suppress(TimeoutError):  # what did not end by then is cut when the block is left
                async with asyncio.timeout(2 * CLOSING_S):
                    await ended.wait()
            _cut(server)


def _cut(server: uvicorn.Server) -> None:
    """End connections whose client does not read its answer: the server waits for it, and leaves them open then."""
    for connection in server.server_state.connections:
        if connection.transport is not None:
            connection.transport.abort()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _end_unread_connections(listener: socket.socket) -> None:
    """Let the kernel end a connection whose peer does not take its bytes; accepted sockets inherit it."""
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)
    if user_timeout is not None:
        listener.setsockopt(socket.IPPROTO_TCP, user_timeout, UNREAD_ANSWER_MS)
