"""What happens to rooms when stores, leases, claims and writers do not last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pdcore.clock import SystemClock
from pdcore.config import StoreAccess
from pdcore.errors import StoreRefused, StoreUnavailable
from pdcore.registry.connect import open_store
from pdcore.registry.desired import Fence
from pdcore.registry.memory import MemoryStore
from pdcore.registry.rooms import names
from pdcore.registry.rooms.awaited import Awaited
from pdcore.registry.rooms.names import RoomName
from pdcore.registry.rooms.opening import open_reader, open_writer
from pdcore.registry.rooms.redis_rooms import EXPIRY_S
from pdcore.registry.rooms.store_reader import StoreReader
from pdcore.registry.rooms.store_writing import StoreWriting
from pdcore.registry.rooms.table import RoomTable
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.registry.store import Delete, LeaseId, Put, Store
from pdcore.topology.keys import Keyspace
from tests.registry.faulty_store import FaultyStore, HurriedClock
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.integration

KEYSPACE = Keyspace(cluster="rooms-faults")
FENCE = Fence(keyspace=KEYSPACE, instance_id="p0", incarnation="inc")
WITHIN_S = 15.0


async def claim(store: Store, incarnation: str = "inc") -> None:
    await store.commit((), (Put(FENCE.claim_key, incarnation.encode()),))


@asynccontextmanager
async def writing(store: Store, *, ttl_s: int = 30, speed: float = 50) -> AsyncIterator[RoomWriter]:
    clock = HurriedClock(speed)
    writing = StoreWriting(FENCE, store, clock, ttl_s=ttl_s)
    async with RoomWriter(writing, RoomTable(), clock=clock) as writer:
        yield writer


async def standing(store: Store) -> set[str]:
    return {key.rpartition("/")[2] for key in (await store.list(names.prefix(KEYSPACE))).entries}


async def lease_of(store: Store, room: int) -> LeaseId:
    stored = await store.get(names.key(KEYSPACE, RoomName("p0", room)))
    assert stored is not None
    assert stored.lease is not None
    return stored.lease


async def test_rooms_put_while_the_store_is_away_stand_once_it_is_back() -> None:
    store = FaultyStore(MemoryStore())
    await claim(store)
    async with writing(store) as writer:
        store.down = True
        writer.put({7: 1, 8: 2})
        writer.release([8])
        with pytest.raises(StoreUnavailable):
            await writer.wait_written([7], 0.1)
        assert writer.statistics().store_error is not None
        store.down = False
        await writer.wait_written([7], WITHIN_S)
        assert await standing(store) == {"7"}
        assert writer.statistics().store_error is None


async def test_rooms_come_back_when_their_lease_is_lost() -> None:
    store = MemoryStore()
    await claim(store)
    async with writing(store) as writer:
        writer.put({7: 1, 8: 2})
        await writer.wait_written([7, 8], WITHIN_S)
        writer.release([8])
        await store.revoke(await lease_of(store, 7))
        await eventually(lambda: _stands(store, {"7"}), WITHIN_S, "7 is back, 8 is not")


async def test_a_put_on_a_lost_lease_takes_another_one() -> None:
    store = MemoryStore()
    await claim(store)
    async with writing(store, speed=1) as writer:
        writer.put({7: 1})
        await writer.wait_written([7], WITHIN_S)
        await store.revoke(await lease_of(store, 7))
        writer.put({9: 1})
        await writer.wait_written([9], WITHIN_S)
        await eventually(lambda: _stands(store, {"7", "9"}), WITHIN_S, "both stand")


async def test_who_does_not_hold_the_claim_writes_nothing() -> None:
    store = MemoryStore()
    await claim(store, "another")
    async with writing(store) as writer:
        writer.put({7: 1})
        with pytest.raises(StoreUnavailable, match="claims/p0 is not inc"):
            await writer.wait_written([7], 0.2)
        assert await standing(store) == set()
        await claim(store)
        await writer.wait_written([7], WITHIN_S)


async def test_rooms_of_a_crashed_writer_go_by_themselves(shared_etcd: EtcdServer) -> None:
    async with open_store(StoreAccess(url=shared_etcd.url, timeout_s=3.0)) as etcd:
        store = FaultyStore(etcd)
        await claim(store)
        async with writing(store, ttl_s=1, speed=1) as writer:
            writer.put({7: 1})
            await writer.wait_written([7], WITHIN_S)
            store.down = True  # it cannot say that it leaves
        store.down = False
        await eventually(lambda: _stands(store, set()), WITHIN_S, "gone with the lease")
        await etcd.commit((), (Delete(FENCE.claim_key),))


async def test_a_lease_is_kept_alive_for_a_long_request() -> None:
    clock = HurriedClock(50)
    store = MemoryStore(clock=clock)
    await claim(store)
    async with writing(store, ttl_s=6) as writer:
        writer.put({7: 1})
        await writer.wait_written([7], WITHIN_S)
        lease, later = await lease_of(store, 7), clock.now() + 20
        await eventually(lambda: clock.now() > later, WITHIN_S, "the TTL has passed three times")
        assert (await lease_of(store, 7), writer.statistics().leases) == (lease, 1)


async def _stands(store: Store, rooms: set[str]) -> bool:
    return await standing(store) == rooms


async def put(store: Store, room: int, dp_rank: int) -> None:
    key = names.key(KEYSPACE, RoomName("p0", room))
    await store.commit((), (Put(key, names.encode_rank(dp_rank)),))


async def test_a_reader_knows_so_many_rooms_and_asks_for_those_it_forgot() -> None:
    store = MemoryStore(alive_s=0.1)
    async with StoreReader(KEYSPACE, store, SystemClock(), most_known=3) as reader:
        for room in range(1, 7):
            await put(store, room, room)
        assert await reader.resolve("p0", [6], WITHIN_S) == {6: 6}
        assert (reader.statistics().known, reader.statistics().evicted_total) == (3, 3)
        assert await reader.resolve("p0", range(1, 7), WITHIN_S) == {room: room for room in range(1, 7)}
        assert reader.statistics().known == 3


async def test_a_reader_reads_nothing_before_it_is_asked() -> None:
    store = FaultyStore(MemoryStore(alive_s=0.1))
    async with StoreReader(KEYSPACE, store, SystemClock()) as reader:
        await put(store, 7, 1)
        assert (store.lists_total, reader.statistics().known) == (0, 0)
        assert await reader.resolve("p0", [7], WITHIN_S) == {7: 1}
        assert await reader.resolve("p0", [7], WITHIN_S) == {7: 1}
        assert store.lists_total == 1


async def test_a_reader_lists_again_after_a_break_and_a_wiped_store() -> None:
    memory = MemoryStore(alive_s=0.05)
    store = FaultyStore(memory)
    async with StoreReader(KEYSPACE, store, SystemClock()) as reader:
        await put(store, 7, 1)
        assert await reader.resolve("p0", [7], WITHIN_S) == {7: 1}
        store.down = True
        await eventually(lambda: reader.statistics().store_error is not None, WITHIN_S, "broken")
        assert await reader.resolve("p0", [7, 8], 0.05) == {7: 1}
        memory.wipe()
        await put(memory, 8, 2)
        store.down = False
        assert await reader.resolve("p0", [8], WITHIN_S) == {8: 2}
        assert await reader.resolve("p0", [7], 0.05) == {}


async def test_a_value_that_is_no_rank_counts_as_none() -> None:
    store = MemoryStore(alive_s=0.1)
    for room, value in enumerate((b"", b"-1", b"1.0", b"99999", b"true", b"\xff" * 100), start=1):
        await store.commit((), (Put(names.key(KEYSPACE, RoomName("p0", room)), value),))
    for foreign in ("p0/not-a-room", f"p0/{1 << 63}", "p0/07", "p0", "p0/7/8"):
        await store.commit((), (Put(names.prefix(KEYSPACE) + foreign, b"1"),))
    await put(store, 99, 1)
    async with StoreReader(KEYSPACE, store, SystemClock()) as reader:
        assert await reader.resolve("p0", [*range(1, 8), 99], 0.3) == {99: 1}
        assert reader.statistics().known == 1


async def test_waiting_is_bounded() -> None:
    awaited: Awaited[int, int] = Awaited(2)
    with pytest.raises(StoreRefused, match="more than 2"):
        await awaited.wait([1, 2, 3], WITHIN_S)
    assert len(awaited) == 0


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    awaited: Awaited[int, int] = Awaited(2)
    waiting = asyncio.ensure_future(awaited.wait([1, 2], WITHIN_S))
    await eventually(lambda: len(awaited) == 2, WITHIN_S)
    awaited.arrived(1, 5)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(awaited) == 0


async def test_entries_in_redis_expire_unless_they_are_refreshed_and_survive_its_pause() -> None:
    with redis_server() as server:
        access = StoreAccess(url=server.url, timeout_s=0.5)
        async with (
            open_writer(FENCE, MemoryStore(), access, clock=HurriedClock(100)) as writer,
            open_reader(KEYSPACE, MemoryStore(), access) as reader,
        ):
            writer.put({7: 1})
            await writer.wait_written([7], WITHIN_S)
            key = names.key(KEYSPACE, RoomName("p0", 7))
            with server.control() as control:
                assert 0 < control.ttl(key) <= EXPIRY_S
                control.expire(key, 30)
                await eventually(lambda: control.ttl(key) > 40, WITHIN_S, "refreshed")
                server.pause()
                writer.put({8: 2})
                assert await reader.resolve("p0", [8], 0.8) == {}
                await eventually(lambda: reader.statistics().store_error is not None, WITHIN_S, "noticed")
                server.resume()
                assert await reader.resolve("p0", [7, 8], WITHIN_S) == {7: 1, 8: 2}


async def test_a_redis_is_asked_at_most_fifty_times_a_second_whoever_waits() -> None:
    with redis_server() as server:
        access = StoreAccess(url=server.url, timeout_s=3)
        async with open_reader(KEYSPACE, MemoryStore(), access) as reader:
            with server.control() as control:
                control.config_resetstat()
                for room in range(1, 11):
                    await asyncio.gather(*(reader.resolve(f"p{i}", [room], 0.1) for i in range(10)))
                calls = control.info("commandstats")["cmdstat_mget"]["calls"]
        assert 10 <= calls <= 55
