"""The store contract when many write at once, and when there is much: races, long leases, lists and catch-ups.

A module subclasses :class:`LoadContract` beside :class:`~tests.registry.store_contract.StoreContract` and defines the
same fixture ``store_factory``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pdcore.errors import Compacted
from pdcore.registry.store import (
    MAX_WRITES,
    Absent,
    Alive,
    Committed,
    LeaseId,
    ModRevisionIs,
    Put,
    Store,
    ValueIs,
    WatchMessage,
)
from tests.registry.store_contract import WITHIN_S, StoreFactory, next_revision, put

CLIENTS = 4
KEYS = 10_000
LAG_REVISIONS = 400
"""More than a server and a client hold for a consumer that does not read."""


class LoadContract:
    """What every store keeps to under load."""

    async def test_of_many_clients_that_create_one_key_exactly_one_wins_every_round(
        self, store_factory: StoreFactory
    ) -> None:
        async with _clients(store_factory) as clients:
            for round_number in range(8):
                key = f"{store_factory.prefix}claim/{round_number}"
                outcomes = await asyncio.gather(
                    *(_claim(client, key, who) for who in range(4) for client in clients)
                )
                held = await clients[0].get(key)
                assert held is not None
                winners = [value for value, outcome in outcomes if outcome.succeeded]
                assert winners == [held.value]
                assert held.create_revision == held.mod_revision

    @pytest.mark.parametrize("by_revision", [True, False], ids=["mod_revision", "value"])
    async def test_no_increment_is_lost_when_many_compare_and_swap(
        self, store_factory: StoreFactory, by_revision: bool
    ) -> None:
        key, each = store_factory.prefix + "count", 15
        async with _clients(store_factory) as clients:
            await put(clients[0], key, b"0")
            revisions = await asyncio.gather(
                *(_increment(client, key, each, by_revision=by_revision) for client in clients)
            )
            held = await clients[0].get(key)
            assert held is not None
            assert int(held.value) == CLIENTS * each
            written = sorted(revision for own in revisions for revision in own)
            assert len(set(written)) == CLIENTS * each
            assert held.mod_revision == written[-1]

    async def test_every_watcher_is_told_of_two_writers_in_the_same_order(
        self, store_factory: StoreFactory
    ) -> None:
        prefix = store_factory.prefix
        async with _clients(store_factory) as (one, two, near, far):
            start = (await one.list(prefix)).revision
            async with near.watch(prefix, start) as near_messages, far.watch(prefix, start) as far_messages:
                assert isinstance(await anext(near_messages), Alive)
                written = await asyncio.gather(
                    _write(one, prefix + "one", 50), _write(two, prefix + "two", 50)
                )
                near_seen = [await next_revision(near_messages) for _ in range(100)]
                far_seen = [await next_revision(far_messages) for _ in range(100)]
            assert near_seen == far_seen
            assert [revision.revision for revision in near_seen] == sorted(written[0] + written[1])

    async def test_a_lease_of_many_transactions_ends_in_one_revision(
        self, store_factory: StoreFactory
    ) -> None:
        prefix = store_factory.prefix
        keys = [f"{prefix}{number:04}" for number in range(5 * MAX_WRITES)]
        async with store_factory.open() as store:
            kept, ending = await store.grant(60), await store.grant(60)
            await put_many(store, keys, b"v", lease=ending)
            written = await store.commit((), (Put(prefix + "kept", b"v", kept),))
            async with store.watch(prefix, written.revision) as messages:
                await store.revoke(ending)
                revision = await next_revision(messages)
            assert [change.key for change in revision.changes] == keys
            assert all(change.stored is None for change in revision.changes)
            assert list((await store.list(prefix)).entries) == [prefix + "kept"]

    @pytest.mark.slow
    async def test_ten_thousand_keys_are_listed_and_caught_up_whole(
        self, store_factory: StoreFactory
    ) -> None:
        prefix = store_factory.prefix
        keys = [f"{prefix}{number:05}" for number in range(KEYS)]
        async with store_factory.open() as store:
            start = (await store.list(prefix)).revision
            written = await put_many(store, keys, bytes(200))
            listed = await store.list(prefix)
            assert list(listed.entries) == keys
            assert listed.revision >= written[-1]
            async with store.watch(prefix, start) as messages:
                seen = [await next_revision(messages) for _ in written]
            assert [revision.revision for revision in seen] == written
            assert [change.key for revision in seen for change in revision.changes] == keys

    @pytest.mark.slow
    async def test_a_consumer_that_falls_behind_the_history_is_told_to_list_again(
        self, store_factory: StoreFactory
    ) -> None:
        prefix = store_factory.prefix
        keys = [f"{prefix}{number}" for number in range(8)]
        async with store_factory.open() as store, store_factory.open() as writer:
            start = (await store.list(prefix)).revision
            seen: list[int] = []
            async with store.watch(prefix, start) as messages:
                await anext(messages)  # and then no more for a while
                written = [(await put_many(writer, keys, bytes(6_000)))[0] for _ in range(LAG_REVISIONS)]
                await store_factory.compact(written[-1])
                with pytest.raises(Compacted):
                    await _read(messages, len(written), seen)
            assert seen == written[: len(seen)]
            listed = await store.list(prefix)
            assert {stored.mod_revision for stored in listed.entries.values()} == {written[-1]}
            async with store.watch(prefix, listed.revision) as messages:
                later = await put(writer, keys[0], b"later")
                assert (await next_revision(messages)).revision == later


async def put_many(store: Store, keys: list[str], value: bytes, *, lease: LeaseId | None = None) -> list[int]:
    """Write all ``keys``, as many in one transaction as may be; the revisions, in order."""
    revisions = []
    for start in range(0, len(keys), MAX_WRITES):
        batch = tuple(Put(key, value, lease) for key in keys[start : start + MAX_WRITES])
        revisions.append((await store.commit((), batch)).revision)
    return revisions


@asynccontextmanager
async def _clients(factory: StoreFactory) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(factory.open()) for _ in range(CLIENTS)]


async def _claim(store: Store, key: str, who: int) -> tuple[bytes, Committed]:
    value = f"{id(store)}/{who}".encode()
    return value, await store.commit((Absent(key),), (Put(key, value),))


async def _increment(store: Store, key: str, times: int, *, by_revision: bool) -> list[int]:
    """Add one ``times`` times, trying again whenever somebody else was faster; the revisions that did it."""
    revisions: list[int] = []
    async with asyncio.timeout(3 * WITHIN_S):
        while len(revisions) < times:
            held = await store.get(key)
            assert held is not None
            condition = ModRevisionIs(key, held.mod_revision) if by_revision else ValueIs(key, held.value)
            outcome = await store.commit((condition,), (Put(key, str(int(held.value) + 1).encode()),))
            if outcome.succeeded:
                revisions.append(outcome.revision)
    return revisions


async def _read(messages: AsyncIterator[WatchMessage], count: int, seen: list[int]) -> None:
    """The next ``count`` revisions, into ``seen`` one by one."""
    for _ in range(count):
        seen.append((await next_revision(messages)).revision)


async def _write(store: Store, key: str, times: int) -> list[int]:
    return [await put(store, key, str(number).encode()) for number in range(times)]
