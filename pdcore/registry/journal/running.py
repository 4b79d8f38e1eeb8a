"""The journal of a configured Redis: written while a block lasts, or read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from pdcore.clock import Clock
from pdcore.config import StoreAccess
from pdcore.registry.journal.stream import RedisStream, Stream
from pdcore.registry.journal.writer import JournalWriter
from pdcore.registry.redis.connection import open_redis
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace


@asynccontextmanager
async def journals(access: StoreAccess, cluster: str) -> AsyncIterator[Callable[[str], Stream]]:
    """Gives the journal of each store id. Connects when one is used. Raises ConfigError for what cannot work."""
    async with open_redis(access) as redis:
        yield partial(RedisStream, redis, access, cluster)


@asynccontextmanager
async def writing_journal(
    access: StoreAccess | None, store: Store, keyspace: Keyspace, clock: Clock
) -> AsyncIterator[JournalWriter | None]:
    """Write the journal while the block lasts; without a Redis there is none. Redis may come and go."""
    if access is None:
        yield None
        return
    async with journals(access, keyspace.cluster) as streams:
        writer = JournalWriter(store, keyspace, streams, clock=clock)
        async with writer.running():
            yield writer
