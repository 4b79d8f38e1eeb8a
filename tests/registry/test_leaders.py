"""A leader's word in the keyspace: there while it lives, under its claim, and read by whoever looks for it."""

from __future__ import annotations

import pytest

from pdcore.beside import running_beside
from pdcore.clock import SystemClock
from pdcore.registry import leaders
from pdcore.registry.desired import Fence
from pdcore.registry.leaders import LeaderWord, MalformedWord, find
from pdcore.registry.memory import MemoryStore
from pdcore.registry.standing_word import StandingWord
from pdcore.registry.store import Delete, Put
from pdcore.topology.keys import Keyspace
from tests.support.eventually import eventually

pytestmark = pytest.mark.unit

SPACE = Keyspace(cluster="test")
WORD = LeaderWord(
    incarnation="one",
    url="http://u",
    parents="tcp://p",
    dispatch="tcp://d",
    rendezvous="tcp://r",
    shape="tp=2",
)
FENCE = Fence(keyspace=SPACE, instance_id="p0", incarnation="one")


def announcement(store: MemoryStore) -> StandingWord:
    return leaders.announcement(store, FENCE, WORD, ttl_s=5, clock=SystemClock())


async def claim(store: MemoryStore, incarnation: str) -> None:
    await store.commit((), (Put(SPACE.claim("p0"), incarnation.encode()),))


async def test_a_word_stands_on_a_lease_while_its_leader_lives() -> None:
    async with MemoryStore() as store:
        await claim(store, "one")
        said = announcement(store)
        async with running_beside(said.keep()):
            await eventually(lambda: find(store, SPACE, "p0"), 5, "the word")
            stored = await store.get(SPACE.leader("p0"))
            assert stored is not None
            assert stored.lease is not None
        assert await find(store, SPACE, "p0") == WORD
        await said.withdraw()
        assert await find(store, SPACE, "p0") is None


async def test_a_word_of_a_leader_without_the_claim_is_neither_said_nor_heard() -> None:
    async with MemoryStore() as store:
        await claim(store, "two")
        await announcement(store).keep()
        assert await store.get(SPACE.leader("p0")) is None
        await store.commit((), (Put(SPACE.leader("p0"), leaders.encode(WORD)),))
        assert await find(store, SPACE, "p0") is None


async def test_a_word_that_is_gone_is_said_again() -> None:
    async with MemoryStore() as store:
        await claim(store, "one")
        said = announcement(store)
        async with running_beside(said.keep()):
            await eventually(lambda: find(store, SPACE, "p0"), 5, "the word")
            await store.commit((), (Delete(SPACE.leader("p0")),))
            await eventually(lambda: find(store, SPACE, "p0"), 10, "the word again")


@pytest.mark.parametrize("garbage", [b"", b"{}", b"[1]", b"\xff", b"x" * 5000, leaders.encode(WORD)[:-1]])
async def test_garbage_is_no_word(garbage: bytes) -> None:
    async with MemoryStore() as store:
        await claim(store, "one")
        await store.commit((), (Put(SPACE.leader("p0"), garbage),))
        with pytest.raises(MalformedWord):
            await find(store, SPACE, "p0")
