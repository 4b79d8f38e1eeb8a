"""Requests that seem to kill what holds them. Pure.

A request is remembered by a hash of what the client sent when an instance that held it died. After two deaths, of two
incarnations, it is refused for a minute: a third instance must not find out. One answer to the same request clears
it, since many clients send the same words, and what was answered does not kill.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from pdcore.router.api import ClientRequest
from pdcore.router.pick import InstanceKey

REFUSED_S: Final = 60.0
DEATHS: Final = 2
MOST: Final = 4096


def fingerprint(request: ClientRequest) -> bytes:
    """The same for requests that ask for the same: endpoint and every field, in whatever order they came."""
    digest = blake2b(request.endpoint.encode(), digest_size=16)
    for name in sorted(request.fields):
        value = bytes(request.fields[name])
        digest.update(f"\0{name}\0{len(value)}\0".encode())
        digest.update(value)
    return digest.digest()


@dataclass(slots=True)
class _Suspicion:
    last_at: float
    deaths: set[InstanceKey] = field(default_factory=set)


class Poison:
    """Who died holding what. Mutable: ``_held``, oldest death first, bounded, without what is over; and ``refused``."""

    def __init__(self) -> None:
        self._held: OrderedDict[bytes, _Suspicion] = OrderedDict()
        self.refused = 0

    def __bool__(self) -> bool:
        """Whether anything is remembered; while nothing is, no request need be hashed."""
        return bool(self._held)

    def died(self, key: InstanceKey, request: bytes, now: float) -> int:
        """``key`` died while it held the ``request`` of this fingerprint; how many have by now."""
        self._forget(now)
        held = self._held.pop(request, None) or _Suspicion(now)
        while len(self._held) >= MOST:
            self._held.popitem(last=False)
        self._held[request] = held
        held.last_at = now
        held.deaths.add(key)
        return len(held.deaths)

    def refuse_for_s(self, request: bytes, now: float) -> float:
        """How long ``request``, which has come, is still to be refused; 0 when it may be sent."""
        self._forget(now)
        held = self._held.get(request)
        if held is None or len(held.deaths) < DEATHS:
            return 0.0
        self.refused += 1
        return held.last_at + REFUSED_S - now

    def answered(self, request: bytes) -> None:
        """``request`` was answered: it is not what kills."""
        self._held.pop(request, None)

    def _forget(self, now: float) -> None:
        while self._held:
            name, oldest = next(iter(self._held.items()))
            if now < oldest.last_at + REFUSED_S:
                return
            del self._held[name]
