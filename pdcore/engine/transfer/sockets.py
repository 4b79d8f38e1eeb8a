"""TCP sockets as the links use them: numeric addresses only, never blocking, and a dead machine is noticed."""

from __future__ import annotations

import ipaddress
import os
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

from pdcore.errors import ConfigError, PeerGone

LINK_S: Final = 5.0
"""How long making a link may take."""

_WINDOW: Final = 256
_IDLE_S, _PROBE_S, _PROBES = 10, 5, 3
_BACKLOG: Final = 128


def listen(ip: str, port: int = 0) -> socket.socket:
    """A listener on one numeric address; ``ConfigError`` when that is impossible. Wildcards are refused."""
    listener = None
    try:
        if ipaddress.ip_address(ip).is_unspecified:
            raise ConfigError(f"KV links need one address of this machine to listen on, not {ip}")
        listener = _new(ip)
        listener.bind((ip, port))
        listener.listen(_BACKLOG)
    except (ValueError, OSError) as error:
        if listener is not None:
            listener.close()
        raise ConfigError(f"cannot listen for KV links on {ip}: {error}") from error
    return listener


def start_connecting(ip: str, port: int) -> socket.socket:
    """A socket on its way; writable when it is decided. ``PeerGone`` when the address cannot be used."""
    try:
        ipaddress.ip_address(ip)  # a name would be looked up, and that blocks
        connection = _new(ip)
    except (ValueError, OSError) as error:
        raise PeerGone(f"its address {ip}:{port} is not usable: {error}", in_doubt=False) from error
    tune(connection)
    try:
        connection.connect((ip, port))
    except BlockingIOError:
        pass
    except OSError as error:
        connection.close()
        raise PeerGone(f"cannot connect to {ip}:{port}: {reason(error)}", in_doubt=False) from error
    return connection


def tune(connection: socket.socket) -> None:
    """No waiting for more to send; a peer whose machine is gone shows as an error within half a minute. Buffers are
    left to the kernel, which lets them grow further than a program may."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def hang_up(connection: socket.socket) -> None:
    """End both directions but keep the descriptor, so that no thread meets somebody else's under its number."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already


def send_all(
    connection: socket.socket, parts: Sequence[bytes | memoryview], deadline: float, now: Callable[[], float]
) -> None:
    """Send everything in order; ``TimeoutError`` at ``deadline``, ``OSError`` when the connection ends."""
    waiting = list(parts)
    first = 0
    while first < len(waiting):
        try:
            sent = connection.sendmsg(waiting[first : first + _WINDOW], (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            wait_for(connection, select.POLLOUT, deadline, now)
            continue
        first = skip(waiting, first, sent)


def receive_exactly(
    connection: socket.socket, size: int, deadline: float, now: Callable[[], float]
) -> bytearray:
    """The next ``size`` bytes, on the same terms; ``ConnectionError`` at their end."""
    buffer = bytearray(size)
    missing = memoryview(buffer)
    while missing:
        try:
            got = connection.recv_into(missing)
        except BlockingIOError:
            wait_for(connection, select.POLLIN, deadline, now)
            continue
        if not got:
            raise ConnectionResetError("it hung up")
        missing = missing[got:]
    return buffer


def wait_for(connection: socket.socket, mask: int, deadline: float, now: Callable[[], float]) -> None:
    """Return when the connection is ready for ``mask``, or broken."""
    poller = select.poll()
    poller.register(connection, mask)
    remaining_s = deadline - now()
    if remaining_s <= 0 or not poller.poll(remaining_s * 1000):
        raise TimeoutError("no answer in time")


def skip(views: list[bytes | memoryview], first: int, moved: int) -> int:
    """The index of the first view that is not moved yet; the one in which ``moved`` bytes end is cut to its rest."""
    while moved and moved >= len(views[first]):
        moved -= len(views[first])
        first += 1
    if moved:
        views[first] = memoryview(views[first])[moved:]
    return first


def reason(error: OSError) -> str:
    """An error for people."""
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error) or type(error).__name__)


def _new(ip: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
