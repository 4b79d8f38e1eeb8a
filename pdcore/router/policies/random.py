"""Anybody, by the request's own chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.policies.lots import lot
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class Random:
    """Needs no memory, so it is even from the first request on and over any number of routers."""

    name: Final = "random"
    terms: Final = ("lot",)

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        return [(lot(want.draw, one.instance_id),) for one in candidates]
