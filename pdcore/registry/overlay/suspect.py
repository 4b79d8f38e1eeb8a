"""What the overlay knows: values only, and how long it waits between two probes of one instance.

A suspect is an instance that the keyspace and the network disagree about, or may. It is made for one incarnation and
ends with it; at most :data:`MAX_SUSPECTS` are held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Final, Literal

from pdcore.topology.instance import Instance

MAX_SUSPECTS: Final = 4096
SILENCES: Final = 2
AGAIN_WITHIN_S: Final = 0.05
PERIOD_S: Final = 1.0
PROBES_PER_S: Final = 100.0
FORGOTTEN_AFTER_S: Final = 600.0
FROZEN_AFTER_S: Final = 15.0

InstanceKey = tuple[str, str]
"""(instance id, incarnation)."""

Evidence = Literal["connection", "error", "silence"]
"""What a request met: a connection that failed, an error that names the instance, or one that says nothing at all."""

Cause = Literal["vanished", "cached", "connection", "error", "silence"]
"""Its keys went unexplained; it is only known from a file; or the :data:`Evidence` of requests."""

Standing = Literal["unproven", "asked", "doubted", "kept", "gone"]
"""Not shown before it answers; not doubted before it is silent; shown as suspect until two probes are silent; shown as
suspect while it answers; does not answer."""

Outcome = Literal["answered", "refused", "other", "failed", "silent", "late"]
"""``other``: somebody else answers there. ``failed``: it says itself that it lost a rank. ``late``: we were late."""

NoteKind = Literal[
    "suspected", "kept", "gone", "frozen", "answers again", "confirmed", "departed", "forgotten"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """``instance`` is the last that was known of it, complete; ``newest`` the revision of its newest key.

    ``why`` is the newest evidence. ``listed``: the keyspace shows this incarnation complete, so that only its silence speaks against it.
    """

    instance: Instance
    newest: int
    cause: Cause
    standing: Standing
    listed: bool
    why: str
    since: float
    probe_at: float
    heard_at: float
    silences: int = 0
    frozen: bool = False
    probing: bool = False

    @property
    def key(self) -> InstanceKey:
        return (self.instance.instance_id, self.instance.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What became of one incarnation, for logs and for whoever has requests there."""

    kind: NoteKind
    instance_id: str
    incarnation: str
    why: str

    @property
    def key(self) -> InstanceKey:
        return (self.instance_id, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ask ``url`` now whether it is ``key``'s incarnation."""

    key: InstanceKey
    url: str


@dataclass(frozen=True, slots=True)
class Overlay:
    """Every suspect by instance id. Replaced, never changed."""

    suspects: Mapping[str, Suspect] = field(default_factory=lambda: MappingProxyType({}))

    def replaced(self, changes: Mapping[str, Suspect | None]) -> Overlay:
        """With ``changes`` (None removes); the very same overlay when there are none."""
        if not changes:
            return self
        merged = {**self.suspects, **changes}
        kept = {instance_id: one for instance_id, one in merged.items() if one is not None}
        return Overlay(MappingProxyType(_bounded(kept)))


def _bounded(suspects: dict[str, Suspect]) -> dict[str, Suspect]:
    """At most as many as may be held: who is gone leaves first, then who was heard of longest ago."""
    surplus = len(suspects) - MAX_SUSPECTS
    if surplus <= 0:
        return suspects
    ranked = sorted(suspects, key=lambda name: (suspects[name].standing != "gone", suspects[name].heard_at))
    return {name: suspects[name] for name in ranked[surplus:]}


def next_probe_in_s(count: int, random: Random) -> float:
    """The pause before a suspect that was decided about is asked again, while there are ``count`` of them."""
    return max(PERIOD_S, count / PROBES_PER_S) * random.uniform(0.75, 1.25)


def note(kind: NoteKind, suspect: Suspect, why: str) -> Note:
    """A note about ``suspect``."""
    instance_id, incarnation = suspect.key
    return Note(kind=kind, instance_id=instance_id, incarnation=incarnation, why=why)
