"""A keyspace, a journal and several writers of it, with everything that may go wrong drawn from one seed.

Nothing waits for real time: the store proves its life whenever it has nothing to tell, a pause is a number of turns of
the event loop. Over the model of the journal a run is the same every time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Self, TypeVar

from pdcore.clock import SystemClock
from pdcore.errors import StoreUnavailable
from pdcore.registry.journal.chain import Limits
from pdcore.registry.journal.entries import Entry
from pdcore.registry.journal.stream import Passed, Refused, Stream
from pdcore.registry.journal.writer import JournalWriter
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import (
    Alive,
    Committed,
    Condition,
    Delete,
    LeaseId,
    Put,
    Revision,
    Snapshot,
    Store,
    Stored,
    WatchMessage,
    Write,
)
from pdcore.topology.codec import encode
from pdcore.topology.keys import STORE_ID, Keyspace, router
from pdcore.topology.records import RouterRecord

T = TypeVar("T")
KEYSPACE = Keyspace(cluster="journaled")
VIEW = KEYSPACE.view
LIMITS = Limits(snapshot_every=7, length=40, age_s=1e9)
MOST_TURNS = 200_000


class TurnClock(SystemClock):
    """Sleeping is a number of turns of the event loop; the time it would have taken passes."""

    def __init__(self, random: Random) -> None:
        self.time = 1000.0
        self._random = random

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1.7e9 + self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await turns(self._random.randrange(1, 20))


async def turns(number: int) -> None:
    """Let everybody else go on ``number`` times."""
    for _ in range(number):
        await asyncio.sleep(0)


@dataclass
class Weather:
    """What goes wrong on one writer's way, as long as it is ``bad``. ``drop``: one revision is not handed over."""

    random: Random
    bad: bool = True
    stalled: bool = False
    drop: int | None = None

    async def pass_through(self) -> None:
        """Take some time, and fail now and then."""
        await turns(self.random.choice((0, 0, 1, 2, 5)))
        while self.stalled:
            await turns(1)
        if self.bad and self.random.random() < 0.02:
            raise StoreUnavailable("the weather is bad")


