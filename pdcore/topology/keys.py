"""Names in the keyspace: what an operator reads with ``etcdctl get --prefix /pdcore/{cluster}/``.

``view/`` is followed by everybody in one watch; ``side/`` never is. Names below the view are given relative to it
(``instances/p0``), because that is what a topology is made of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

STORE_ID: Final = "store_id"
Family = Literal[
    "store_id", "instances", "ranks", "departures", "routers", "orders", "spec", "generations", "desired"
]
_FAMILIES: Final[dict[str, Family]] = {name: name for name in get_args(Family)}
_SEGMENT: Final = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._:-]{1,128}"
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,8})"
_NAMED: Final = re.compile(rf"(instances|departures|routers|orders)/({_SEGMENT})")
_RANK: Final = re.compile(rf"ranks/({_SEGMENT})/({_NUMBER})\.({_NUMBER})\.({_NUMBER})")
_GROUP: Final = re.compile(rf"groups/({_SEGMENT})/(?:(spec|desired)|generations/({_NUMBER}))")


class RankPosition(NamedTuple):
    """Where a rank stands in its instance's layout."""

    dp: int
    cp: int
    tp: int

    def __str__(self) -> str:
        return f"{self.dp}.{self.cp}.{self.tp}"


class RankId(NamedTuple):
    """A rank of the whole cluster."""

    instance_id: str
    position: RankPosition

    def __str__(self) -> str:
        return f"{self.instance_id}/{self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """The absolute prefixes of one cluster."""

    cluster: str

    @property
    def root(self) -> str:
        return f"/pdcore/{self.cluster}/"

    @property
    def view(self) -> str:
        return f"{self.root}view/"

    @property
    def side(self) -> str:
        return f"{self.root}side/"

    def claim(self, instance_id: str) -> str:
        """The fencing token of an instance id; compared by every transaction on that instance's keys."""
        return f"{self.side}claims/{instance_id}"

    def leader(self, instance_id: str) -> str:
        """Where an instance's other machines find its leader."""
        return f"{self.side}leaders/{instance_id}"

    def members(self, group: str) -> str:
        """Where the supervisors of a group's members say that they hold them."""
        return f"{self.side}members/{group}/"

    def seats(self, group: str, role: str) -> str:
        """Where the instances of one role hold their seats, by number; those without a group share ``-``."""
        return f"{self.side}seats/{group or '-'}/{role}/"

    @property
    def memfabric_store(self) -> str:
        """Where the store is that memfabric before 1.2 needs, as a URL."""
        return f"{self.side}memfabric_store"


def instance(instance_id: str) -> str:
    return f"instances/{instance_id}"


def rank(rank_id: RankId) -> str:
    return f"ranks/{rank_id.instance_id}/{rank_id.position}"


def departure(instance_id: str) -> str:
    return f"departures/{instance_id}"


def router(router_id: str) -> str:
    return f"routers/{router_id}"


def order(instance_id: str) -> str:
    return f"orders/{instance_id}"


def desired(group: str) -> str:
    return f"groups/{group}/desired"


def spec(group: str) -> str:
    return f"groups/{group}/spec"


def generation(group: str, number: int) -> str:
    return f"groups/{group}/generations/{number}"


class Name(NamedTuple):
    """A key of the view, taken apart. ``owner`` is the id of the instance, router or group it is about."""

    family: Family
    owner: str
    position: RankPosition | None = None
    generation: int | None = None


def parse(key: str) -> Name | None:
    """What the view's ``key`` names, or None for a foreign one. Every name has exactly one spelling."""
    if found := _RANK.fullmatch(key):
        owner, dp, cp, tp = found.groups()
        return Name("ranks", owner, position=RankPosition(int(dp), int(cp), int(tp)))
    if found := _NAMED.fullmatch(key):
        return Name(_FAMILIES[found.group(1)], found.group(2))
    if found := _GROUP.fullmatch(key):
        owner, family, number = found.groups()
        if number is not None:
            return Name("generations", owner, generation=int(number))
        return Name(_FAMILIES[family], owner)
    return Name("store_id", "") if key == STORE_ID else None
