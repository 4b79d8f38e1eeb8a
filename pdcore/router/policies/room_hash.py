"""By the room: the same name lands at the same place while the fleet stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.lots import place
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class RoomHash:
    """The client's name for its room, or the request's chance, hashed with the role: both legs choose independently."""

    name: Final = "room_hash"
    terms: Final = ("steps from the room's place",)

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        room = want.draw if want.room is None else want.room
        return steps_from(place(candidates[0].role, room, len(candidates)), len(candidates))


def steps_from(home: int, count: int) -> list[Score]:
    """How far each of ``count`` places is behind ``home``, around the end."""
    return [((position - home) % count,) for position in range(count)]
