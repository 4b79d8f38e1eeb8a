"""The router's listening socket and HTTP server. Signals belong to the router's main, not to the server."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from pdcore.errors import ConfigError
from pdcore.registry.beside import running_beside

BACKLOG: Final = 4096
KEEPALIVE_S: Final = 75
CLOSING_S: Final = 2
UNREAD_ANSWER_MS: Final = 60_000


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on ``host:port`` (0 picks a port); ConfigError names the setting that cannot work."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as wrong:
        raise ConfigError(f"--host / PDCORE_HOST: {host!r} is no address: {wrong}") from wrong
    if ipaddress.ip_address(address[0]).is_unspecified:
        raise ConfigError(f"--host / PDCORE_HOST: {host!r} cannot be advertised; name one address")
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)
    if user_timeout is not None:  # accepted sockets inherit it: bytes that nobody takes end the connection
        listener.setsockopt(socket.IPPROTO_TCP, user_timeout, UNREAD_ANSWER_MS)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as wrong:
        listener.close()
        taken = "is taken" if wrong.errno == errno.EADDRINUSE else f"cannot be used: {wrong.strerror}"
        raise ConfigError(f"--port / PDCORE_PORT: {host}:{port} {taken}") from wrong
    listener.setblocking(False)
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """Where ``listener`` answers."""
    port: int = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def answering(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve ``app`` on ``listener`` inside the block; leaving closes idle connections and cuts the others soon."""
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
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
    server = _Server(config)
    ended = asyncio.Event()

    async def run() -> None:
        await server.serve(sockets=[listener])
        ended.set()

    async with running_beside(run()):
        try:
            yield
        finally:
            server.should_exit = True
            try:
                async with asyncio.timeout(2 * CLOSING_S):
                    await ended.wait()
            except TimeoutError:
                server.force_exit = True
