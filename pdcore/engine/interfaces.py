"""Which of this machine's addresses others reach it at: pure, beside the reader of what the kernel says.

A bridge, a tunnel or a link-local address is never taken silently: a peer would learn of the mistake by a timeout.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import psutil

from pdcore.errors import ConfigError

WAYS_OUT: Final = "--advertise-ip / PDCORE_ADVERTISE_IP or --kv-ifname / PDCORE_KV_IFNAME"
VIRTUAL: Final = tuple(
    "docker br- veth cni flannel cali cilium_ lxc weave datapath antrea kube- nodelocaldns vxlan genev_sys ovs-system "
    "virbr vnet tunl tun tap wg ppp tailscale zt dummy ifb utun bridge".split()
)
"""How the names of interfaces begin that lead to containers, tunnels and the like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface; ``addresses`` are numeric, IPv4 or IPv6."""

    name: str
    up: bool
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {' '.join(self.addresses) or '(no address)'}{'' if self.up else ' (down)'}"


def own_address(interfaces: Iterable[Interface], ifname: str | None) -> str:
    """The address of the interface ``ifname``, else of the only routable one. ConfigError with the list when in doubt."""
    every = tuple(interfaces)
    if ifname is None:
        return _only([one for one in every if _is_routable(one)], every, "this machine")
    named = [one for one in every if one.name == ifname]
    where = f"--kv-ifname / PDCORE_KV_IFNAME: {ifname!r}"
    if not named:
        raise ConfigError(f"{where} is no interface of this machine, which has {_listed(every)}")
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
            f"{whose} has {number} routable addresses: {_listed(shown)}; name one with {WAYS_OUT}"
        )
    return addresses[0]


def _is_routable(interface: Interface) -> bool:
    return interface.up and not interface.name.startswith(VIRTUAL) and bool(_routable(interface))


def _addresses(interface: Interface) -> tuple[str, ...]:
    """Those to choose from: routable ones before loopback, IPv4 before IPv6."""
    usable = _routable(interface) or tuple(a for a in interface.addresses if _ip(a).is_loopback)
    return tuple(a for a in usable if _ip(a).version == 4) or usable


def _routable(interface: Interface) -> tuple[str, ...]:
    return tuple(address for address in interface.addresses if not _is_local(_ip(address)))


def _is_local(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])


def _listed(interfaces: Iterable[Interface]) -> str:
    return ", ".join(map(str, interfaces)) or "none"
