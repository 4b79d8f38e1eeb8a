"""Which interface of a machine carries KV. Pure.

Left alone, a transport takes a container's bridge as gladly as a fabric and advertises an address that no peer reaches. So
one is chosen here, or none: with several that could be meant somebody has to say, and nothing ever means "all of them".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pdcore.group.modes.mode import Plane
from pdcore.interfaces import Interface, listed

WAYS_OUT: Final = "name one with --kv-transfer-ifname / PDCORE_KV_TRANSFER_IFNAME, or for all machines with network.kv_transfer_ifname"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``name`` is the interface. Without it ``problem`` says why there is none; ``warning`` is for a doubtful one."""

    name: str | None
    problem: str = ""
    warning: str = ""


def choose(
    interfaces: Sequence[Interface], plane: Plane | None, *, named: str | None, management_ip: str | None
) -> Choice:
    """The interface for KV on a machine that others reach at ``management_ip``.

    ``named`` is what this machine, or else the group, was told. On the control plane the management network's interface
    is right by definition.
    """
    if named is not None:
        return _named(interfaces, named)
    management = next((one for one in interfaces if management_ip in one.addresses), None)
    if plane == "control":
        return _found(management) if management is not None else _none(interfaces, management_ip)
    candidates = [one for one in interfaces if one.is_routable]
    if len(candidates) > 1:
        problem = f"this machine has {len(candidates)} interfaces that could carry KV: {listed(candidates)}"
        return Choice(name=None, problem=f"{problem}; {WAYS_OUT}")
    if candidates:
        return _found(candidates[0], _elsewhere(candidates[0], management))
    if management is None:
        return _none(interfaces, management_ip)
    doubt = f"{management} leads to no other machine, and nothing else of this one does"
    return _found(management, f"{doubt}: KV will go over it; {WAYS_OUT}")


def _named(interfaces: Sequence[Interface], name: str) -> Choice:
    found = next((one for one in interfaces if one.name == name), None)
    if found is None:
        return Choice(
            name=None, problem=f"{name!r} is no interface of this machine, which has {listed(interfaces)}"
        )
    return Choice(name=None, problem=f"{found} carries nothing") if not found.up else _found(found)


def _elsewhere(chosen: Interface, management: Interface | None) -> str:
    """A word when people reach the machine by another interface than KV."""
    if management is None or management.name == chosen.name:
        return ""
    return f"KV goes over {chosen.name}, while the machine is reached by {management}; {WAYS_OUT} if that is wrong"


def _found(one: Interface, warning: str = "") -> Choice:
    return Choice(name=one.name, warning=warning)


def _none(interfaces: Sequence[Interface], management_ip: str | None) -> Choice:
    at = f"has {management_ip}" if management_ip is not None else "is the machine's own"
    return Choice(name=None, problem=f"no interface {at} among {listed(interfaces)}; {WAYS_OUT}")
