"""Of two drawn at random, the one with fewer open legs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.lots import place
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class PowerOfTwo:
    """Almost as even as looking at everybody, but routers that know nothing of each other do not all flock to one."""

    name: Final = "power_of_two"
    terms: Final = ("not drawn", "legs in flight", "drawn second")

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        drawn = two_of(candidates[0].role, want.draw, len(candidates))
        return [
            (position not in drawn, load.in_flight(one.instance_id), position != drawn[0])
            for position, one in enumerate(candidates)
        ]


def two_of(role: str, draw: int, count: int) -> tuple[int, int]:
    """Two different places below ``count``, or the only one twice."""
    first = place(role, draw, count)
    return first, (first + 1 + place(f"second {role}", draw, count - 1)) % count if count > 1 else first
