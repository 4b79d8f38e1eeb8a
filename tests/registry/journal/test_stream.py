"""The journal in a real Redis: the model of the other tests is true, and real losses leave no silent hole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from random import Random

import pytest
from redis.asyncio import Redis

from pdcore.clock import SystemClock
from pdcore.config import StoreAccess
from pdcore.errors import StoreRefused, StoreUnavailable
from pdcore.registry.connect import open_store
from pdcore.registry.journal.chain import EMPTY, Limits, gap_entries, next_entries, tail_of
from pdcore.registry.journal.entries import Changes, Entry, Gap
from pdcore.registry.journal.replay import Replayer
from pdcore.registry.journal.running import writing_journal
from pdcore.registry.journal.stream import Passed, RedisStream, Stream
from pdcore.registry.journal.writer import JournalWriter
from pdcore.registry.redis.connection import open_redis
from pdcore.registry.store import Put, Store
from pdcore.topology.keys import STORE_ID, Keyspace, router
from pdcore.topology.topology import KeyChange, Stored, build
from tests.registry.journal.model import ModelStream
from tests.registry.journal.simulation import World
from tests.registry.journal.test_simulation import check, run_badly
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.processes import free_port
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration

LIMITS = Limits(snapshot_every=3)
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def access(redis: RedisServer) -> StoreAccess:
    return StoreAccess(url=redis.url, timeout_s=5)


@pytest.fixture
async def client(access: StoreAccess) -> AsyncIterator[Redis]:
    async with open_redis(access) as client:
        await client.flushall()
        yield client


async def all_entries(stream: Stream) -> list[Entry]:
    return [entry async for entry in stream.entries(0)]


async def test_the_model_answers_as_the_real_one_does(client: Redis, access: StoreAccess) -> None:
    random = Random(5)
    real, model = RedisStream(client, access, "c", "s"), ModelStream()
    for step in range(150):
        tail = tail_of(await model.newest())
        revision = tail.revision + random.randrange(1, 3)
        if tail == EMPTY or random.random() < 0.1:
            entries = gap_entries(tail, revision, "x", step, snapshot={"a": Stored(b"1", 1)}, limits=LIMITS)
        else:
            change = KeyChange(router("a"), random.choice((None, b"1", b"\xff")), revision)
            entries = next_entries(tail, revision, [change], step, limits=LIMITS)
        expected = random.choice((tail.revision, tail.revision, tail.revision - 1, tail.revision + 1, 0))
        assert await real.append(expected, entries) == await model.append(expected, entries)
        at = random.randrange(revision + 2)
        assert await real.newest() == await model.newest()
        assert await real.newest(at) == await model.newest(at)
        assert await real.oldest(at) == await model.oldest(at)
        passed = Passed(random.choice((tail.revision, revision)), revision + 1, step)
        await real.note_passed(passed)
        await model.note_passed(passed)
        assert await real.passed() == await model.passed()
        if random.random() < 0.05:
            first = random.randrange(1, revision + 1)
            await real.trim(first)
            await model.trim(first)
    assert await all_entries(real) == await all_entries(model)
    assert [entry async for entry in real.entries(5, 90)] == [entry async for entry in model.entries(5, 90)]


async def test_a_long_journal_is_read_in_pages_and_whole(client: Redis, access: StoreAccess) -> None:
    stream = RedisStream(client, access, "c", "s")
    entries: list[Entry] = list(gap_entries(EMPTY, 1, "x", 1, snapshot={}, limits=Limits()))
    for revision in range(2, 400):
        entries += next_entries(tail_of(entries[-1]), revision, [], 1, limits=Limits())
    await stream.append(0, entries)
    assert await all_entries(stream) == entries


async def test_every_journal_expires_some_day(client: Redis, access: StoreAccess) -> None:
    stream = RedisStream(client, access, "c", "s")
    await stream.append(0, gap_entries(EMPTY, 1, "x", 1, snapshot={}, limits=LIMITS))
    await stream.note_passed(Passed(1, 2, 3))
    assert await client.ttl(stream.key) > 86400
    assert await client.ttl(f"{stream.key}:passed") > 86400


async def test_foreign_things_in_its_place_are_refused_in_a_sentence(
    client: Redis, access: StoreAccess
) -> None:
    stream = RedisStream(client, access, "c", "s")
    await client.xadd(stream.key, {"entry": "{}"}, id="5-0")
    with pytest.raises(StoreRefused, match="an entry of the journal cannot be read"):
        await stream.newest()
    await client.delete(stream.key)
    await client.xadd(stream.key, {"other": "x"}, id="5-0")
    with pytest.raises(StoreRefused, match="none of its entries"):
        await stream.newest()
    await client.set(stream.key, "x")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await stream.newest()


async def test_a_redis_that_is_away_is_unavailable() -> None:
    access = StoreAccess(url=f"redis://127.0.0.1:{free_port()}", timeout_s=1)
    async with open_redis(access) as client:
        with pytest.raises(StoreUnavailable, match="redis at"):
            await RedisStream(client, access, "c", "s").newest()


class RealJournals:
    """Journals in Redis, and how they lose their newest entries: an earlier state is put back."""

    def __init__(self, client: Redis, access: StoreAccess, cluster: str, random: Random) -> None:
        self._client = client
        self._random = random
        self._dumps: dict[str, bytes] = {}
        self.stream: Callable[[str], RedisStream] = partial(RedisStream, client, access, cluster)

    async def lose_tail(self, store_id: str) -> None:
        key = self.stream(store_id).key
        if key in self._dumps and self._random.random() < 0.6:
            await self._client.restore(key, 0, self._dumps[key], replace=True)
        dump = await self._client.dump(key)
        if dump is not None:
            self._dumps[key] = dump


async def simulate(client: Redis, access: StoreAccess, seed: int) -> None:
    random = Random(seed)
    journals = RealJournals(client, access, f"c{seed}", random)
    world = World(random, journals.stream)
    await run_badly(world, journals.lose_tail if seed % 2 == 0 else None)
    for store_id, truth in world.truths.items():
        await check(journals.stream(store_id), truth, whole=store_id == world.store_id)


async def test_no_hole_and_no_copy_in_a_real_redis(client: Redis, access: StoreAccess) -> None:
    for seed in range(3):
        await simulate(client, access, seed)


@pytest.mark.cluster
@pytest.mark.parametrize("first", range(0, 60, 10))
async def test_no_hole_and_no_copy_in_60_runs(client: Redis, access: StoreAccess, first: int) -> None:
    for seed in range(first, first + 10):
        await simulate(client, access, seed)


async def put(store: Store, keyspace: Keyspace, name: str) -> int:
    return (await store.commit((), (Put(keyspace.view + router(name), b"x"),))).revision


async def caught_up(writer: JournalWriter | None, revision: int) -> None:
    assert writer is not None
    found = writer
    await eventually(lambda: found.statistics().revision >= revision, WITHIN_S, "written")


async def test_a_redis_that_lost_its_last_second_gets_it_again_from_etcd(own_etcd: EtcdServer) -> None:
    """Killed, with the end of its file never written: what AOF ``everysec`` may lose when the machine dies."""
    keyspace, store_access = Keyspace(cluster="c"), StoreAccess(url=own_etcd.url, timeout_s=5)
    with redis_server(extra=("--appendonly", "yes", "--appendfsync", "everysec")) as server:
        access = StoreAccess(url=server.url, timeout_s=5)
        async with open_store(store_access) as store, open_redis(access) as client:
            began = await store.commit((), (Put(keyspace.view + STORE_ID, b'"s"'),))
            async with (
                writing_journal(access, store, keyspace, SystemClock()) as one,
                writing_journal(access, store, keyspace, SystemClock()) as two,
            ):
                await caught_up(one, began.revision)
                kept = [await put(store, keyspace, f"a{number}") for number in range(5)]
                await caught_up(one, kept[-1])
                (log,) = (server.data / "appendonlydir").glob("*.incr.aof")
                length = log.stat().st_size
                lost = [await put(store, keyspace, f"b{number}") for number in range(5)]
                await caught_up(one, lost[-1])
                await caught_up(two, lost[-1])
                server.kill()
                with log.open("r+b") as file:
                    file.truncate(length)
                server.start()
                stream = RedisStream(client, access, "c", "s")
                top = await eventually(stream.newest, WITHIN_S, "back")
                assert top is not None
                assert top.revision < lost[-1], "nothing was lost, so nothing is shown"
                last = await put(store, keyspace, "last")

                async def refilled() -> bool:
                    newest = await stream.newest()
                    return newest is not None and newest.revision >= last

                await eventually(refilled, WITHIN_S, "refilled")
            entries = await all_entries(stream)
            snapshot = await store.list(keyspace.view)
    assert [entry.revision for entry in entries if isinstance(entry, Changes)] == [*kept, *lost, last]
    assert len([entry for entry in entries if isinstance(entry, Gap)]) == 1, "the one it begins with"
    replayer = Replayer()
    for entry in entries:
        step = replayer.take(entry)
        assert step is None or step.lost in (None, entries[0].reason if isinstance(entries[0], Gap) else "")
    listed = {key.removeprefix(keyspace.view): one for key, one in snapshot.entries.items()}
    assert build(replayer.keys, last) == build(listed, last)
