"""Of two drawn at random, the one with fewer open legs."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.lots import lot
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class PowerOfTwo:
    """Almost as even as looking at everybody, but routers that know nothing of each other do not all flock to one."""

    name: Final = "power_of_two"
    terms: Final = ("not drawn", "legs in flight", "lot")

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        lots = [lot(want.draw, one.instance_id) for one in candidates]
        last = nsmallest(2, lots)[-1]
        return [
            (float(mine > last), load.in_flight(one.instance_id), mine)
            for one, mine in zip(candidates, lots, strict=True)
        ]
