"""Reading the streams: where the store stands, and what happened after a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdcore.errors import Compacted
from pdcore.registry.redis.connection import send
from pdcore.registry.redis.entries import Entry, read_entry
from pdcore.registry.redis.scripts import POSITION, TAG

if TYPE_CHECKING:
    from redis.asyncio import Redis

BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the store stands. ``lost``: the revision that was asked about vanished in a restart. The asked areas
    can be followed from ``floor`` on and were last changed at ``top``."""

    revision: int
    timeline: bytes
    lost: bool
    floor: int
    top: int

    def check_followable(self, position: int) -> None:
        """Raises :class:`Compacted` when nobody can tell what happened after ``position``."""
        if self.lost:
            raise Compacted(self.revision)
        if position < self.floor:
            raise Compacted(self.floor)


async def ask_standing(redis: Redis, position: int, areas: tuple[str, ...]) -> Standing:
    """Where the store stands, for somebody who knows ``areas`` up to ``position``."""
    revision, timeline, lost, floor, top = await POSITION.run(redis, position, *areas)
    return Standing(revision, timeline, bool(lost), floor, top)


async def read_after(
    redis: Redis, position: int, areas: tuple[str, ...], *, wait_s: float | None
) -> list[list[Entry]]:
    """Up to ``BATCH`` entries per area after ``position``; waits for the first one up to ``wait_s``."""
    block = () if wait_s is None else ("BLOCK", max(1, round(wait_s * 1000)))
    names = [TAG + area for area in areas]
    ids = [f"{position}-0"] * len(names)
    answer = await send(redis, "XREAD", "COUNT", BATCH, *block, "STREAMS", *names, *ids)
    return [[read_entry(raw) for raw in batch] for batch in (answer or {}).values()]
