"""Anybody, by the request's own chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.lots import place
from pdcore.router.policies.room_hash import steps_from
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class Random:
    """Needs no memory, so it is even from the first request on and over any number of routers."""

    name: Final = "random"
    terms: Final = ("steps from the drawn place",)

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        return steps_from(place(candidates[0].role, want.draw, len(candidates)), len(candidates))
