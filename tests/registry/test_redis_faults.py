"""What the Redis driver promises when its server is stopped, restarted, restored, wiped, trimmed, full or busy."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis import ResponseError

from pdcore.beside import running_beside
from pdcore.config import StoreAccess
from pdcore.errors import Compacted, LeaseGone, StoreRefused, StoreUnavailable
from pdcore.registry.redis.driver import STOPPED_MS, RedisStore
from pdcore.registry.redis.watch import Patience
from pdcore.registry.store import Alive, Change, Delete, LeaseId, Put, Revision, Store, WatchMessage
from tests.registry.redis_factory import STREAMS
from tests.registry.store_contract import WITHIN_S, next_revision, put
from tests.support.eventually import eventually
from tests.support.processes import free_port
from tests.support.redis_server import DURABLE, RedisServer, redis_server

pytestmark = pytest.mark.integration

PREFIX = "/pdcore/c/view/"
KEY = PREFIX + "k"
SIDE = "/pdcore/c/side/k"
SHORT = Patience(ping_s=0.3, answer_s=2.0)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A running Redis that this test may stop, kill, pause and wipe, and that keeps what was written."""
    with redis_server(extra=DURABLE) as server:
        yield server


def _store(server: RedisServer, *, timeout_s: float = 5, patience: Patience = SHORT) -> RedisStore:
    return RedisStore(StoreAccess(url=server.url, timeout_s=timeout_s), patience=patience)


async def test_without_a_server_every_call_says_so_in_time() -> None:
    access = StoreAccess(url=f"redis://127.0.0.1:{free_port()}", timeout_s=1)
    began = time.monotonic()
    async with RedisStore(access) as store:
        with pytest.raises(StoreUnavailable):
            await store.get("k")
        with pytest.raises(StoreUnavailable):
            await store.list("k")
        with pytest.raises(StoreUnavailable):
            await store.commit((), (Put("k", b"v"),))
        with pytest.raises(StoreUnavailable):
            await store.grant(5)
        with pytest.raises(StoreUnavailable):
            async with store.watch("k", 0) as messages:
                await anext(messages)
    assert time.monotonic() - began < 5


async def test_a_stopped_server_is_noticed_by_deadlines_and_by_silence(own_redis: RedisServer) -> None:
    patience = Patience(ping_s=0.3, answer_s=0.5)
    async with _store(own_redis, timeout_s=0.5, patience=patience) as store:
        revision = await put(store, KEY, b"1")
        async with store.watch(PREFIX, revision) as messages:
            await anext(messages)
            own_redis.pause()
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="no answer in time"):
                await next_revision(messages)
            assert time.monotonic() - began < 3
        with pytest.raises(StoreUnavailable):
            await store.commit((), (Put(KEY, b"2"),))
        own_redis.resume()
        # The transaction that timed out may have happened.
        await eventually(lambda: _holds(store, (b"1", b"2")), WITHIN_S, "the server answers again")


async def _holds(store: Store, values: tuple[bytes, ...]) -> bool:
    try:
        held = await store.get(KEY)
    except StoreUnavailable:
        return False
    return held is not None and held.value in values


def test_a_stopped_server_is_noticed_within_eight_seconds_by_default() -> None:
    patience = Patience()
    assert patience.ping_s + patience.answer_s < 8


async def test_a_server_killed_and_restarted_with_its_data_loses_nothing_and_nobody_lists_again(
    own_redis: RedisServer,
) -> None:
    async with _store(own_redis) as store:
        start = (await store.list(PREFIX)).revision
        written = [await put(store, KEY, str(n).encode()) for n in range(3)]
        seen: list[int] = []
        async with store.watch(PREFIX, start) as messages:
            seen += [(await next_revision(messages)).revision for _ in range(2)]
            await asyncio.to_thread(own_redis.kill)
            with pytest.raises(StoreUnavailable):
                await _read_all(messages, seen)
        await asyncio.to_thread(own_redis.start)
        written += [await put(store, KEY, str(n).encode()) for n in range(3, 6)]
        async with store.watch(PREFIX, seen[-1]) as messages:
            while len(seen) < len(written):
                seen.append((await next_revision(messages)).revision)
    assert seen == written
    assert written == sorted(written)


