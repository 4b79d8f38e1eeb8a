"""A router's key: put, healed, removed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pdcore.errors import ConfigError
from pdcore.registry.memory import MemoryStore
from pdcore.registry.router_registration import RouterRegistration
from pdcore.registry.store import Delete, Put, Stored
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import RouterRecord
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore
from tests.support.registrations import records

pytestmark = pytest.mark.unit

KEYSPACE = Keyspace(cluster="test")
KEY = "/pdcore/test/view/routers/r0"
RECORD = RouterRecord(url="http://127.0.0.1:8000", admin_url="http://127.0.0.1:8000", version="1")
MOVED = RouterRecord(url="http://127.0.0.1:8001", admin_url="http://127.0.0.1:8001", version="1")


@pytest.fixture
async def memory() -> AsyncIterator[MemoryStore]:
    async with MemoryStore() as store:
        yield store


def registration(store: FaultyStore | MemoryStore, *, ttl_s: int = 1) -> RouterRegistration:
    return RouterRegistration(store, KEYSPACE, "r0", ttl_s=ttl_s)


async def stored(memory: MemoryStore) -> Stored:
    found = await memory.get(KEY)
    assert found is not None
    return found


async def test_a_router_stands_while_its_block_lasts(memory: MemoryStore) -> None:
    async with registration(memory) as router:
        assert not router.is_registered
        router.put(RECORD)
        await router.wait_registered(1)
        assert router.is_registered
        assert (await records(memory))["routers/r0"] == RECORD
        assert (await stored(memory)).lease is not None
        router.put(MOVED)
        await router.wait_registered(1)
        assert (await records(memory))["routers/r0"] == MOVED
    assert await memory.get(KEY) is None


async def test_an_error_of_the_block_leaves_as_it_is_and_removes_the_router(memory: MemoryStore) -> None:
    async def fail_while_registered() -> None:
        async with registration(memory) as router:
            router.put(RECORD)
            await router.wait_registered(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_registered()
    assert await memory.get(KEY) is None


async def test_a_record_readers_would_reject_is_refused(memory: MemoryStore) -> None:
    async with registration(memory) as router:
        with pytest.raises(ConfigError, match="url"):
            router.put(RouterRecord(url="http://0.0.0.0:8000", admin_url="http://a:1", version="1"))


@pytest.mark.slow
async def test_deleted_changed_or_unleased_it_comes_back(memory: MemoryStore) -> None:
    async with registration(memory) as router:
        router.put(RECORD)
        await router.wait_registered(1)
        before = await stored(memory)
        await memory.commit((), (Delete(KEY),))
        await eventually(lambda: memory.get(KEY), 1.0, "back after a delete")
        await memory.commit((), (Put(KEY, b"garbage"),))
        await eventually(lambda: _stands(memory, before), 1.0, "put right")
        await memory.commit((), (Put(KEY, before.value),))
        await eventually(lambda: _stands(memory, before), 1.0, "under the lease again")
        lease = (await stored(memory)).lease
        assert lease == before.lease
        assert lease is not None
        await memory.revoke(lease)
        await eventually(lambda: memory.get(KEY), 1.0, "back after its lease")
        assert (await stored(memory)).lease != lease


async def _stands(memory: MemoryStore, before: Stored) -> bool:
    found = await stored(memory)
    return (found.value, found.lease) == (before.value, before.lease)


async def test_an_idle_router_writes_nothing(memory: MemoryStore) -> None:
    store = FaultyStore(memory)
    async with registration(store) as router:
        router.put(RECORD)
        await router.wait_registered(1)
        revision, calls = (await memory.list("/")).revision, store.calls
        await eventually(lambda: store.calls >= calls + 4, 2.0, "two keepalives")
        assert (await memory.list("/")).revision == revision


@pytest.mark.parametrize("fail_at", range(3))
async def test_a_store_that_fails_anywhere_only_delays(memory: MemoryStore, fail_at: int) -> None:
    async with registration(FaultyStore(memory, fail_at)) as router:
        router.put(RECORD)
        await router.wait_registered(1)
        assert router.store_error is None


async def test_a_store_away_is_said_and_heals(memory: MemoryStore) -> None:
    store = FaultyStore(memory)
    store.down = True
    async with registration(store) as router:
        router.put(RECORD)
        await eventually(lambda: router.store_error, 1.0, "trouble said")
        assert not router.is_registered
        store.down = False
        await router.wait_registered(2)
        assert router.store_error is None
        store.down = True  # so that leaving cannot remove it
    assert await memory.get(KEY) is not None
