"""Following a keyspace in Redis: the view equals the store, whatever happens to the server."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.follower import Follower
from pdcore.registry.redis.driver import RedisStore
from pdcore.registry.redis.watch import Patience
from pdcore.registry.store import Put, Store
from pdcore.topology.keys import router
from tests.registry.redis_factory import RedisFactory
from tests.registry.test_follower import (
    KEYSPACE,
    VIEW,
    WITHIN_S,
    Heard,
    delete_router,
    following,
    has,
    put_router,
    record,
)
from tests.support.eventually import eventually
from tests.support.network import Relay
from tests.support.redis_server import DURABLE, RedisServer, redis_server

pytestmark = pytest.mark.integration


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A running Redis that keeps what was written."""
    with redis_server(extra=DURABLE) as server:
        yield server


@asynccontextmanager
async def _followed(url: str) -> AsyncIterator[tuple[Store, Follower]]:
    async with (
        open_store(StoreAccess(url=url, timeout_s=1)) as store,
        Follower(store, KEYSPACE) as follower,
    ):
        yield store, follower


async def test_the_store_may_be_the_last_to_start() -> None:
    with redis_server(started=False) as server:
        async with _followed(server.url) as (_, follower):
            await eventually(
                lambda: follower.last_error is not None and server.endpoint in follower.last_error, WITHIN_S
            )
            await asyncio.to_thread(server.start)
            began = time.monotonic()
            await follower.wait_until(lambda topology: topology.store_id is not None, WITHIN_S)
            assert time.monotonic() - began < 5


async def test_a_killed_server_that_comes_back_with_its_data_is_resumed(own_redis: RedisServer) -> None:
    heard = Heard()
    async with _followed(own_redis.url) as (store, follower):
        await put_router(store, "a")
        await following(follower, "a")
        follower.subscribe(heard)
        await asyncio.to_thread(own_redis.kill)
        await asyncio.to_thread(own_redis.start)
        async with open_store(StoreAccess(url=own_redis.url, timeout_s=3)) as fresh:
            revisions = [await put_router(fresh, f"b{n}") for n in range(20)]
        await follower.wait_until(lambda topology: topology.revision == revisions[-1], WITHIN_S)
        assert follower.relists_total == 0
        assert [event.revision for event in heard.events] == revisions


@pytest.mark.cluster
async def test_a_stopped_server_is_noticed_within_eight_seconds(own_redis: RedisServer) -> None:
    async with _followed(own_redis.url) as (store, follower):
        await put_router(store, "a")
        await following(follower, "a")
        own_redis.pause()
        await eventually(lambda: follower.last_error is not None, 8.0, "the silence is noticed")
        assert has("a")(follower.topology)
        own_redis.resume()
        await eventually(lambda: follower.last_error is None, 5.0, "it is followed again")
        await put_router(store, "b")
        await follower.wait_until(has("a", "b"), 5.0)
        assert follower.relists_total == 0


async def test_trimming_while_cut_off_is_told_as_the_difference(own_redis: RedisServer) -> None:
    heard = Heard()
    async with (
        Relay.to(own_redis.endpoint) as relay,
        open_store(StoreAccess(url=own_redis.url, timeout_s=3)) as direct,
        _followed(f"redis://{relay.endpoint}") as (_, follower),
    ):
        await put_router(direct, "a")
        await following(follower, "a")
        follower.subscribe(heard)
        relay.refuse()
        await eventually(lambda: follower.last_error is not None, WITHIN_S)
        await delete_router(direct, "a")
        await RedisFactory(own_redis.endpoint).compact(await put_router(direct, "b"))
        relay.allow()
        await follower.wait_until(has("b"), WITHIN_S)
        assert follower.relists_total == 1
    assert sorted(heard.routers()) == [("RouterJoined", "b", True), ("RouterLost", "a", True)]


async def test_a_flushed_server_is_another_store(own_redis: RedisServer) -> None:
    access = StoreAccess(url=own_redis.url, timeout_s=1)
    patience = Patience(ping_s=0.3, answer_s=3.0)
    async with RedisStore(access, patience=patience) as store, Follower(store, KEYSPACE) as follower:
        await put_router(store, "old")
        before = await following(follower, "old")
        own_redis.flush()
        after = await follower.wait_until(has(), WITHIN_S)
        assert after.store_id not in {None, before.store_id}
        await put_router(store, "new")
        await follower.wait_until(has("new"), WITHIN_S)
        assert follower.repairs_total == 0


async def test_a_server_restored_from_an_older_file_and_overtaken_is_listed_again(
    own_redis: RedisServer,
) -> None:
    async with Relay.to(own_redis.endpoint) as relay, _followed(f"redis://{relay.endpoint}") as (_, follower):
        async with open_store(StoreAccess(url=own_redis.url, timeout_s=3)) as direct:
            await put_router(direct, "kept")
            await following(follower, "kept")
            await asyncio.to_thread(own_redis.stop)
            backup = own_redis.data.with_name("backup")
            shutil.copytree(own_redis.data, backup, ignore=shutil.ignore_patterns("*.sock"))
            await asyncio.to_thread(own_redis.start)
            await put_router(direct, "lost")
            await follower.wait_until(has("kept", "lost"), WITHIN_S)
            relay.refuse()
            await asyncio.to_thread(own_redis.kill)
            own_redis.wipe()
            shutil.copytree(backup, own_redis.data)
            await asyncio.to_thread(own_redis.start)
            for n in range(5):
                newest = await put_router(direct, f"new{n}")
        relay.allow()
        view = await follower.wait_until(has("kept", *(f"new{n}" for n in range(5))), WITHIN_S)
        assert view.revision == newest
        assert (follower.relists_total, follower.repairs_total) == (1, 0)


async def test_keys_of_an_expired_lease_go_together(own_redis: RedisServer) -> None:
    heard = Heard()
    async with _followed(own_redis.url) as (store, follower):
        lease = await store.grant(3)
        names = [f"r{number}" for number in range(50)]
        await store.commit((), tuple(Put(VIEW + router(name), record(), lease) for name in names))
        await follower.wait_until(has(*names), WITHIN_S)
        follower.subscribe(heard)
        await follower.wait_until(has(), WITHIN_S)
    assert heard.calls == 1
    assert len(heard.events) == len(names)
