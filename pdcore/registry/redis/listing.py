"""A list in pages that is nevertheless of one revision.

One answer with everything would stop the server for everybody else while it is made. So each page is read at a
revision of its own, and what happened between the first and the last is read from the streams and applied to all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdcore.registry.redis.connection import redis_call
from pdcore.registry.redis.entries import Sequel, areas_of, prefix_bounds, stored, under
from pdcore.registry.redis.reading import BATCH, read_after
from pdcore.registry.redis.scripts import PAGE
from pdcore.registry.store import Snapshot, Stored

if TYPE_CHECKING:
    from redis.asyncio import Redis

PAGE_KEYS: Final = 500
PAGE_BYTES: Final = 1 << 20


async def list_prefix(redis: Redis, address: str, timeout_s: float, prefix: str, page_keys: int) -> Snapshot:
    """See :meth:`pdcore.registry.store.Store.list`. Every page ends within ``timeout_s``.

    Raises :class:`~pdcore.errors.Compacted` when what happened meanwhile is no longer kept.
    """
    first, last = prefix_bounds(prefix)
    entries: dict[str, Stored] = {}
    sequel: Sequel | None = None
    more = True
    while more:
        async with redis_call(address, timeout_s):
            revision, timeline, more, found = await PAGE.run(redis, first, last, page_keys, PAGE_BYTES)
        sequel = sequel or Sequel(revision, timeline, revision)
        sequel.check_timeline(timeline)
        keys, values = found[::2], found[1::2]
        entries.update((key.decode(), stored(value)) for key, value in zip(keys, values, strict=True))
        first = b"(" + keys[-1] if more else first
    assert sequel is not None
    if revision > sequel.position:
        await _catch_up(redis, address, timeout_s, prefix, sequel, revision, entries)
    return Snapshot(revision, dict(sorted(entries.items())))


async def _catch_up(
    redis: Redis,
    address: str,
    timeout_s: float,
    prefix: str,
    sequel: Sequel,
    revision: int,
    entries: dict[str, Stored],
) -> None:
    """Apply to ``entries`` what happened after the sequel's position up to ``revision``."""
    areas = areas_of(prefix)
    while True:
        async with redis_call(address, timeout_s):
            batches = await read_after(redis, sequel.position, areas, wait_s=None)
        for passed in sequel.add(batches, BATCH):
            if passed.revision > revision:
                return
            seen = under(prefix, passed)
            for change in () if seen is None else seen.changes:
                if change.stored is None:
                    entries.pop(change.key, None)
                else:
                    entries[change.key] = change.stored
        if not batches or sequel.position >= revision:
            return