@dataclass
class WeatheredStore:
    """A store seen through bad weather, by way of a member that may lag."""

    store: Store
    weather: Weather

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def list(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self.store.list(prefix))

    async def get(self, key: str) -> Stored | None:
        return await self._call(lambda: self.store.get(key))

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        return await self._call(lambda: self.store.commit(conditions, writes))

    async def grant(self, ttl_s: int) -> LeaseId:
        return await self.store.grant(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self.store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> None:
        await self.store.revoke(lease)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        async with (
            self.store.watch(prefix, after_revision) as messages,
            aclosing(self._messages(messages)) as weathered,
        ):
            yield weathered

    async def _messages(self, messages: AsyncIterator[WatchMessage]) -> AsyncGenerator[WatchMessage, None]:
        async for message in messages:
            await self.weather.pass_through()
            if isinstance(message, Alive) and self.weather.bad and self.weather.random.random() < 0.1:
                yield Alive(max(1, message.revision - self.weather.random.randrange(4)))
            elif not (isinstance(message, Revision) and message.revision == self.weather.drop):
                yield message

    async def _call(self, perform: Callable[[], Awaitable[T]]) -> T:
        await self.weather.pass_through()
        result = await perform()
        await self.weather.pass_through()
        return result


@dataclass
class WeatheredStream:
    """A journal whose requests and answers get lost."""

    stream: Stream
    weather: Weather

    async def append(self, expected: int, entries: Sequence[Entry]) -> Refused | None:
        await self.weather.pass_through()
        refused = await self.stream.append(expected, entries)
        await self.weather.pass_through()
        return refused

    async def newest(self, at_most: int | None = None) -> Entry | None:
        await self.weather.pass_through()
        return await self.stream.newest(at_most)

    async def oldest(self, after: int = 0) -> Entry | None:
        await self.weather.pass_through()
        return await self.stream.oldest(after)

    async def entries(self, first: int, last: int | None = None) -> AsyncIterator[Entry]:
        await self.weather.pass_through()
        async for entry in self.stream.entries(first, last):
            yield entry

    async def passed(self) -> Passed | None:
        await self.weather.pass_through()
        return await self.stream.passed()

    async def note_passed(self, passed: Passed) -> None:
        await self.weather.pass_through()
        await self.stream.note_passed(passed)

    async def trim(self, first: int) -> None:
        await self.weather.pass_through()
        await self.stream.trim(first)


@dataclass
class Truth:
    """What really happened under one store id: the view after every revision, and how far it was compacted."""

    views: dict[int, dict[str, tuple[bytes, int]]] = field(default_factory=dict)
    compacted: int = 0


class World:
    """Mutable state: everything. ``streams`` gives the journal of a store id without weather."""

    def __init__(self, random: Random, streams: Callable[[str], Stream], writers: int = 4) -> None:
        self.random = random
        self.streams = streams
        self.clock = TurnClock(random)
        self.store = MemoryStore(clock=self.clock, alive_s=0.0)
        self.store_id = ""
        self.truths: dict[str, Truth] = {}
        self.weathers = [Weather(Random(random.random())) for _ in range(writers)]
        self.writers: list[JournalWriter] = []
        self._running: list[AsyncExitStack] = []
        self._identities = 0

    @property
    def truth(self) -> Truth:
        return self.truths[self.store_id]

    @property
    def last(self) -> int:
        """The newest revision that changed the view."""
        return max(self.truth.views)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All writers write while the block lasts."""
        await self.identify()
        for place in range(len(self.weathers)):
            self.writers.append(self._writer(place))
            self._running.append(await self._start(place))
        try:
            yield
        finally:
            for running in self._running:
                await running.aclose()

    async def identify(self) -> None:
        """Give the store an id it never had."""
        self._identities += 1
        self.store_id = f"s{self._identities}"
        self.truths[self.store_id] = Truth()
        await self.commit(Put(VIEW + STORE_ID, json.dumps(self.store_id).encode()))

    async def commit(self, *writes: Write) -> None:
        """One transaction, noted in the truth if it changed the view."""
        before = (await self.store.list("")).revision
        revision = (await self.store.commit((), writes)).revision
        if revision > before and any(write.key.startswith(VIEW) for write in writes):
            snapshot = await self.store.list(VIEW)
            self.truth.views[revision] = {
                key.removeprefix(VIEW): (one.value, one.mod_revision) for key, one in snapshot.entries.items()
            }

    async def change_something(self) -> None:
        """A transaction on one to three of a few keys, or on one that nobody follows."""
        if self.random.random() < 0.2:
            return await self.commit(Put(KEYSPACE.side + "rooms/1", b"1"))
        names = self.random.sample("abcdef", self.random.randrange(1, 4))
        await self.commit(*(self._write(name) for name in names))

    def _write(self, name: str) -> Write:
        key = VIEW + router(name)
        if self.random.random() < 0.3:
            return Delete(key)
        url = f"http://127.0.0.1:{self.random.randrange(1, 9)}"
        record = encode(RouterRecord(url=url, admin_url=url, version="1"))
        return Put(key, record if self.random.random() < 0.9 else b"\xff garbage")

    async def restart(self, place: int) -> None:
        """End a writer wherever it is, and start another one."""
        await self._running[place].aclose()
        self.writers[place] = self._writer(place)
        self._running[place] = await self._start(place)

    def compact(self) -> None:
        """Forget the store's history up to a revision of the last few."""
        newest = max(self.truth.views)
        to = max(1, newest - self.random.randrange(8))
        self.store.compact(to)
        self.truth.compacted = max(self.truth.compacted, to)

    async def wipe(self) -> None:
        """The store is another one from now on."""
        self.store.wipe()
        await turns(self.random.randrange(30))
        await self.identify()

    async def settle(self) -> None:
        """Good weather until every writer has everything; AssertionError when that does not come."""
        for weather in self.weathers:
            weather.bad = weather.stalled = False
        await self.commit(Put(VIEW + router("z"), b"last"))
        for _ in range(MOST_TURNS):
            top = await self.streams(self.store_id).newest()
            stands = [writer.statistics() for writer in self.writers]
            if (
                top is not None
                and top.revision >= self.last
                and all(stand.error is None and stand.revision >= self.last for stand in stands)
            ):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"not settled: {stands} {self.last} {top}")

    def _writer(self, place: int) -> JournalWriter:
        weather = self.weathers[place]

        def weathered(store_id: str) -> Stream:
            return WeatheredStream(self.streams(store_id), weather)

        return JournalWriter(
            WeatheredStore(self.store, weather),
            KEYSPACE,
            weathered,
            clock=self.clock,
            limits=LIMITS,
            random=weather.random,
        )

    async def _start(self, place: int) -> AsyncExitStack:
        running = AsyncExitStack()
        writing: AbstractAsyncContextManager[None] = self.writers[place].running()
        await running.enter_async_context(writing)
        return running
