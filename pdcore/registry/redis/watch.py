"""One watch of a prefix on a connection of its own, with proof that the other side lives.

The consumer's pace is the stream's: the server is asked for more only when the consumer wants more, and what is
trimmed meanwhile is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdcore.config import StoreAccess
from pdcore.registry.redis.connection import closing, open_redis, parse_redis_url, redis_call
from pdcore.registry.redis.entries import Sequel, areas_of, under
from pdcore.registry.redis.reading import BATCH, ask_standing, read_after
from pdcore.registry.store import Alive, WatchMessage

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a watch may be silent before it is asked (``ping_s``), and may take to answer (``answer_s``)."""

    ping_s: float = 4.0
    answer_s: float = 3.0


@asynccontextmanager
async def watch_prefix(
    access: StoreAccess, prefix: str, after_revision: int, patience: Patience
) -> AsyncIterator[AsyncIterator[WatchMessage]]:
    """See :meth:`pdcore.registry.store.Store.watch`."""
    address = parse_redis_url(access.url, "store").address
    async with closing(open_redis(access, "store")) as pool:
        async with redis_call(address, access.timeout_s):
            # A client that keeps its connection: one that reconnects by itself would skip the comparison at the start.
            own = await pool.client().initialize()
        async with closing(own) as redis:
            watch = Watch(redis, address, prefix, after_revision, access.timeout_s, patience)
            async with aclosing(watch.messages()) as messages:
                yield messages


class Watch:
    """What is followed, and how far."""

    def __init__(
        self,
        redis: Redis,
        address: str,
        prefix: str,
        after_revision: int,
        timeout_s: float,
        patience: Patience,
    ) -> None:
        self._redis = redis
        self._address = address
        self._prefix = prefix
        self._areas = areas_of(prefix)
        self._after_revision = after_revision
        self._timeout_s = timeout_s
        self._patience = patience

    async def messages(self) -> AsyncGenerator[WatchMessage, None]:
        """Everything after the revision it was given."""
        position = self._after_revision
        async with redis_call(self._address, self._timeout_s):
            standing = await ask_standing(self._redis, position, self._areas)
        yield Alive(standing.revision)
        standing.check_followable(position)
        sequel = Sequel(position, standing.timeline, standing.revision)
        clock = asyncio.get_running_loop().time
        told_at = clock()
        while True:
            silent_s = self._patience.ping_s - (clock() - told_at)
            for message in await self._next(sequel, silent_s):
                yield message
                told_at = clock()

    async def _next(self, sequel: Sequel, silent_s: float) -> list[WatchMessage]:
        """What to tell next, perhaps nothing; waits for it up to ``silent_s``, then proves that the server lives."""
        wait_s = max(silent_s, 0.001)
        async with redis_call(self._address, wait_s + self._patience.answer_s):
            batches = await read_after(self._redis, sequel.position, self._areas, wait_s=wait_s)
        whole = (under(self._prefix, revision) for revision in sequel.add(batches, BATCH))
        told: list[WatchMessage] = [revision for revision in whole if revision is not None]
        if told or (silent_s > 0 and batches):
            return told
        if batches:
            return [Alive(sequel.position)]
        return await self._prove_life(sequel)

    async def _prove_life(self, sequel: Sequel) -> list[WatchMessage]:
        async with redis_call(self._address, self._patience.answer_s):
            standing = await ask_standing(self._redis, sequel.position, self._areas)
        sequel.check_timeline(standing.timeline)
        standing.check_followable(sequel.position)
        # Something arrived since the streams were read: that is read first.
        return [Alive(standing.revision)] if standing.top <= sequel.position else []
