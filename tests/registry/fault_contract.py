"""The store contract when connections are cut, history is dropped meanwhile, or the server loses everything.

A module subclasses :class:`FaultContract` and defines a fixture ``faulty_factory`` that returns a
:class:`FaultyStoreFactory` with a server of its own.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from pdcore.errors import Compacted, LeaseGone, StoreUnavailable
from pdcore.registry.store import Alive, Put, Snapshot, Store
from tests.registry.load_contract import put_many
from tests.registry.store_contract import WITHIN_S, StoreFactory, next_revision, put

EVENTS = 5_000
EVENTS_EACH = 5
CUT_EVERY = 50


class FaultyStoreFactory(StoreFactory, Protocol):
    """A keyspace on a server that nobody else uses."""

    async def cut(self) -> None:
        """Break every connection that clients have now; new ones are served."""
        ...

    async def wipe(self) -> None:
        """Replace the server by an empty one at the same address."""
        ...


class FaultContract:
    """What every store keeps to when something breaks."""

    async def test_a_cut_watch_says_so_and_resumes_where_it_was(
        self, faulty_factory: FaultyStoreFactory
    ) -> None:
        key = faulty_factory.prefix + "k"
        async with faulty_factory.open() as store:
            first = await put(store, key, b"1")
            async with store.watch(key, first - 1) as messages:
                assert (await next_revision(messages)).revision == first
                await faulty_factory.cut()
                with pytest.raises(StoreUnavailable):
                    await next_revision(messages)
            missed = [await _put_again(store, key, str(n).encode()) for n in range(3)]
            async with store.watch(key, first) as messages:
                assert [(await next_revision(messages)).revision for _ in missed] == missed

    @pytest.mark.slow
    async def test_a_catch_up_of_5000_events_cut_in_the_middle_has_no_hole_and_no_copy(
        self, faulty_factory: FaultyStoreFactory
    ) -> None:
        prefix = faulty_factory.prefix
        async with faulty_factory.open() as store:
            start = (await store.list(prefix)).revision
            written = await _write_events(store, prefix)
            seen: list[int] = []
            breaks = 0
            while len(seen) < len(written):
                try:
                    async with store.watch(prefix, seen[-1] if seen else start) as messages:
                        while len(seen) < len(written):
                            revision = await next_revision(messages)
                            assert len(revision.changes) == EVENTS_EACH
                            seen.append(revision.revision)
                            # what a client holds already reaches it whatever is cut: again until it notices
                            if not breaks and len(seen) % CUT_EVERY == 1:
                                await faulty_factory.cut()
                except StoreUnavailable:
                    breaks += 1
            assert breaks == 1
            assert seen == written

    async def test_what_was_dropped_while_away_is_told_on_the_return(
        self, faulty_factory: FaultyStoreFactory
    ) -> None:
        prefix = faulty_factory.prefix
        async with faulty_factory.open() as store:
            position = await put(store, prefix + "a", b"1")
            async with store.watch(prefix, position) as messages:
                await anext(messages)
                await faulty_factory.cut()
                with pytest.raises(StoreUnavailable):
                    await next_revision(messages)
            await _put_again(store, prefix + "a", b"2")
            await store.commit((), (Put(prefix + "b", b"1"),))
            newest = await put(store, prefix + "c", b"1")
            await faulty_factory.compact(newest)
            with pytest.raises(Compacted):
                async with store.watch(prefix, position) as messages:
                    await next_revision(messages)
            listed = await store.list(prefix)
            assert {key: stored.value for key, stored in listed.entries.items()} == {
                prefix + "a": b"2",
                prefix + "b": b"1",
                prefix + "c": b"1",
            }
            async with store.watch(prefix, listed.revision) as messages:
                later = await put(store, prefix + "c", b"2")
                assert (await next_revision(messages)).revision == later

    async def test_a_wiped_store_is_empty_and_cannot_be_taken_for_the_old_one(
        self, faulty_factory: FaultyStoreFactory
    ) -> None:
        prefix = faulty_factory.prefix
        async with faulty_factory.open() as store:
            lease = await store.grant(60)
            await put_many(store, [f"{prefix}{n}" for n in range(10)], b"v", lease=lease)
            position = [await put(store, prefix + "k", str(n).encode()) for n in range(5)][-1]
            async with store.watch(prefix, position) as messages:
                await anext(messages)
                await faulty_factory.wipe()
                with pytest.raises(StoreUnavailable):
                    await next_revision(messages)
            listed = await _list_once_back(store, prefix)
            assert not listed.entries
            assert listed.revision < position
            with pytest.raises(LeaseGone):
                await store.keep_alive(lease)
            assert await _is_told_of_a_step_back(store, prefix, position)
            assert (await store.commit((), (Put(prefix + "k", b"new"),))).succeeded


async def _write_events(store: Store, prefix: str) -> list[int]:
    """``EVENTS`` puts, ``EVENTS_EACH`` in a revision; every revision, in order."""

    async def write(number: int) -> int:
        keys = tuple(f"{prefix}{number}/{n}" for n in range(EVENTS_EACH))
        return (await store.commit((), tuple(Put(key, bytes(1_000)) for key in keys))).revision

    revisions: list[int] = []
    for start in range(0, EVENTS // EVENTS_EACH, 50):
        revisions += await asyncio.gather(*(write(number) for number in range(start, start + 50)))
    return sorted(revisions)


async def _put_again(store: Store, key: str, value: bytes) -> int:
    """Write ``key``; a transaction that found its connection cut is sent again, because a put may happen twice."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await put(store, key, value)
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def _list_once_back(store: Store, prefix: str) -> Snapshot:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await store.list(prefix)
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def _is_told_of_a_step_back(store: Store, prefix: str, position: int) -> bool:
    """Whether a watch from ``position`` on shows that the store is not there yet."""
    try:
        async with asyncio.timeout(WITHIN_S), store.watch(prefix, position) as messages:
            message = await anext(messages)
    except Compacted:
        return True
    return isinstance(message, Alive) and message.revision < position
