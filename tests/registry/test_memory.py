"""The memory store keeps the store contract."""

from __future__ import annotations

import pytest

from pdcore.errors import Compacted, StoreUnavailable
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Put
from tests.registry.fault_contract import FaultContract
from tests.registry.load_contract import LoadContract
from tests.registry.store_contract import MemoryFactory, StoreContract, next_revision, put

pytestmark = [pytest.mark.unit, pytest.mark.contract]


@pytest.fixture
def store_factory() -> MemoryFactory:
    return MemoryFactory()


@pytest.fixture
def faulty_factory() -> MemoryFactory:
    return MemoryFactory()


class TestMemoryStore(StoreContract, LoadContract, FaultContract):
    """The suites, in one process and without time passing by itself."""


async def test_a_consumer_further_behind_than_the_history_must_list_again() -> None:
    store = MemoryStore(history=10)
    start = await put(store, "k", b"0")
    async with store.watch("k", start) as messages:
        await anext(messages)
        for n in range(20):
            await put(store, "k", str(n).encode())
        with pytest.raises(Compacted):
            await next_revision(messages)


async def test_wiping_starts_over_and_breaks_watches() -> None:
    store = MemoryStore()
    lease = await store.grant(60)
    written = await store.commit((), (Put("k", b"v", lease),))
    async with store.watch("k", written.revision) as messages:
        await anext(messages)
        store.wipe()
        with pytest.raises(StoreUnavailable):
            await next_revision(messages)
    assert (await store.list("")).revision < written.revision
    assert repr(store) == "<MemoryStore revision=1 keys=0 leases=0>"
