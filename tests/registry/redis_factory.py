"""Keyspaces in a Redis, for the contract suites."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis

from pdcore.config import StoreAccess
from pdcore.registry.redis.driver import RedisStore
from pdcore.registry.redis.watch import Patience
from pdcore.registry.store import Store
from tests.registry.store_contract import ALIVE_S, WITHIN_S
from tests.support.network import Relay
from tests.support.redis_server import RedisServer

STREAMS = ("{pdcore}:view", "{pdcore}:side")


class RedisFactory:
    """A prefix of its own in the Redis at ``endpoint`` (``host:port``), wherever that runs."""

    def __init__(self, endpoint: str) -> None:
        self.prefix = f"/contract/{uuid.uuid4().hex}/"
        self._url = f"redis://{endpoint}"

    def open(self) -> AbstractAsyncContextManager[Store]:
        patience = Patience(ping_s=ALIVE_S, answer_s=WITHIN_S)
        access = StoreAccess(url=self._url, timeout_s=WITHIN_S)
        return RedisStore(access, patience=patience, page_keys=100)

    async def pass_time(self, seconds: int) -> None:
        return None

    async def compact(self, revision: int) -> None:
        async with Redis.from_url(self._url) as redis:
            for stream in STREAMS:
                await redis.xtrim(stream, minid=f"{revision + 1}-0", approximate=False)


class OwnRedisFactory(RedisFactory):
    """All of ``server``, which only this test uses, reached through ``relay``."""

    def __init__(self, server: RedisServer, relay: Relay) -> None:
        super().__init__(relay.endpoint)
        self._server = server
        self._relay = relay

    async def cut(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self._relay.cut()

    async def wipe(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.start)
