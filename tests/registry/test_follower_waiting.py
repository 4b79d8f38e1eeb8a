"""Waiting until a follower knows a revision, and what one connection's word is worth to the next."""

from __future__ import annotations

import asyncio
import random

import pytest

from pdcore.registry.follower import Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Put
from pdcore.topology.keys import Keyspace
from tests.registry.faulty_store import FaultyStore, HurriedClock
from tests.registry.test_follower import KEYSPACE, WITHIN_S, following, has, put_router
from tests.support.eventually import eventually

pytestmark = pytest.mark.unit


def memory() -> FaultyStore[MemoryStore]:
    return FaultyStore(MemoryStore(alive_s=0.01))


def follower_of(
    store: FaultyStore[MemoryStore], clock: HurriedClock | None = None, **options: float
) -> Follower:
    return Follower(store, KEYSPACE, clock=clock or HurriedClock(), random=random.Random(7), **options)


async def test_a_view_has_the_revision_of_its_own_write_as_soon_as_its_event_is_there() -> None:
    store = memory()
    async with follower_of(store, HurriedClock(speed=1)) as follower:
        await follower.wait_until(has(), WITHIN_S)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(follower.wait_for(follower.revision + 1, WITHIN_S))
            written = await put_router(store, "a")
        assert waiting.result() == written == follower.revision == follower.statistics().revision
        assert await follower.wait_for(1, WITHIN_S) == written


async def test_a_write_elsewhere_is_known_once_the_store_says_so() -> None:
    store = memory()
    async with follower_of(store, reconcile_s=1e9) as follower:
        await follower.wait_until(has(), WITHIN_S)
        elsewhere = await store.commit((), (Put(Keyspace(cluster="followed").side + "x", b"1"),))
        assert await follower.wait_for(elsewhere.revision, WITHIN_S) >= elsewhere.revision
        assert follower.topology.revision < elsewhere.revision


async def test_what_the_store_never_reached_is_waited_for_in_vain() -> None:
    async with follower_of(memory()) as follower:
        await follower.wait_until(has(), WITHIN_S)
        with pytest.raises(TimeoutError):
            await follower.wait_for(1000, 0.2)


async def test_before_the_first_list_no_revision_is_known() -> None:
    store = memory()
    await put_router(store, "a")
    store.down = True
    async with follower_of(store) as follower:
        assert follower.revision == 0
        with pytest.raises(TimeoutError):
            await follower.wait_for(1, 0.1)


async def test_the_word_of_a_connection_that_broke_proves_nothing() -> None:
    """A proof of life overtakes the revision it counts, then the connection breaks before it was believed."""
    store = memory()
    clock = HurriedClock()
    async with follower_of(store, clock) as follower:
        await following(follower)
        await eventually(lambda: follower._passed >= follower.revision, WITHIN_S)
        store.hold_revisions = True
        lost = await put_router(store.store, "a")
        await eventually(lambda: follower._passed >= lost, WITHIN_S)
        clock.speed = 5.0  # a second takes 200 ms
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(follower.wait_for(lost, WITHIN_S))
            await asyncio.sleep(0)
            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.4):
                    await asyncio.shield(waiting)
            assert follower.revision < lost
            clock.speed, store.hold_revisions, store.down = 200.0, False, False
        assert waiting.result() >= lost
        assert has("a")(follower.topology)


async def test_a_reconcile_waits_for_what_this_connection_delivers_whatever_the_last_one_did() -> None:
    """Otherwise a list is compared with a view that the new watch is still filling, and "repairs" what is not broken."""
    store = memory()
    async with follower_of(store) as follower:
        await following(follower)
        store.hold_revisions = True
        missed = await put_router(store.store, "a")
        await eventually(lambda: follower._passed >= missed, WITHIN_S)  # the old connection's word
        before = store.lists_total
        slow = SlowToDeliver(store)
        slow.begin()
        await eventually(lambda: follower.last_error is None and slow.connected, WITHIN_S)
        await eventually(lambda: store.lists_total > before, WITHIN_S, "a reconcile began")
        with pytest.raises(TimeoutError):
            await follower.wait_until(has("a"), 0.3)
        assert follower.repairs_total == 0
        slow.deliver.set()
        await follower.wait_until(has("a"), WITHIN_S)
        assert follower.repairs_total == 0


class SlowToDeliver:
    """From :meth:`begin` on a store's watches connect and then say nothing until :attr:`deliver` is set."""

    def __init__(self, store: FaultyStore[MemoryStore]) -> None:
        self._store = store
        self._pass_on = store._passed_on
        self.deliver = asyncio.Event()
        self.connected = False

    def begin(self) -> None:
        self._store._passed_on = self._slowly  # type: ignore[method-assign]
        self._store.hold_revisions = False
        self._store.break_next_message = True
        self._store._held.clear()

    async def _slowly(self, messages):  # type: ignore[no-untyped-def]
        async for message in self._pass_on(messages):
            if self.connected:
                await self.deliver.wait()
            self.connected = True
            yield message
