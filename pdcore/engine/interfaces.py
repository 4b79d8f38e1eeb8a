"""Which of this machine's addresses others reach it at: pure, beside the reader of what the kernel says."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

import psutil

from pdcore.errors import ConfigError
from pdcore.interfaces import Interface, listed, parsed

WAYS_OUT: Final = "--advertise-ip / PDCORE_ADVERTISE_IP or --kv-ifname / PDCORE_KV_IFNAME"


def own_address(interfaces: Iterable[Interface], ifname: str | None) -> str:
    """The address of the interface ``ifname``, else of the only routable one. ConfigError with the list when in doubt."""
    every = tuple(interfaces)
    if ifname is None:
        return _only([one for one in every if one.is_routable], every, "this machine")
    named = [one for one in every if one.name == ifname]
    where = f"--kv-ifname / PDCORE_KV_IFNAME: {ifname!r}"
    if not named:
        raise ConfigError(f"{where} is no interface of this machine, which has {listed(every)}")
    if not named[0].up:
        raise ConfigError(f"{where} is down")
    return _only(named, named, where)


def read_interfaces() -> tuple[Interface, ...]:
    """What the kernel says now, in the order of names."""
    up = psutil.net_if_stats()
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        numeric = tuple(one.address for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6))
        found.append(Interface(name=name, up=name in up and up[name].isup, addresses=numeric))
    return tuple(found)


def interface_with(address: str) -> str | None:
    """The name of this machine's interface that has ``address``."""
    return next((one.name for one in read_interfaces() if address in one.addresses), None)


def _only(candidates: Iterable[Interface], shown: Iterable[Interface], whose: str) -> str:
    addresses = [address for one in candidates for address in _addresses(one)]
    if len(addresses) != 1:
        number = len(addresses) or "no"
        raise ConfigError(
            f"{whose} has {number} routable addresses: {listed(shown)}; name one with {WAYS_OUT}"
        )
    return addresses[0]


def _addresses(interface: Interface) -> tuple[str, ...]:
    """Those to choose from: routable ones before loopback, IPv4 before IPv6."""
    usable = interface.routable or tuple(a for a in interface.addresses if parsed(a).is_loopback)
    return tuple(a for a in usable if parsed(a).version == 4) or usable
