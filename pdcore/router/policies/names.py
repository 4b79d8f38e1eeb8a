"""The name under which a candidate draws its lots: its seat's, or the instance id of one that has no seat.

Whoever takes a seat over draws as its predecessor did, whatever its own id is. Nothing but the instance itself decides
about its name, so that neither a newcomer nor an exclusion moves what lives elsewhere. Two that sit in one seat share
what lives there by their ids, and each inherits it from the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pdcore.router.policies.lots import seed
from pdcore.topology.instance import Instance

MOST_LISTS: Final = 16


class Names(NamedTuple):
    """``seeds`` of the candidates' names, in their order; ``within`` those of their ids, empty while no two share a seat."""

    seeds: tuple[int, ...]
    within: tuple[int, ...]


def name_of(one: Instance) -> str:
    """Unlike any instance id where it is a seat's: a slash occurs in none."""
    record = one.record
    return one.instance_id if record.seat is None else f"{record.group}/{record.role}/{record.seat}"


def names(candidates: Sequence[Instance]) -> Names:
    """What ``candidates`` draw by."""
    seeds = tuple(seed(name_of(one)) for one in candidates)
    if len(set(seeds)) == len(seeds):
        return Names(seeds, ())
    return Names(seeds, tuple(seed(one.instance_id) for one in candidates))


class NamesOf:
    """:func:`names`, once per list of candidates instead of once per request; such a list never changes.

    Mutable: ``_known``, the newest lists with their names, by the identity of the list that is kept beside them.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[Instance], Names]] = {}

    def __call__(self, candidates: Sequence[Instance]) -> Names:
        known = self._known.get(id(candidates))
        if known is not None:
            return known[1]
        if len(self._known) >= MOST_LISTS:
            self._known.clear()
        found = names(candidates)
        self._known[id(candidates)] = (candidates, found)
        return found
