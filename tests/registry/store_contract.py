"""The store contract as a suite.

A module that has a store to test subclasses :class:`StoreContract` (as ``TestSomething``) and defines a fixture
``store_factory`` that returns a :class:`StoreFactory`. Each test works below a prefix of its own, so that the suite
can run against a server that others use too.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from pdcore.beside import running_beside
from pdcore.errors import Compacted, LeaseGone, StoreRefused
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.watch import Patience
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import (
    MAX_WRITES,
    Absent,
    Alive,
    Change,
    Delete,
    ModRevisionIs,
    Put,
    Revision,
    Store,
    ValueIs,
    WatchMessage,
)
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.network import Relay

WITHIN_S = 10.0
ALIVE_S = 0.2
MEBIBYTE = 1 << 20


class StoreFactory(Protocol):
    """A keyspace to test: how to reach it, and what a test may do to its server."""

    prefix: str

    def open(self) -> AbstractAsyncContextManager[Store]:
        """A client of it; short patience, so that proof of life comes within ``ALIVE_S`` of silence."""
        ...

    async def pass_time(self, seconds: int) -> None:
        """Let ``seconds`` pass for the leases' clock, if it is not the real one."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget the history up to ``revision``."""
        ...


class ManualClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


class MemoryFactory:
    """One memory store under a manual clock."""

    def __init__(self) -> None:
        self.prefix = "/contract/"
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, alive_s=ALIVE_S)

    def open(self) -> AbstractAsyncContextManager[Store]:
        return self.store

    async def pass_time(self, seconds: int) -> None:
        self.clock.time += seconds
        self.store.expire_leases()

    async def compact(self, revision: int) -> None:
        self.store.compact(revision)

    async def cut(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self.store.cut()

    async def wipe(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self.store.wipe()


class EtcdFactory:
    """A prefix of its own in the etcd at ``endpoint`` (``host:port``), wherever that runs."""

    def __init__(self, endpoint: str) -> None:
        self.prefix = f"/contract/{uuid.uuid4().hex}/"
        self._endpoint = endpoint

    def open(self) -> AbstractAsyncContextManager[Store]:
        patience = Patience(ping_s=ALIVE_S, answer_s=WITHIN_S)
        return EtcdStore(
            (self._endpoint,),
            timeout_s=WITHIN_S,
            patience=patience,
            page_keys=100,
            max_message_bytes=4 * MEBIBYTE,
        )

    async def pass_time(self, seconds: int) -> None:
        return None

    async def compact(self, revision: int) -> None:
        await asyncio.to_thread(compact_etcd, self._endpoint, revision)


class OwnEtcdFactory(EtcdFactory):
    """All of ``server``, which only this test uses, reached through ``relay``."""

    def __init__(self, server: EtcdServer, relay: Relay) -> None:
        super().__init__(relay.endpoint)
        self._server = server
        self._relay = relay

    async def cut(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self._relay.cut()

    async def wipe(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        await asyncio.to_thread(self._server.kill)
        self._server.wipe()
        await asyncio.to_thread(self._server.start)


def compact_etcd(endpoint: str, revision: int) -> None:
    """Compact an etcd through its HTTP gateway."""
    connection = http.client.HTTPConnection(endpoint, timeout=WITHIN_S)
    try:
        connection.request("POST", "/v3/kv/compaction", json.dumps({"revision": str(revision)}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
    finally:
        connection.close()


async def next_revision(messages: AsyncIterator[WatchMessage]) -> Revision:
    """The next message that carries changes."""
    async with asyncio.timeout(WITHIN_S):
        async for message in messages:
            if isinstance(message, Revision):
                return message
    raise AssertionError("the watch ended without an error")


async def put(store: Store, key: str, value: bytes) -> int:
    """Write unconditionally; the revision that did it."""
    return (await store.commit((), (Put(key, value),))).revision


class StoreContract:
    """What every store keeps to."""

    async def test_a_list_holds_everything_under_the_prefix_and_nothing_else(
        self, store_factory: StoreFactory
    ) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            assert not (await store.list(prefix)).entries
            await put(store, prefix + "b", b"2")
            await put(store, prefix + "a/x", b"1")
            revision = await put(store, prefix.rstrip("/") + "0", b"a neighbour")
            listed = await store.list(prefix)
            assert {key: stored.value for key, stored in listed.entries.items()} == {
                prefix + "a/x": b"1",
                prefix + "b": b"2",
            }
            assert listed.revision >= revision

    async def test_a_long_list_is_whole(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        keys = [f"{prefix}{number:04}" for number in range(3 * MAX_WRITES)]
        async with store_factory.open() as store:
            for start in range(0, len(keys), MAX_WRITES):
                batch = tuple(Put(key, b"v") for key in keys[start : start + MAX_WRITES])
                assert (await store.commit((), batch)).succeeded
            assert list((await store.list(prefix)).entries) == keys

    async def test_a_list_is_of_one_revision_while_others_write(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        first, last = prefix + "0000", prefix + "9999"
        async with store_factory.open() as store, store_factory.open() as other:
            for start in (1000, 2000, 3000):
                await store.commit((), tuple(Put(f"{prefix}{start + n}", b"") for n in range(MAX_WRITES)))
            async with running_beside(_write_together(other, first, last)):
                await eventually(lambda: store.get(last), WITHIN_S)
                for _ in range(20):
                    entries = (await store.list(prefix)).entries
                    assert entries[first].value == entries[last].value

    async def test_revisions_tell_a_changed_key_from_a_recreated_one(
        self, store_factory: StoreFactory
    ) -> None:
        key = store_factory.prefix + "k"
        async with store_factory.open() as store:
            assert await store.get(key) is None
            created = await put(store, key, b"1")
            changed = await put(store, key, b"2")
            held = await store.get(key)
            assert held is not None
            assert (held.value, held.create_revision, held.mod_revision) == (b"2", created, changed)
            await store.commit((), (Delete(key),))
            recreated = await put(store, key, b"3")
            held = await store.get(key)
            assert held is not None
            assert (held.create_revision, held.mod_revision) == (recreated, recreated)

    async def test_of_many_that_create_one_key_exactly_one_wins(self, store_factory: StoreFactory) -> None:
        key = store_factory.prefix + "claim"
        async with store_factory.open() as store:
            outcomes = await asyncio.gather(
                *(store.commit((Absent(key),), (Put(key, str(n).encode()),)) for n in range(8))
            )
            winners = [n for n, outcome in enumerate(outcomes) if outcome.succeeded]
            assert len(winners) == 1
            held = await store.get(key)
            assert held is not None
            assert held.value == str(winners[0]).encode()

    async def test_two_writers_at_one_position_do_not_both_swap(self, store_factory: StoreFactory) -> None:
        key = store_factory.prefix + "swap"
        async with store_factory.open() as one, store_factory.open() as two:
            revision = await put(one, key, b"0")
            first = await one.commit((ModRevisionIs(key, revision),), (Put(key, b"1"),))
            second = await two.commit((ModRevisionIs(key, revision),), (Put(key, b"2"),))
            assert (first.succeeded, second.succeeded) == (True, False)
            third = await two.commit((ValueIs(key, b"1"),), (Put(key, b"2"),))
            assert third.succeeded
            assert third.revision > second.revision

    async def test_a_transaction_whose_condition_fails_writes_nothing(
        self, store_factory: StoreFactory
    ) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            revision = await put(store, prefix + "a", b"1")
            writes = (Put(prefix + "b", b"1"), Delete(prefix + "a"))
            outcome = await store.commit((ValueIs(prefix + "a", b"1"), Absent(prefix + "a")), writes)
            assert not outcome.succeeded
            assert list((await store.list(prefix)).entries) == [prefix + "a"]
            held = await store.get(prefix + "a")
            assert held is not None
            assert held.mod_revision == revision

    @pytest.mark.parametrize("condition", [ModRevisionIs("", 0), ValueIs("", b"")])
    async def test_no_value_and_no_revision_is_that_of_an_absent_key(
        self, store_factory: StoreFactory, condition: ModRevisionIs | ValueIs
    ) -> None:
        key = store_factory.prefix + "absent"
        asked = ModRevisionIs(key, 0) if isinstance(condition, ModRevisionIs) else ValueIs(key, b"")
        async with store_factory.open() as store:
            assert not (await store.commit((asked,), (Put(key, b"1"),))).succeeded

    async def test_deleting_what_is_not_there_makes_no_revision(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            before = await put(store, prefix + "a", b"1")
            async with store.watch(prefix, before) as messages:
                assert (await store.commit((), (Delete(prefix + "b"),))).succeeded
                after = await put(store, prefix + "a", b"2")
                assert (await next_revision(messages)).revision == after

    async def test_a_malformed_transaction_is_refused(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            with pytest.raises(StoreRefused):
                await store.commit((), (Put(prefix + "a", b"1"), Put(prefix + "a", b"2")))
            with pytest.raises(StoreRefused):
                await store.commit((), tuple(Put(f"{prefix}{n}", b"") for n in range(MAX_WRITES + 1)))
            assert not (await store.list(prefix)).entries

    async def test_a_watch_hands_over_whole_revisions_in_order(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            start = (await store.list(prefix)).revision
            async with store.watch(prefix, start) as messages:
                assert isinstance(await anext(messages), Alive)
                both = await store.commit((), (Put(prefix + "a", b"1"), Put(prefix + "b", b"1")))
                await put(store, prefix.rstrip("/") + "0", b"a neighbour")
                gone = await store.commit((), (Delete(prefix + "a"), Put(prefix + "c", b"1")))
                first, second = await next_revision(messages), await next_revision(messages)
                assert first.revision == both.revision
                assert [change.key for change in first.changes] == [prefix + "a", prefix + "b"]
                assert first.changes[0].stored == await store_at(store, prefix + "b", first.revision)
                assert second.revision == gone.revision
                assert Change(prefix + "a", None) in second.changes
                assert len(second.changes) == 2

    async def test_a_watch_resumes_after_the_revision_it_is_given(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            revisions = [await put(store, prefix + "k", str(n).encode()) for n in range(6)]
            async with store.watch(prefix, revisions[2]) as messages:
                seen = [(await next_revision(messages)).revision for _ in range(3)]
            assert seen == revisions[3:]

    async def test_a_silent_watch_proves_that_it_lives(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            revision = await put(store, prefix + "k", b"1")
            async with asyncio.timeout(WITHIN_S), store.watch(prefix, revision) as messages:
                for _ in range(3):
                    message = await anext(messages)
                    assert isinstance(message, Alive)
                    assert message.revision >= revision

    async def test_a_watch_ends_with_its_block_and_leaves_no_task(self, store_factory: StoreFactory) -> None:
        async with store_factory.open() as store:
            start = (await store.list(store_factory.prefix)).revision
            before = asyncio.all_tasks()
            for _ in range(3):
                async with store.watch(store_factory.prefix, start) as messages:
                    await anext(messages)
            with pytest.raises(TimeoutError):
                await _wait_in_a_watch(store, store_factory.prefix, start)
            # A driver's library may take a loop turn to see its call end.
            await eventually(lambda: asyncio.all_tasks() <= before, WITHIN_S, "the watches' tasks ended")

    async def test_an_ended_lease_takes_its_keys_in_one_revision(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            lease = await store.grant(1)
            keys = [f"{prefix}{number:03}" for number in range(MAX_WRITES)]
            written = await store.commit((), tuple(Put(key, b"v", lease) for key in keys))
            async with store.watch(prefix, written.revision) as messages:
                await store_factory.pass_time(1)
                revision = await next_revision(messages)
            assert revision.changes == tuple(Change(key, None) for key in keys)
            assert not (await store.list(prefix)).entries

    async def test_a_lease_is_kept_alive_until_it_is_gone(self, store_factory: StoreFactory) -> None:
        key = store_factory.prefix + "k"
        async with store_factory.open() as store:
            lease = await store.grant(60)
            await store.commit((), (Put(key, b"v", lease),))
            held = await store.get(key)
            assert held is not None
            assert held.lease == lease
            assert 50 < await store.keep_alive(lease) <= 60
            await store.revoke(lease)
            assert await store.get(key) is None
            with pytest.raises(LeaseGone):
                await store.keep_alive(lease)
            with pytest.raises(LeaseGone):
                await store.commit((), (Put(key, b"v", lease),))
            assert await store.get(key) is None
            await store.revoke(lease)

    async def test_a_key_put_again_hangs_on_its_newest_lease_only(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            old, new = await store.grant(60), await store.grant(60)
            await store.commit((), (Put(prefix + "a", b"1", old), Put(prefix + "b", b"1", old)))
            await store.commit((), (Put(prefix + "a", b"2", new), Put(prefix + "b", b"2")))
            await store.revoke(old)
            assert list((await store.list(prefix)).entries) == [prefix + "a", prefix + "b"]
            await store.revoke(new)
            assert list((await store.list(prefix)).entries) == [prefix + "b"]

    async def test_a_watch_from_a_compacted_revision_says_so(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            revisions = [await put(store, prefix + "k", str(n).encode()) for n in range(5)]
            await store_factory.compact(revisions[3])
            with pytest.raises(Compacted) as compacted:
                async with store.watch(prefix, revisions[0]) as messages:
                    await next_revision(messages)
            assert compacted.value.compacted_revision >= revisions[3]
            async with store.watch(prefix, revisions[3]) as messages:
                assert (await next_revision(messages)).revision == revisions[4]

    @pytest.mark.slow
    async def test_a_catch_up_of_many_mebibytes_is_whole(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            start = (await store.list(prefix)).revision
            revisions = [await put(store, f"{prefix}{n}", bytes([n]) * MEBIBYTE) for n in range(6)]
            assert len((await store.list(prefix)).entries) == 6
            async with store.watch(prefix, start) as messages:
                seen = [await next_revision(messages) for _ in revisions]
            assert [revision.revision for revision in seen] == revisions

    @pytest.mark.slow
    async def test_a_slow_consumer_gets_everything_in_order(self, store_factory: StoreFactory) -> None:
        prefix = store_factory.prefix
        async with store_factory.open() as store:
            start = (await store.list(prefix)).revision
            async with store.watch(prefix, start) as messages:
                await anext(messages)
                written = [await put(store, prefix + "k", bytes(20_000)) for _ in range(300)]
                seen = [(await next_revision(messages)).revision for _ in written]
            assert seen == written


async def _write_together(store: Store, *keys: str) -> None:
    number = 0
    while True:
        number += 1
        await store.commit((), tuple(Put(key, str(number).encode()) for key in keys))
        await asyncio.sleep(0)


async def _wait_in_a_watch(store: Store, prefix: str, after_revision: int) -> None:
    async with asyncio.timeout(0.05), store.watch(prefix, after_revision) as messages:
        async for _ in messages:
            pass


async def store_at(store: Store, key: str, revision: int) -> object:
    """What is stored under ``key``, which was written at ``revision``."""
    held = await store.get(key)
    assert held is not None
    assert held.mod_revision == revision
    return held
