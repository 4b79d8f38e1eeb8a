"""The past of a real etcd and a real journal, compared with what a follower saw live."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from pdcore.clock import SystemClock
from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.follower import Follower
from pdcore.registry.history import EMPTY, History, Told
from pdcore.registry.journal.reader import NotKept
from pdcore.registry.journal.running import journals, writing_journal
from pdcore.registry.journal.writer import JournalWriter
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Delete, Put, Store, Write
from pdcore.topology.codec import encode
from pdcore.topology.events import Event
from pdcore.topology.keys import Keyspace, router
from pdcore.topology.records import RouterRecord
from pdcore.topology.topology import Topology
from tests.registry.store_contract import compact_etcd
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.fleet import complete, instance_record
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@dataclass
class Live:
    """What a follower saw: the view at each revision, and every event."""

    views: dict[int, Topology] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __call__(self, events: tuple[Event, ...], topology: Topology) -> None:
        self.views[topology.revision] = topology
        self.events += events


@dataclass
class Scene:
    """An etcd, a journal of it, a follower that saw everything since ``began``."""

    store: Store
    keyspace: Keyspace
    live: Live
    history: History
    journaled: History
    writer: JournalWriter
    began: int

    async def write(self, *writes: Write) -> int:
        """One transaction; return once follower and journal have it."""
        revision = (await self.store.commit((), writes)).revision
        await eventually(lambda: revision in self.live.views, WITHIN_S, "followed")
        await eventually(lambda: self.writer.statistics().revision >= revision, WITHIN_S, "journaled")
        return revision

    async def live_a_little(self) -> list[int]:
        """A few changes of all kinds."""
        choose, view = random.Random(3), self.keyspace.view
        revisions = []
        for number in range(12):
            name = router(choose.choice("abc"))
            record = encode(RouterRecord(url="http://h:1", admin_url="http://h:1", version=str(number)))
            writes: list[Write] = [Put(view + name, record if number % 5 else b"\xff")]
            if number == 4:
                held = complete("p0", instance_record(tp_size=2))
                writes += [Put(view + key, encode(one)) for key, one in held.items()]
            if number == 8:
                writes.append(Delete(view + "instances/p0"))
            revisions.append(await self.write(*writes))
        return revisions


@asynccontextmanager
async def scene(etcd: EtcdServer, redis: RedisServer, cluster: str) -> AsyncIterator[Scene]:
    keyspace, access = Keyspace(cluster=cluster), StoreAccess(url=redis.url, timeout_s=5)
    async with (
        open_store(StoreAccess(url=etcd.url, timeout_s=5)) as store,
        Follower(store, keyspace) as follower,
        journals(access, cluster) as streams,
        writing_journal(access, store, keyspace, SystemClock()) as writer,
    ):
        live = Live()
        began = (await follower.wait_until(lambda _: True, WITHIN_S)).revision
        follower.subscribe(live)
        assert writer is not None
        await eventually(lambda: writer.statistics().error is None, WITHIN_S, "writing")
        yield Scene(
            store=store,
            keyspace=keyspace,
            live=live,
            history=History(store, keyspace),
            journaled=History(store, keyspace, streams),
            writer=writer,
            began=began,
        )


async def told_since(history: History, revision: int | None) -> list[Told]:
    return [told async for told in history.since(revision)]


def happened(told: list[Told]) -> list[Event]:
    return [event for one in told for event in one.events]


async def test_etcd_and_the_journal_tell_what_a_follower_saw_live(
    own_etcd: EtcdServer, redis: RedisServer
) -> None:
    async with scene(own_etcd, redis, "both") as at:
        revisions = await at.live_a_little()
        for revision in revisions:
            assert await at.history.at(revision) == at.live.views[revision]
        for since in (at.began, revisions[3], revisions[-1]):
            expected = [event for event in at.live.events if event.revision > since]
            from_etcd = await told_since(at.history, since)
            from_journal = await told_since(at.journaled, since)
            assert happened(from_etcd) == happened(from_journal) == expected
            assert {one.time_ms for one in from_etcd} <= {None}
            assert None not in {one.time_ms for one in from_journal}
            assert all(one.topology == at.live.views[one.revision] for one in from_journal)
        assert happened(await told_since(at.journaled, None))[-len(at.live.events) :] == at.live.events
        for history in (at.history, at.journaled):
            everything = happened(await told_since(history, 0))
            assert everything == happened(await told_since(history, EMPTY))
            assert everything[-len(at.live.events) :] == at.live.events

        running = asyncio.all_tasks()
        async with aclosing(at.history.since(EMPTY)) as kept:
            await anext(kept)
        await eventually(
            lambda: asyncio.all_tasks() <= running, WITHIN_S, "nothing left of who stopped reading"
        )

        compact_etcd(own_etcd.endpoint, revisions[-2])
        with pytest.raises(NotKept, match=f"the oldest that works is {revisions[-2]}$"):
            await at.history.at(revisions[3])
        with pytest.raises(NotKept, match=f"the oldest that works is {revisions[-2]}$"):
            await told_since(at.history, revisions[3])
        assert await at.history.at(revisions[-2]) == at.live.views[revisions[-2]]
        for revision in revisions:
            assert await at.journaled.at(revision) == at.live.views[revision]
        assert happened(await told_since(at.journaled, revisions[3])) == [
            event for event in at.live.events if event.revision > revisions[3]
        ]
        with pytest.raises(NotKept, match="has not happened yet; the store is at "):
            await at.journaled.at(revisions[-1] + 1000)


async def test_a_journal_that_lags_is_completed_by_the_store(
    own_etcd: EtcdServer, redis: RedisServer
) -> None:
    async with scene(own_etcd, redis, "lagging") as at:
        began = await at.write(Put(at.keyspace.view + router("a"), b"x"))
        redis.pause()
        try:
            late = [
                (await at.store.commit((), (Put(at.keyspace.view + router("b"), value),))).revision
                for value in (b"1", b"2")
            ]
        finally:
            redis.resume()
        told = await told_since(at.journaled, began)
        assert [one.revision for one in told] == late
        assert all(one.lost is None for one in told)


async def test_a_stretch_that_nobody_kept_is_told_and_coalesced(
    own_etcd: EtcdServer, redis: RedisServer
) -> None:
    async with scene(own_etcd, redis, "lost") as at:
        first = await at.write(Put(at.keyspace.view + router("a"), b"x"))
        with redis.control() as control:
            key = f"pdcore:{{lost}}:journal:{(await at.history.now()).store_id}"
            old = control.dump(key)
            for name in "bcd":
                last = await at.write(Put(at.keyspace.view + router(name), b"x"))
            compact_etcd(own_etcd.endpoint, last)
            control.restore(key, 0, old, replace=True)  # type: ignore[arg-type]
        await at.store.commit((), (Put(at.keyspace.view + router("e"), b"x"),))

        (unwritten,) = [one for one in await told_since(at.journaled, first) if one.lost is not None][:1]
        assert unwritten.lost is not None

        async def told_by_the_journal() -> list[Told]:
            told = await told_since(at.journaled, first)
            return told if "compacted away" in str(told[0].lost) else []

        told = await eventually(told_by_the_journal, WITHIN_S, "a gap in the journal")
        assert all(event.coalesced for event in told[0].events)
        assert told[-1].topology == await at.history.now()


async def test_a_store_without_a_memory_and_without_a_journal_says_so() -> None:
    store, keyspace = MemoryStore(), Keyspace(cluster="c")
    await store.commit((), (Put(keyspace.view + router("a"), b"x"),))
    history = History(store, keyspace)
    assert (await history.at(2)).revision == 2
    with pytest.raises(NotKept, match="knows only the present, which is revision 2"):
        await history.at(1)
    with pytest.raises(NotKept, match="keeps no history"):
        await told_since(history, None)
    with pytest.raises(NotKept, match="there is no journal"):
        await history.at_time(1)
