"""The fewest open legs of this router; among equals whoever waited longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.round_robin import RoundRobin, turns
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class LeastLoaded:
    """A new member gets no flood: with nothing open it is only the first among equals."""

    name: Final = "least_loaded"
    terms: Final = ("legs in flight", *RoundRobin.terms)

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        return [(load.in_flight(one.instance_id), *turns(one, load, partner)) for one in candidates]
