"""Ports that one supervisor holds for its members, while its block lasts.

A port is held by a name in the kernel's abstract unix sockets, which belong to the same network namespace as the port and
are gone with the process, however it ends. So two supervisors on a machine cannot choose the same one, also before
anything listens on it. What other programs hold is found by binding: without SO_REUSEADDR, so that connections in
TIME_WAIT count as taken. Whoever has a port keeps it through its restarts.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from pdcore.config.member_network import PortRange
from pdcore.group.ports.layout import Exhausted, PortsExhausted, place
from pdcore.group.render.facts import PortBand
from pdcore.group.render.needs import PortNeed

NAME: Final = "\0pdcore-port-{port}"
_LOOKS: Final = 8
_ANY: Final = ""
_ANY_V6: Final = "::"
_TAKEN: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
_NO_IPV6: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How many members hold how many ports of the range."""

    range: PortRange
    members: int
    ports: int


@dataclass(slots=True)
class _Holding:
    """What one member has."""

    needs: tuple[PortNeed, ...]
    bands: Mapping[str, PortBand]


@dataclass(slots=True)
class HeldPorts:
    """Mutable: who has what, and the socket that holds each port. Not for several threads."""

    range: PortRange
    _holdings: dict[str, _Holding] = field(default_factory=dict, init=False)
    _sockets: dict[int, socket.socket] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holdings.clear()
        while self._sockets:
            self._sockets.popitem()[1].close()

    def take(self, owner: str, needs: Sequence[PortNeed]) -> Mapping[str, PortBand]:
        """Ports for ``owner`` by the names of ``needs``: those it has, if it needs the same. Raises PortsExhausted."""
        has = self._holdings.get(owner)
        if has is not None and has.needs == tuple(needs):
            return has.bands
        self.give_back(owner)
        found = self._placed(needs)
        if isinstance(found, Exhausted):
            raise PortsExhausted(owner, found)
        self._holdings[owner] = _Holding(tuple(needs), found)
        return found

    def give_back(self, owner: str) -> None:
        """Whatever ``owner`` has is free again; nothing if it has none."""
        has = self._holdings.pop(owner, None)
        for band in () if has is None else has.bands.values():
            for port in range(band.base, band.base + band.count):
                self._let_go(port)

    def statistics(self) -> Statistics:
        """What is held now."""
        return Statistics(range=self.range, members=len(self._holdings), ports=len(self._sockets))

    def _placed(self, needs: Sequence[PortNeed]) -> Mapping[str, PortBand] | Exhausted:
        """Whoever looks at the same time has had, for a moment, what then seemed to be taken: only several looks tell."""
        for _ in range(_LOOKS):
            found = place(self.range, needs, self._hold, self._let_go)
            if not isinstance(found, Exhausted):
                break
        return found

    def _hold(self, port: int) -> bool:
        if port in self._sockets:
            return False
        holding = _held(port)
        if holding is None:
            return False
        if not is_bindable(port):
            holding.close()
            return False
        self._sockets[port] = holding
        return True

    def _let_go(self, port: int) -> None:
        self._sockets.pop(port).close()


def is_bindable(port: int) -> bool:
    """Whether nobody has ``port`` on any address, connections that are over included. Nothing listens meanwhile."""
    return _binds(socket.AF_INET, _ANY, port) and (
        not socket.has_ipv6 or _binds(socket.AF_INET6, _ANY_V6, port)
    )


def _binds(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
    except OSError as wrong:
        if wrong.errno in _TAKEN:
            return False
        if family == socket.AF_INET6 and wrong.errno in _NO_IPV6:
            return True  # where there is no IPv6, nobody has the port there
        raise
    return True


def _held(port: int) -> socket.socket | None:
    """The socket that holds ``port``; None when another supervisor has it."""
    holding = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holding.bind(NAME.format(port=port))
    except OSError as wrong:
        holding.close()
        if wrong.errno == errno.EADDRINUSE:
            return None
        raise
    return holding
