"""What an order does to a leader's state, on a real follower: each one counts, and only the newest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from pdcore.beside import running_beside
from pdcore.engine.obedience import Deeds, Obedience
from pdcore.engine.records import standing
from pdcore.engine.state import LeaderState
from pdcore.registry.follower import Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Delete, Put
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.orders import DRAINED
from pdcore.topology.records import OrderRecord
from tests.support.eventually import eventually
from tests.support.fleet import instance_record, order_record

pytestmark = pytest.mark.unit

SPACE = Keyspace(cluster="test")
KEY = SPACE.view + "orders/p0"
END = "ordered to end by test"


@dataclass(slots=True)
class Leader:
    """A leader that serves, its orders in a store, and what it was told to do."""

    store: MemoryStore
    state: LeaderState
    obedience: Obedience | None = None
    did: list[str] = field(default_factory=list)

    async def order(self, order: OrderRecord | None) -> None:
        write = Delete(KEY) if order is None else Put(KEY, codec.encode(order))
        await self.store.commit((), (write,))

    async def does(self, *did: str) -> None:
        await eventually(lambda: self.did == list(did), 2, f"{did}")


@asynccontextmanager
async def obeying(*, first: OrderRecord | None = None) -> AsyncIterator[Leader]:
    state = LeaderState(role="prefill", instance_id="p0", incarnation="inc-1", models=("m",))
    state.enter("serving", "")
    async with MemoryStore() as store, Follower(store, SPACE) as follower:
        leader = Leader(store, state)
        if first is not None:
            await leader.order(first)

        async def serve_again() -> None:
            leader.did.append("serve again")

        deeds = Deeds(
            tell_draining=lambda drained: leader.did.append("drained" if drained else "draining"),
            serve_again=serve_again,
            end=leader.did.append,
        )
        leader.obedience = Obedience(follower, state, deeds)
        async with running_beside(leader.obedience.run()):
            yield leader


async def test_a_drained_leader_says_so_when_it_has_finished_and_serves_again_when_told() -> None:
    async with obeying() as leader:
        with leader.state.answering():
            await leader.order(order_record("drain"))
            await leader.does("draining")
            assert (leader.state.phase, leader.state.why) == ("draining", "ordered to drain by test")
        await leader.does("draining", "drained")
        await leader.order(None)
        await leader.does("draining", "drained", "serve again")
        assert leader.state.phase == "serving"


async def test_a_leader_told_to_drain_without_an_order_does_so_once_and_can_be_called_back() -> None:
    async with obeying() as leader:
        assert leader.obedience is not None
        with leader.state.answering():
            async with running_beside(leader.obedience.drain_now("told so")):
                await leader.does("draining")
        await leader.obedience.drain_now("told so")
        assert (leader.did, leader.state.phase) == (["draining"], "draining")
        assert leader.state.call_back()


async def test_an_order_taken_back_before_it_was_drained_is_not_drained_later() -> None:
    async with obeying() as leader:
        with leader.state.answering():
            await leader.order(order_record("drain"))
            await leader.does("draining")
            await leader.order(order_record("undrain"))
            await leader.does("draining", "serve again")
        await leader.order(order_record("end"))  # and nothing in between
        await leader.does("draining", "serve again", END)


@pytest.mark.parametrize("order", [order_record("drain", "inc-0"), order_record("end", "inc-0", sticky=True)])
async def test_an_order_for_another_start_is_ignored(order: OrderRecord) -> None:
    async with obeying(first=order) as leader:
        await leader.order(order_record("drain", sticky=True))
        await leader.does("draining", "drained")


async def test_an_order_to_end_counts_while_draining_too() -> None:
    async with obeying(first=order_record("drain", None, sticky=True)) as leader:
        await leader.does("draining", "drained")
        await leader.order(order_record("end"))
        await leader.does("draining", "drained", END)


async def test_a_leader_that_ends_is_not_called_back() -> None:
    async with obeying(first=order_record("drain")) as leader:
        await leader.does("draining", "drained")
        leader.state.enter("draining", "told to end")
        await leader.order(None)
        await leader.order(order_record("end"))
        await leader.does("draining", "drained", END)
        assert (leader.state.phase, leader.state.why) == ("draining", "told to end")


def test_a_record_says_drained_only_while_it_is() -> None:
    record = instance_record(extra={"pid_started": 7})
    drained = standing(record, "draining", drained=True)
    assert (drained.state, dict(drained.extra)) == ("draining", {"pid_started": 7, DRAINED: True})
    again = standing(drained, "serving", drained=False)
    assert (again.state, dict(again.extra)) == ("serving", {"pid_started": 7})
