"""One instance behind the bootstrap protocol: its route as the keyspace shows it, its ranks, its rooms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pdcore.errors import PdcoreError
from pdcore.registry.facade.bodies import RankRegistration
from pdcore.registry.facade.documents import has_route, route
from pdcore.registry.rooms.readers import RoomReader
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology

ROOM_LIFE_S: Final = 60.0
"""Nobody says when a caller's request is over; its room is looked up soon after it was put, or never."""
LOOK_S: Final = 0.05
"""How long a query waits for rooms that this process does not know of; who is told -1 asks again."""


class Differs(PdcoreError):
    """The call contradicts what stands (409)."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(f"{field}: {sentence}")
        self.field = field


class NotYet(PdcoreError):
    """The call is right and too early (503)."""


class Ranks(Protocol):
    """Whose ranks they are: this process's own or foreign."""

    @property
    def dp_size(self) -> int | None:
        """How many DP ranks the instance has; None before anybody knows."""
        ...

    def confirm(self, shown: Instance) -> bool:
        """Whether every rank is alive, as far as this process can tell by itself, and where ``shown`` says."""
        ...

    async def register(self, rank: RankRegistration) -> None:
        """Take ``rank`` in. Raises Differs, NotYet."""
        ...


class Bootstrap:
    """What the protocol asks and says. Mutable: ``_shown``, the instance as the keyspace last showed it complete.

    It stays while this process knows its ranks alive: keys that vanish with a lease come back in a moment.
    """

    def __init__(
        self,
        instance_id: str,
        incarnation: str,
        ranks: Ranks,
        view: Callable[[], Topology],
        writer: RoomWriter,
        reader: RoomReader,
    ) -> None:
        self._instance_id = instance_id
        self._incarnation = incarnation
        self._ranks = ranks
        self._view = view
        self._writer = writer
        self._reader = reader
        self._shown: Instance | None = None

    @property
    def dp_size(self) -> int | None:
        """See :class:`Ranks`."""
        return self._ranks.dp_size

    def route(self) -> Mapping[str, object] | None:
        """The whole table; None while a rank is missing."""
        instance = self._view().instances.get(self._instance_id)
        if instance is not None and instance.incarnation == self._incarnation and has_route(instance):
            self._shown = instance
        if self._shown is not None and not self._ranks.confirm(self._shown):
            self._shown = None
        return None if self._shown is None else route(self._shown)

    async def register(self, rank: RankRegistration) -> None:
        """A rank says where it is. Raises Differs, NotYet."""
        await self._ranks.register(rank)

    def put_room(self, room: int, dp_rank: int) -> None:
        """This room is that DP rank's. Raises StoreRefused when too many are open."""
        self._writer.put({room: dp_rank})

    async def query(self, rooms: list[int]) -> dict[int, int]:
        """The DP ranks of those rooms that have one."""
        found = {room: dp_rank for room in rooms if (dp_rank := self._writer.get(room)) is not None}
        missing = [room for room in rooms if room not in found]
        if missing:
            found |= await self._reader.resolve(self._instance_id, missing, LOOK_S)
        return found