async def _read_all(messages: AsyncIterator[WatchMessage], seen: list[int]) -> None:
    while True:
        seen.append((await next_revision(messages)).revision)


async def test_revisions_that_a_restart_lost_are_never_given_to_others(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store:
        kept = await put(store, KEY, b"kept")
        await asyncio.to_thread(own_redis.stop)
        backup = own_redis.data.with_name("backup")
        shutil.copytree(own_redis.data, backup, ignore=shutil.ignore_patterns("*.sock"))
        await asyncio.to_thread(own_redis.start)
        lost = [await put(store, KEY, b"lost") for _ in range(3)]
        await asyncio.to_thread(own_redis.kill)
        own_redis.wipe()
        shutil.copytree(backup, own_redis.data)
        await asyncio.to_thread(own_redis.start)

        async with store.watch(PREFIX, lost[-1]) as messages:
            alive = await anext(messages)
            assert alive.revision == kept  # a step back, while nothing was written since
        overtaking = [await put(store, KEY, str(n).encode()) for n in range(5)]
        assert overtaking[0] > lost[-1]
        with pytest.raises(Compacted):
            async with store.watch(PREFIX, lost[1]) as messages:
                await next_revision(messages)
        async with store.watch(PREFIX, kept) as messages:
            assert [(await next_revision(messages)).revision for _ in overtaking] == overtaking


async def test_a_store_flushed_under_a_watch_is_noticed_even_when_it_grew_past_it(
    own_redis: RedisServer,
) -> None:
    patience = Patience(ping_s=60.0, answer_s=5.0)
    async with _store(own_redis, patience=patience) as store:
        position = [await put(store, KEY, b"old") for _ in range(5)][-1]
        async with store.watch(PREFIX, position) as messages:
            await anext(messages)
            own_redis.flush()
            for _ in range(10):
                await put(store, KEY, b"new")
            with pytest.raises(StoreUnavailable, match="wiped"):
                await next_revision(messages)


async def test_a_quiet_store_that_was_flushed_is_noticed_by_the_next_proof_of_life(
    own_redis: RedisServer,
) -> None:
    async with _store(own_redis) as store:
        position = await put(store, KEY, b"old")
        async with store.watch(PREFIX, position) as messages:
            await anext(messages)
            own_redis.flush()
            with pytest.raises(StoreUnavailable, match="wiped"):
                await next_revision(messages)
        assert not (await store.list(PREFIX)).entries


async def test_history_trimmed_while_away_or_under_a_watch_is_told(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store:
        first = await put(store, KEY, b"0")
        async with store.watch(PREFIX, first) as messages:
            await anext(messages)
            for n in range(5):
                await put(store, KEY, str(n).encode())
            _trim(own_redis)
            newest = await put(store, KEY, b"5")
            with pytest.raises(Compacted) as compacted:
                await next_revision(messages)
        assert first < compacted.value.compacted_revision < newest
        async with store.watch(PREFIX, compacted.value.compacted_revision) as messages:
            assert (await next_revision(messages)).revision == newest
        _trim(own_redis)
        with pytest.raises(Compacted):
            async with store.watch(PREFIX, first) as messages:
                await next_revision(messages)


def _trim(server: RedisServer) -> None:
    with server.control() as redis:
        for stream in STREAMS:
            redis.xtrim(stream, maxlen=0, approximate=False)


async def test_history_is_bounded(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store:
        await put(store, KEY, b"v")
        with own_redis.control() as redis:
            # As if it had gone on for long: the script's own trimming must cut what exceeds its bound.
            pipeline = redis.pipeline(transaction=False)
            for n in range(10_500):
                pipeline.xadd(STREAMS[0], {"after": f"t {n}"}, id=f"{n + 10}-0")
            pipeline.execute()
            redis.hset("{pdcore}:store", "revision", 20_000)
            await put(store, KEY, b"w")
            assert 10_000 <= redis.xlen(STREAMS[0]) <= 10_200


async def test_what_happens_beside_the_view_does_not_wake_its_followers(own_redis: RedisServer) -> None:
    patience = Patience(ping_s=60.0, answer_s=5.0)
    async with _store(own_redis, patience=patience) as store:
        start = (await store.list(PREFIX)).revision
        async with store.watch(PREFIX, start) as messages, running_beside(_drain(messages)):
            await eventually(lambda: _reads(own_redis) > 0, WITHIN_S, "the watch reads")
            before = _reads(own_redis)
            for n in range(20):
                await put(store, SIDE, str(n).encode())
            assert _reads(own_redis) == before
            await put(store, KEY, b"seen")
            await eventually(lambda: _reads(own_redis) > before, WITHIN_S, "the watch wakes")


def _reads(server: RedisServer) -> int:
    """Reads of a stream so far. One that waits is counted when it begins to."""
    with server.control() as redis:
        return int(redis.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"])


async def _drain(messages: AsyncIterator[WatchMessage]) -> None:
    async for _ in messages:
        pass


async def test_a_transaction_across_the_areas_is_one_revision_for_who_follows_both(
    own_redis: RedisServer,
) -> None:
    async with _store(own_redis) as store:
        start = (await store.list("/pdcore/")).revision
        revision = (await store.commit((), (Put(SIDE, b"1"), Put(KEY, b"2")))).revision
        later = await put(store, SIDE, b"3")
        async with store.watch("/pdcore/c/", start) as messages:
            both = await next_revision(messages)
            assert (both.revision, {change.key for change in both.changes}) == (revision, {KEY, SIDE})
            assert (await next_revision(messages)).revision == later
        async with store.watch(PREFIX, start) as messages:
            alone = await next_revision(messages)
            assert (alone.revision, [change.key for change in alone.changes]) == (revision, [KEY])


async def test_a_list_of_many_pages_is_of_one_revision_while_others_write_and_delete(
    own_redis: RedisServer,
) -> None:
    access = StoreAccess(url=own_redis.url, timeout_s=WITHIN_S)
    async with RedisStore(access, page_keys=3) as store, _store(own_redis) as writer:
        keys = [f"{PREFIX}{n:03}" for n in range(60)]
        await store.commit((), tuple(Put(key, b"0") for key in keys))
        async with running_beside(_move(writer, keys)):
            for _ in range(15):
                listed = await store.list(PREFIX)
                assert len(listed.entries) == 60  # one key is gone and another is there, always both
                assert list(listed.entries) == sorted(listed.entries)
                newest = max(stored.mod_revision for stored in listed.entries.values())
                assert newest <= listed.revision


async def _move(store: Store, keys: list[str]) -> None:
    """Replace the first key by one behind the last, the next by one before the first, and back, in turn."""
    while True:
        for key in (keys[0], keys[-1]):
            other = PREFIX + ("zzz" if key == keys[0] else "!!!")
            await store.commit((), (Delete(key), Put(other, b"1")))
            await store.commit((), (Delete(other), Put(key, b"1")))


async def test_two_reapers_end_a_lease_once_and_whole(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store, _store(own_redis) as other:
        leases = [await store.grant(3600) for _ in range(4)]
        for lease in leases:
            await store.commit((), tuple(Put(f"{PREFIX}{lease}/{n}", b"v", lease) for n in range(20)))
        start = (await store.list(PREFIX)).revision
        async with asyncio.timeout(WITHIN_S), store.watch(PREFIX, start) as messages:
            _age(own_redis, *leases)
            ended: list[Revision] = []
            while len(ended) < len(leases):
                await asyncio.gather(store.reap(), other.reap())
                ended += await _already_there(messages)
            ended += await _already_there(messages)
        gone = {change.key for revision in ended for change in revision.changes}
        assert len(ended) == len(leases)
        assert len(gone) == 20 * len(leases)
        for revision in ended:
            (owner,) = {change.key.split("/")[4] for change in revision.changes}
            assert revision.changes == tuple(
                sorted(
                    (Change(f"{PREFIX}{owner}/{n}", None) for n in range(20)), key=lambda change: change.key
                )
            )
        with pytest.raises(LeaseGone):
            await store.keep_alive(leases[0])


async def _already_there(messages: AsyncIterator[WatchMessage]) -> list[Revision]:
    """Everything up to the next proof of life."""
    found: list[Revision] = []
    while not isinstance(message := await anext(messages), Alive):
        found.append(message)
    return found


async def test_a_lease_past_its_end_is_gone_before_anybody_ends_it(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store:
        lease, other = await store.grant(60), await store.grant(60)
        await store.commit((), (Put(KEY, b"v", lease),))
        _age(own_redis, lease, other)
        with pytest.raises(LeaseGone):
            await store.commit((), (Put(KEY + "2", b"v", other),))
        with pytest.raises(LeaseGone):
            await store.keep_alive(lease)
        assert await store.get(KEY) is None


def _age(server: RedisServer, *leases: LeaseId) -> None:
    """Let the leases end now."""
    with server.control() as redis:
        redis.zadd("{pdcore}:leases", dict.fromkeys(map(str, leases), 1))


async def test_leases_begin_anew_when_the_server_was_away_for_longer_than_they_last(
    own_redis: RedisServer,
) -> None:
    async with _store(own_redis) as store:
        lease = await store.grant(3600)
        await store.commit((), (Put(KEY, b"v", lease),))
        with own_redis.control() as redis:
            now_ms = redis.time()[0] * 1000
            redis.hset("{pdcore}:store", "reaped_at", now_ms - STOPPED_MS - 60_000)
            redis.zadd("{pdcore}:leases", {str(lease): now_ms - 30_000})
            assert await store.reap() == pytest.approx(3600, abs=5)
            _age(own_redis, lease)
            assert await store.reap() is None
        assert await store.get(KEY) is None


async def test_a_server_that_forgot_the_scripts_is_sent_them_again(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store:
        first = await put(store, KEY, b"1")
        with own_redis.control() as redis:
            redis.script_flush()
        assert await put(store, KEY, b"2") == first + 1
        with own_redis.control() as redis:
            redis.script_flush()
        assert list((await store.list(PREFIX)).entries) == [KEY]


async def test_a_full_server_refuses_puts_and_serves_everything_else(own_redis: RedisServer) -> None:
    async with _store(own_redis) as store:
        lease, ending = await store.grant(60), await store.grant(60)
        await store.commit((), (Put(KEY, b"v", lease), Put(KEY + "2", b"v"), Put(KEY + "3", b"v", ending)))
        with own_redis.control() as redis:
            redis.config_set("maxmemory", "1")
        with pytest.raises(StoreRefused, match="maxmemory"):
            await put(store, KEY, b"w")
        with pytest.raises(StoreRefused, match="maxmemory"):
            await store.grant(60)
        assert await store.keep_alive(lease) == 60
        listed = await store.list(PREFIX)
        async with store.watch(PREFIX, listed.revision) as messages:
            await store.commit((), (Delete(KEY + "2"),))
            await store.revoke(ending)
            assert [change.key for change in (await next_revision(messages)).changes] == [KEY + "2"]
            assert [change.key for change in (await next_revision(messages)).changes] == [KEY + "3"]
        with own_redis.control() as redis:
            redis.config_set("maxmemory", "0")
        await put(store, KEY, b"w")


async def test_a_server_held_up_by_a_script_is_away_until_that_is_killed(own_redis: RedisServer) -> None:
    with own_redis.control() as redis:
        redis.config_set("busy-reply-threshold", "50")
    async with _store(own_redis, timeout_s=10) as store:
        async with _endless_script(own_redis), asyncio.timeout(WITHIN_S):
            with pytest.raises(StoreUnavailable, match="BUSY"):
                await _put_for_ever(store)  # the script may not have begun yet
        await put(store, KEY, b"2")


async def _put_for_ever(store: Store) -> None:
    while True:
        await put(store, KEY, b"1")


@asynccontextmanager
async def _endless_script(server: RedisServer) -> AsyncIterator[None]:
    with server.control() as killer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(_loop_for_ever, server))
            try:
                yield
            finally:
                killer.script_kill()


def _loop_for_ever(server: RedisServer) -> None:
    with server.control() as redis, pytest.raises(ResponseError, match="killed"):
        redis.eval("while true do end", 0)
