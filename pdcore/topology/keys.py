"""Names in the keyspace: what an operator reads with ``etcdctl get --prefix /pdcore/{cluster}/``.

``view/`` is followed by everybody in one watch; ``side/`` never is. Names below the view are given relative to it
(``instances/p0``), because that is what a topology is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

STORE_ID: Final = "store_id"


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
