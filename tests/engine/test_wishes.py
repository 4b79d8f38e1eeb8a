"""A decode rank's wish for a prefill incarnation's end becomes an order for exactly that one, or for nobody."""

from __future__ import annotations

import asyncio

import pytest

from pdcore.beside import running_beside
from pdcore.clock import SystemClock
from pdcore.engine.messages import EndPeer, Restart
from pdcore.engine.wishes import Wishes
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Put
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import OrderRecord
from tests.support.eventually import eventually
from tests.support.fleet import instance_record

pytestmark = pytest.mark.unit

SPACE = Keyspace(cluster="test")
ORDER = SPACE.view + keys.order("p0")


class Rank:
    """Wishes what it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.said: asyncio.Queue[EndPeer | Restart] = asyncio.Queue()
        self.restarts: list[str] = []
        self.wishes = Wishes(
            store=store,
            keyspace=SPACE,
            clock=SystemClock(),
            by="d0 on here",
            next_wish=self.said.get,
            restart=self.restarts.append,
        )

    def wish_end_of(self, incarnation: str) -> None:
        self.said.put_nowait(EndPeer(instance_id="p0", incarnation=incarnation, age_s=15.2))

    def wish_restart(self) -> None:
        self.said.put_nowait(Restart(why="no fence came"))


async def test_an_end_is_ordered_for_the_incarnation_that_holds_memory() -> None:
    async with MemoryStore() as store:
        record = instance_record()
        await store.commit((), (Put(SPACE.view + keys.instance("p0"), codec.encode(record)),))
        rank = Rank(store)
        async with running_beside(rank.wishes.run()):
            rank.wish_end_of(record.incarnation)
            stored = await eventually(lambda: store.get(ORDER), 5, "an order")
        assert stored is not None
        order = codec.decode(keys.order("p0"), stored.value)
        assert isinstance(order, OrderRecord)
        assert (order.kind, order.incarnation, order.by) == ("end", record.incarnation, "d0 on here")


async def test_another_start_is_left_alone_and_a_restart_is_passed_on() -> None:
    async with MemoryStore() as store:
        await store.commit((), (Put(SPACE.view + keys.instance("p0"), codec.encode(instance_record())),))
        rank = Rank(store)
        async with running_beside(rank.wishes.run()):
            rank.wish_end_of("an older start")
            rank.wish_restart()
            await eventually(lambda: rank.restarts == ["no fence came"], 5, "passed on")
        assert await store.get(ORDER) is None
