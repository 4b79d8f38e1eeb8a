"""Who of a fleet has nobody to serve with, and why. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple

from pdcore.topology.compat import KindOf, check_pair, kinds
from pdcore.topology.instance import Instance
from pdcore.topology.records import Role
from pdcore.topology.topology import Topology

PARTNERS: Final[Mapping[Role, Role]] = {"prefill": "decode", "decode": "prefill"}


class Alone(NamedTuple):
    """What keeps an instance from ``nearest``, with which the fewest things are in the way; None where nobody is."""

    nearest: str | None
    reasons: tuple[str, ...]

    def sentence(self, name: str, partner: Role) -> str:
        """The same of the instance ``name``, in words."""
        if self.nearest is None:
            return f"{name} has no {partner} to serve with"
        return f"{name} can pair with no {partner}; nearest is {self.nearest}: {'; '.join(self.reasons)}"


def alone(topology: Topology) -> dict[str, Alone]:
    """The ready prefill and decode instances, by id, that can pair with no instance of the other role.

    Those that drain are neither asked nor asked about; whether a partner is ready, or its generation takes traffic, is
    not asked.
    """
    fit = [one for role in PARTNERS for one in topology.by_role(role) if not one.draining]
    kind_of = kinds([one.record for one in fit])
    found: dict[str, Alone] = {}
    for role, partner in PARTNERS.items():
        others = [some[0] for some in alike(fit, partner, kind_of)]
        for some in alike(fit, role, kind_of):
            why = _judged(some[0], others)
            if why is not None:
                found |= {one.instance_id: why for one in some if one.ready}
    return found


def alike(fit: Iterable[Instance], role: Role, kind_of: KindOf) -> list[list[Instance]]:
    """The instances of ``role``, those of a kind together: a fleet has many instances and few kinds of them."""
    of_a_kind: dict[Hashable, list[Instance]] = {}
    for one in fit:
        if one.role == role:
            of_a_kind.setdefault(kind_of(one.record), []).append(one)
    return list(of_a_kind.values())


def _judged(one: Instance, others: Iterable[Instance]) -> Alone | None:
    nearest: Alone | None = None
    for other in others:
        prefill, decode = (one, other) if one.role == "prefill" else (other, one)
        reasons = check_pair(prefill.record, decode.record)
        if not reasons:
            return None
        if nearest is None or len(reasons) < len(nearest.reasons):
            nearest = Alone(other.instance_id, reasons)
    return nearest or Alone(None, ())
