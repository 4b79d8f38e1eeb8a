"""Which ports a member needs, before any is assigned. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pdcore.group.effective import EffectiveRole, pinned_cards
from pdcore.group.modes.mode import Band, Catalogue, Mode
from pdcore.group.render.facts import sizes_of

HTTP: Final = "http"
"""The name of the port that answers requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortNeed:
    """``count`` contiguous ports; None where the role does not say of how many ranks a member is."""

    name: str
    count: int | None


def needs_of(
    catalogue: Catalogue, mode: Mode, role: EffectiveRole, accelerators: int | None = None
) -> tuple[PortNeed, ...]:
    """What one member of ``role`` takes from the range: its HTTP port, if it cannot pick one, and its bands."""
    if role.is_router:
        return _of_router(catalogue, mode, role)
    backend = catalogue.backends[role.backend or mode.backends[0]]
    http = (PortNeed(name=HTTP, count=1),) if backend.served_at == "assigned" else ()
    bands = mode.bands_of("prefill" if role.name == "prefill" else "decode")
    return (*http, *(_band(one, role, accelerators) for one in bands))


def _of_router(catalogue: Catalogue, mode: Mode, role: EffectiveRole) -> tuple[PortNeed, ...]:
    router = None if role.run_command is not None else catalogue.router_of(mode)
    bands = () if router is None else router.bands
    return (PortNeed(name=HTTP, count=1), *(PortNeed(name=one.name, count=1) for one in bands))


def _band(band: Band, role: EffectiveRole, accelerators: int | None) -> PortNeed:
    if band.width == "one":
        return PortNeed(name=band.name, count=1)
    sizes = sizes_of(role, accelerators)
    if band.width == "data_parallel":
        return PortNeed(name=band.name, count=sizes.dp or 1)
    return PortNeed(name=band.name, count=sizes.cards or pinned_cards(role) or accelerators)
