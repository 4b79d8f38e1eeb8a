"""One contract for the room directory in memory, in etcd and in Redis."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Protocol

import pytest

from pdcore.clock import Clock, SystemClock
from pdcore.config import StoreAccess
from pdcore.errors import StoreUnavailable
from pdcore.registry.connect import open_store
from pdcore.registry.desired import Fence
from pdcore.registry.memory import MemoryStore
from pdcore.registry.rooms import names
from pdcore.registry.rooms.opening import open_reader, open_writer
from pdcore.registry.rooms.readers import RoomReader
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.registry.store import Put, Store
from pdcore.topology.keys import Keyspace
from tests.registry.faulty_store import HurriedClock
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.contract

WITHIN_S = 15.0
TOP = names.HIGHEST_ROOM


class Place(Protocol):
    """Where the rooms of one test are."""

    keyspace: Keyspace
    store: Store
    redis: StoreAccess | None

    async def rooms(self) -> dict[str, bytes]:
        """What stands: value by ``{instance_id}/{room}``."""
        ...


class StorePlace:
    """In the keyspace's store."""

    def __init__(self, store: Store) -> None:
        self.redis: StoreAccess | None = None
        self.keyspace = Keyspace(cluster=uuid.uuid4().hex)
        self.store = store

    async def rooms(self) -> dict[str, bytes]:
        prefix = names.prefix(self.keyspace)
        entries = (await self.store.list(prefix)).entries
        return {key.removeprefix(prefix): stored.value for key, stored in entries.items()}


class RedisPlace:
    """In a Redis beside a store that knows nothing of rooms."""

    def __init__(self, server: RedisServer) -> None:
        self.keyspace = Keyspace(cluster=uuid.uuid4().hex)
        self.store: Store = MemoryStore()
        self.redis: StoreAccess | None = StoreAccess(url=server.url, timeout_s=3.0)
        self._server = server

    async def rooms(self) -> dict[str, bytes]:
        prefix = names.prefix(self.keyspace)
        with self._server.control() as control:
            found = [key.decode() for key in control.scan_iter(f"{prefix}*", count=10_000)]
            values = control.mget(found) if found else []
        pairs = zip(found, values, strict=True)
        return {key.removeprefix(prefix): value for key, value in pairs if isinstance(value, bytes)}


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "etcd", "redis"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "redis":
        yield RedisPlace(request.getfixturevalue("shared_redis"))
    elif request.param == "memory":
        yield StorePlace(MemoryStore(alive_s=0.2))
    else:
        etcd: EtcdServer = request.getfixturevalue("shared_etcd")
        async with open_store(StoreAccess(url=etcd.url, timeout_s=3.0)) as store:
            yield StorePlace(store)


async def claimed(place: Place, instance_id: str) -> Fence:
    fence = Fence(keyspace=place.keyspace, instance_id=instance_id, incarnation=f"{instance_id}-inc")
    await place.store.commit((), (Put(fence.claim_key, fence.incarnation.encode()),))
    return fence


