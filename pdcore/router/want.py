"""What a request asks of its pair, and what a router knows of its own load: all that a pick reads besides the view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from pdcore.topology.instance import Instance

InstanceKey = tuple[str, str]
"""(instance id, incarnation): an exclusion never outlives the incarnation that earned it."""


def key_of(instance: Instance) -> InstanceKey:
    """The incarnation that what is learned of ``instance`` holds for."""
    return instance.instance_id, instance.record.incarnation


class Part(Struct, frozen=True):
    """A stretch of a prompt: ``key`` names everything from its beginning to there, ``share`` is its part of the traffic."""

    key: int
    share: float


class Prefix(Struct, frozen=True):
    """Where a prompt stands among others.

    ``path`` leads from the part it shares with most others to the first it shares with few, its conversation; there is
    always that one.
    ``shared_bytes`` is how long all known prefixes that many prompts share are together.
    """

    path: tuple[Part, ...]
    shared_bytes: int


class Want(Struct, frozen=True, kw_only=True):
    """What a request asks of its pair.

    ``excluded`` maps instances that refused it to what they said. ``room`` is the client's own name for its room.
    ``draw`` is the request's chance, drawn once, so that the same question always has the same answer.
    ``prefix`` is None where no policy asks for it. ``prefers_unified``: a pair is not worth it where one can do both.
    ``candidate``: the group and the generation that this request proves; members of no other generation take it.
    """

    model: str
    pinned_prefill: str | None = None
    prefill_dp_rank: int | None = None
    excluded: Mapping[InstanceKey, str] = {}
    room: int | None = None
    draw: int = 0
    prefix: Prefix | None = None
    prefers_unified: bool = False
    candidate: tuple[str, int] | None = None


class Load(Protocol):
    """What this router knows of its own requests, as a policy may read it."""

    def in_flight(self, instance_id: str) -> int:
        """Legs open at the instance."""
        ...

    def last_use(self, *instance_ids: str) -> int:
        """A number that is larger the later this instance, or this pair, was picked; 0 for never."""
        ...
