"""A native leader's own ranks behind the bootstrap protocol: nobody else can become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdcore.registry.facade.bodies import RankRegistration, difference
from pdcore.registry.facade.bootstrap import Differs, NotYet
from pdcore.registry.facade.documents import shared_of
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRanks:
    """``alive`` says whether the leader has lost none of its ranks."""

    instance_id: str
    incarnation: str
    view: Callable[[], Topology]
    alive: Callable[[], bool]

    @property
    def dp_size(self) -> int | None:
        """See :class:`~pdcore.registry.facade.bootstrap.Ranks`."""
        instance = self._instance()
        return None if instance is None else instance.record.dp_size

    def confirm(self, shown: Instance) -> bool:
        """See :class:`~pdcore.registry.facade.bootstrap.Ranks`."""
        return self.alive()

    async def register(self, rank: RankRegistration) -> None:
        """See :class:`~pdcore.registry.facade.bootstrap.Ranks`. What stands already may be said again."""
        instance = self._instance()
        if instance is None:
            raise NotYet("this instance's own ranks are not registered yet")
        differs = difference(shared_of(instance.record), rank.shared)
        if differs is not None:
            raise Differs(*differs)
        own = instance.ranks.get(rank.position)
        if own is None or (own.rank_ip, own.rank_port) != (rank.address.ip, rank.address.port):
            raise Differs("rank_ip", f"rank {rank.position} is this instance's own")

    def _instance(self) -> Instance | None:
        instance = self.view().instances.get(self.instance_id)
        return instance if instance is not None and instance.incarnation == self.incarnation else None
