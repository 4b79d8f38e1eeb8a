"""Network interfaces as values, and which of them lead to other machines. Pure.

A bridge, a tunnel or a link-local address is never taken silently: a peer would learn of the mistake by a timeout.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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

    @property
    def routable(self) -> tuple[str, ...]:
        """Its addresses that another machine may reach."""
        return tuple(address for address in self.addresses if not _is_local(parsed(address)))

    @property
    def is_routable(self) -> bool:
        """Whether it is up, no bridge or tunnel, and has such an address."""
        return self.up and not self.name.startswith(VIRTUAL) and bool(self.routable)


def parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address without its zone."""
    return ipaddress.ip_address(address.partition("%")[0])


def listed(interfaces: Iterable[Interface]) -> str:
    """All of them for a message."""
    return ", ".join(map(str, interfaces)) or "none"


def _is_local(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast
