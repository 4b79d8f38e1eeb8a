"""Which transfer engine a pair uses. Pure.

A prefill rank's record offers a document per engine: ``{"engines": {"shm": {…}, "tcp": {…}}}``. Decode takes the best
one that it was given as well and that reaches the peer. ``mooncake`` and ``memfabric`` are used when somebody asked for
them, never by ``auto``: the one listens on every interface without asking who comes, the other needs its device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from pdcore.errors import PeerGone

AUTO: Final = ("shm", "tcp")
SETTINGS: Final = ("auto", "shm", "tcp", "mooncake", "memfabric")

_WITHIN_ONE_BOOT: Final = frozenset({"shm"})

Offers = dict[str, Mapping[str, object]]


def engine_names(setting: str) -> tuple[str, ...]:
    """The engines that ``--transfer-engine`` stands for, the best first."""
    return AUTO if setting == "auto" else (setting,)


def choose(own: Collection[str], peer: Collection[str], *, same_machine: bool) -> tuple[str, ...]:
    """The common engines that reach the peer, in the order in which to try them."""
    common = [name for name in own if name in peer and (same_machine or name not in _WITHIN_ONE_BOOT)]
    return tuple(sorted(common, key=lambda name: AUTO.index(name) if name in AUTO else len(AUTO)))


def offers_document(offers: Offers) -> dict[str, object]:
    """What a prefill rank's record says of its engines."""
    return {"engines": {name: dict(endpoint) for name, endpoint in offers.items()}}


def read_offers(document: Mapping[str, object]) -> Offers:
    """The reverse. What is no engine's document is left out; ``PeerGone`` when there are no engines at all."""
    engines = document.get("engines")
    if not isinstance(engines, Mapping):
        raise PeerGone("its record offers no transfer engines", in_doubt=False)
    return {
        name: endpoint
        for name, endpoint in engines.items()
        if isinstance(name, str) and isinstance(endpoint, Mapping)
    }


def under_boot(offers: Offers, boot_id: str) -> bool:
    """Whether the peer runs under this boot of this machine. Only engines that cannot leave it say where they are."""
    return any(endpoint.get("boot_id") == boot_id for endpoint in offers.values())