class Sides:
    """Writers and readers of one place, all closed at the end."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._open = AsyncExitStack()

    async def writer(
        self, instance_id: str = "p0", *, lives_s: float = float("inf"), clock: Clock | None = None
    ) -> RoomWriter:
        fence = await claimed(self.place, instance_id)
        writer = open_writer(fence, self.place.store, self.place.redis, lives_s=lives_s, clock=clock)
        return await self._open.enter_async_context(writer)

    async def reader(self) -> RoomReader:
        reader = open_reader(self.place.keyspace, self.place.store, self.place.redis, clock=SystemClock())
        return await self._open.enter_async_context(reader)

    async def close(self) -> None:
        await self._open.aclose()


@pytest.fixture
async def sides(place: Place) -> AsyncIterator[Sides]:
    some = Sides(place)
    yield some
    await some.close()


async def test_a_room_is_found_with_its_rank(sides: Sides) -> None:
    writer, reader = await sides.writer(), await sides.reader()
    writer.put({7: 3, TOP: 0})
    await writer.wait_written([7, TOP], WITHIN_S)
    assert await reader.resolve("p0", [7, TOP], WITHIN_S) == {7: 3, TOP: 0}
    assert await sides.place.rooms() == {"p0/7": b"3", f"p0/{TOP}": b"0"}
    assert (writer.get(7), writer.get(8)) == (3, None)


async def test_a_room_put_later_ends_the_wait_for_it(sides: Sides) -> None:
    writer, reader = await sides.writer(), await sides.reader()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(reader.resolve("p0", [room, 9], WITHIN_S)) for room in (7, 8)]
        await eventually(lambda: reader.statistics().awaited == 3, WITHIN_S)
        began = time.monotonic()
        writer.put({7: 1, 8: 2, 9: 3})
    assert [task.result() for task in waiting] == [{7: 1, 9: 3}, {8: 2, 9: 3}]
    assert time.monotonic() - began < WITHIN_S / 2
    assert reader.statistics().awaited == 0


async def test_a_room_that_never_comes_ends_with_the_deadline(sides: Sides) -> None:
    writer, reader = await sides.writer(), await sides.reader()
    writer.put({7: 1})
    await writer.wait_written([7], WITHIN_S)
    await reader.resolve("p0", [7], WITHIN_S)
    began = time.monotonic()
    assert await reader.resolve("p0", [7, 8], 0.2) == {7: 1}
    assert 0.15 < time.monotonic() - began < WITHIN_S
    assert reader.statistics().awaited == 0


async def test_the_newest_rank_counts(sides: Sides) -> None:
    writer = await sides.writer()
    for dp_rank in (1, 2, 3):
        writer.put({7: dp_rank})
    await writer.wait_written([7], WITHIN_S)
    writer.put({7: 4})
    await writer.wait_written([7], WITHIN_S)
    assert await sides.place.rooms() == {"p0/7": b"4"}


async def test_instances_have_rooms_of_their_own(sides: Sides) -> None:
    one, two, reader = await sides.writer("p0"), await sides.writer("p1"), await sides.reader()
    one.put({7: 1})
    two.put({7: 2})
    await one.wait_written([7], WITHIN_S)
    await two.wait_written([7], WITHIN_S)
    assert await reader.resolve("p0", [7], WITHIN_S) == {7: 1}
    assert await reader.resolve("p1", [7], WITHIN_S) == {7: 2}


async def test_released_rooms_go_and_a_writer_that_leaves_takes_the_rest(sides: Sides) -> None:
    writer = await sides.writer(clock=HurriedClock(50))
    writer.put({7: 1, 8: 2})
    await writer.wait_written([7, 8], WITHIN_S)
    writer.release([7, 99])
    await eventually(lambda: _stands(sides, {"p0/8": b"2"}), WITHIN_S, "only 8 stands")
    assert (writer.statistics().live, writer.statistics().doomed) == (1, 0)
    await sides.close()
    assert await sides.place.rooms() == {}


async def test_a_room_nobody_releases_ends_with_its_life(sides: Sides) -> None:
    writer = await sides.writer(clock=HurriedClock(50), lives_s=20)
    writer.put({7: 1})
    await writer.wait_written([7], WITHIN_S)
    await eventually(lambda: _stands(sides, {}), WITHIN_S, "7 is gone")
    assert writer.get(7) is None


async def test_thousands_of_rooms_come_and_go(sides: Sides) -> None:
    writer, reader = await sides.writer(clock=HurriedClock(50)), await sides.reader()
    rooms = {room: room % 5 for room in range(1, 3001)}
    writer.put(rooms)
    assert await reader.resolve("p0", rooms, WITHIN_S) == rooms
    assert writer.statistics().leases in ((0,) if sides.place.redis else (3, 4))
    writer.release(rooms)
    await eventually(lambda: _stands(sides, {}), WITHIN_S, "all are gone")
    await eventually(lambda: writer.statistics().leases == 0, WITHIN_S, "and their leases")


async def test_what_cannot_be_a_room_is_refused(sides: Sides) -> None:
    writer = await sides.writer()
    for room, dp_rank in ((0, 0), (TOP + 1, 0), (-1, 0), (7, -1), (7, 1024)):
        with pytest.raises(ValueError, match="is not from"):
            writer.put({8: 0, room: dp_rank})
    assert writer.statistics().live == 0


async def test_waiting_for_the_write_of_a_room_has_a_deadline(sides: Sides) -> None:
    writer = await sides.writer()
    with pytest.raises(StoreUnavailable):
        await writer.wait_written([7], 0.05)


async def _stands(sides: Sides, wanted: dict[str, bytes]) -> bool:
    return await sides.place.rooms() == wanted
