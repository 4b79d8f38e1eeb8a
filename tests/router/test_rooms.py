"""A client's room is held by one request at a time, and never for longer than that."""

from __future__ import annotations

import asyncio

import pytest

from pdcore.errors import ApiError, StoreUnavailable
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Committed, Condition, Delete, LeaseId, Write
from pdcore.router.chance import fresh_room
from pdcore.router.rooms import ClientRooms
from tests.router.fleet import SPACE

pytestmark = pytest.mark.unit

KEY = f"{SPACE.side}client_rooms/5"


class Store(MemoryStore):
    """A keyspace whose deletes can fail or hang."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False
        self.hanging = False

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        if any(isinstance(write, Delete) for write in writes):
            if self.failing:
                raise StoreUnavailable("away")
            if self.hanging:
                await asyncio.Event().wait()
        return await super().commit(conditions, writes)


def rooms(store: MemoryStore, lease: LeaseId | None, skipped: list[int]) -> ClientRooms:
    return ClientRooms(store, SPACE, lease=lambda: lease, on_skipped=lambda: skipped.append(1))


def test_fresh_rooms_are_63_bits_never_zero_and_never_the_same() -> None:
    made = {fresh_room() for _ in range(1000)}
    assert len(made) == 1000
    assert all(1 <= room < 2**63 for room in made)


async def test_two_routers_never_hold_one_room() -> None:
    store, skipped = MemoryStore(), list[int]()
    lease = await store.grant(60)
    here, there = rooms(store, lease, skipped), rooms(store, lease, skipped)
    async with here.claimed(5) as release:
        for other in (here, there):
            with pytest.raises(ApiError, match="in use"):
                async with other.claimed(5):
                    pytest.fail("held twice")
        await release()
        async with there.claimed(5):
            assert await store.get(KEY)
    assert await store.get(KEY) is None
    assert skipped == []


async def test_without_a_lease_the_room_is_held_here_only_and_counted() -> None:
    store, skipped = MemoryStore(), list[int]()
    here = rooms(store, None, skipped)
    async with here.claimed(5):
        with pytest.raises(ApiError):
            async with here.claimed(5):
                pytest.fail("held twice")
    assert skipped == [1]


@pytest.mark.parametrize("trouble", ["failing", "hanging"])
async def test_a_claim_that_could_not_be_taken_back_does_not_lock_the_room_here(trouble: str) -> None:
    store, skipped = Store(), list[int]()
    here = rooms(store, await store.grant(60), skipped)
    async with here.claimed(5):
        setattr(store, trouble, True)
    assert await store.get(KEY)
    setattr(store, trouble, False)
    async with here.claimed(5):
        pass
    assert await store.get(KEY) is None
