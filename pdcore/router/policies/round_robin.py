"""Whoever waited longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.router.policies.base import Score
from pdcore.router.want import Load, Want
from pdcore.topology.instance import Instance


class RoundRobin:
    """A decode's turn is first counted with its partner.

    Otherwise two equal rings of instances stay locked step in step, and only some pairs ever occur.
    """

    name: Final = "round_robin"
    terms: Final = ("the pair's last turn", "last turn")

    def scores(
        self, candidates: Sequence[Instance], want: Want, load: Load, partner: Instance | None
    ) -> Sequence[Score]:
        return [turns(one, load, partner) for one in candidates]


def turns(one: Instance, load: Load, partner: Instance | None) -> tuple[int, int]:
    """When ``one`` was picked last, with its partner and at all."""
    pair = 0 if partner is None else load.last_use(partner.instance_id, one.instance_id)
    return pair, load.last_use(one.instance_id)
