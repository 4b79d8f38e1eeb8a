"""Whose accelerators a fleet has, as its ranks say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdcore.group.spec import Vendor
from pdcore.topology.topology import Topology

_OF_DEVICES: Final[Mapping[str, Vendor]] = {"cpu": "cpu", "npu": "ascend", "cuda": "nvidia"}


def vendor_of(device: str) -> Vendor | None:
    """The vendor of a device as a rank names it (``npu:3``); None for one that nobody here knows."""
    return _OF_DEVICES.get(device.partition(":")[0])


def vendors_of(topology: Topology) -> frozenset[Vendor]:
    """The vendors that ready instances run on; none while nobody is ready."""
    devices = {rank.device for one in topology.instances.values() if one.ready for rank in one.ranks.values()}
    return frozenset(vendor for device in devices if (vendor := vendor_of(device)) is not None)
