"""The store contract on one Redis (7 or newer).

Every change is one script, so it is atomic and one revision; revisions are dense as long as the server runs. Leases
end by the server's clock: whoever has the store open looks for ended ones, so that no one process is needed for it.

What it cannot promise: a Redis that fails over to a replica, or restarts from an older file, loses its newest
transactions, also ones that were acknowledged. Every watch notices and its follower lists again, but a claim that
was taken may be free again.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from pdcore.beside import running_beside
from pdcore.config import StoreAccess
from pdcore.errors import Compacted, LeaseGone, StoreError, StoreUnavailable
from pdcore.registry.redis.connection import closing, open_redis, parse_redis_url, redis_call, send
from pdcore.registry.redis.entries import stored
from pdcore.registry.redis.listing import PAGE_KEYS, list_prefix
from pdcore.registry.redis.scripts import COMMIT, DELETE, ENTRIES, GRANT, KEEP_ALIVE, REAP, REVOKE, Script
from pdcore.registry.redis.transaction import committed, transaction_arguments
from pdcore.registry.redis.watch import Patience, watch_prefix
from pdcore.registry.store import (
    Committed,
    Condition,
    LeaseId,
    Put,
    Snapshot,
    Stored,
    WatchMessage,
    Write,
    check_transaction,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

LIST_TRIES: Final = 3
REAP_S: Final = 1.0
REAP_SPREAD_S: Final = 0.1
REAP_LEASES: Final = 16
STOPPED_MS: Final = 5_000
"""When nobody has looked for ended leases for so long, the server was away, and no holder could renew."""


class RedisStore:
    """The keyspace in the Redis at ``access.url``. A call ends within ``access.timeout_s`` (a list, each of its
    pages) and is made once: it is the caller who knows what may happen twice."""

    def __init__(
        self, access: StoreAccess, *, patience: Patience | None = None, page_keys: int = PAGE_KEYS
    ) -> None:
        self._access = access
        self._address = parse_redis_url(access.url, "store").address
        self._redis: Redis = open_redis(access, "store")
        self._patience = patience or Patience()
        self._page_keys = page_keys
        self._open = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<RedisStore {self._address}>"

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(closing(self._redis))
        await self._open.enter_async_context(running_beside(self._reap_for_ever()))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._open.aclose()

    async def list(self, prefix: str) -> Snapshot:
        """See :class:`~pdcore.registry.store.Store`. Started over when its history is dropped midway."""
        for _ in range(LIST_TRIES):
            with suppress(Compacted):
                return await list_prefix(
                    self._redis, self._address, self._access.timeout_s, prefix, self._page_keys
                )
        raise StoreUnavailable(f"the listing of {prefix} was overtaken by trimming {LIST_TRIES} times")

    async def get(self, key: str) -> Stored | None:
        """See :class:`~pdcore.registry.store.Store`."""
        async with redis_call(self._address, self._access.timeout_s):
            entry = await send(self._redis, "HGET", ENTRIES, key.encode())
        return None if entry is None else stored(entry)

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        """See :class:`~pdcore.registry.store.Store`."""
        check_transaction(conditions, writes)
        script = COMMIT if any(isinstance(write, Put) for write in writes) else DELETE
        return committed(await self._run(script, _fresh(), *transaction_arguments(conditions, writes)))

    async def grant(self, ttl_s: int) -> LeaseId:
        """See :class:`~pdcore.registry.store.Store`. Its id is random: a store that was wiped grants no old one again."""
        lease = secrets.randbits(62) + 1
        if not await self._run(GRANT, lease, ttl_s):
            raise StoreUnavailable(f"redis at {self._address}: lease {lease} was granted before")
        return LeaseId(lease)

    async def keep_alive(self, lease: LeaseId) -> float:
        """See :class:`~pdcore.registry.store.Store`. A lease past its end is gone, also when nobody has ended it yet."""
        ttl_s = await self._run(KEEP_ALIVE, _fresh(), lease)
        if not ttl_s:
            raise LeaseGone(f"lease {lease} does not exist")
        return float(ttl_s)

    async def revoke(self, lease: LeaseId) -> None:
        """See :class:`~pdcore.registry.store.Store`."""
        await self._run(REVOKE, _fresh(), lease)

    def watch(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """See :class:`~pdcore.registry.store.Store`."""
        return watch_prefix(self._access, prefix, after_revision, self._patience)

    async def reap(self) -> float | None:
        """End a few of the leases whose time is over, one revision each; the seconds until the next one is."""
        left_ms = await self._run(REAP, _fresh(), REAP_LEASES, STOPPED_MS)
        return None if left_ms < 0 else float(left_ms) / 1000

    async def _reap_for_ever(self) -> None:
        """Look for ended leases. That the store is away is told by the calls of those who need it."""
        await asyncio.sleep(random.uniform(0, REAP_S))
        while True:
            left_s: float | None = None
            with suppress(StoreError):
                left_s = await self.reap()
            pause_s = REAP_S if left_s is None else min(left_s, REAP_S)
            # Many processes do this: they spread, and mostly one of them finds something.
            await asyncio.sleep(pause_s + random.uniform(0, REAP_SPREAD_S))

    async def _run(self, script: Script, *arguments: bytes | str | int) -> Any:
        async with redis_call(self._address, self._access.timeout_s):
            return await script.run(self._redis, *arguments)


def _fresh() -> str:
    """The name of a timeline, should one begin with this call."""
    return secrets.token_hex(8)
