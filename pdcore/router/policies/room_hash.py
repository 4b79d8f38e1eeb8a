"""By the room: the same name lands at the same place while the fleet stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class RoomHash:
    """The client's name for its room, or the request's chance, hashed with the role: both legs choose independently."""

    name: Final = "room_hash"
    terms: Final = ("steps from the room's place",)

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        count = len(candidates)
        home = place(candidates[0].role, want.draw if want.room is None else want.room) % count
        return [((position - home) % count,) for position in range(count)]


def place(role: str, room: int) -> int:
    """64 bits of role and room."""
    return int.from_bytes(blake2b(f"{role}/{room}".encode(), digest_size=8).digest(), "big")
