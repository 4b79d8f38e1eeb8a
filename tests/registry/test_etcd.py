"""The etcd driver keeps the store contract on a real server, and to its own promises when the server fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from pdcore.errors import StoreRefused, StoreUnavailable
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.revisions import RevisionGrouper, key_range, key_text
from pdcore.registry.etcd.watch import QUEUE_LIMIT, Patience, Stream
from pdcore.registry.store import Alive, Change, Delete, Put, Revision, ValueIs
from tests.registry.fault_contract import FaultContract
from tests.registry.load_contract import LoadContract, put_many
from tests.registry.store_contract import EtcdFactory, OwnEtcdFactory, StoreContract, next_revision, put
from tests.support.etcd_server import EtcdServer, etcd_server, require_etcd
from tests.support.eventually import eventually
from tests.support.network import Relay
from tests.support.processes import free_port

SHORT = Patience(ping_s=0.3, answer_s=0.3)


@pytest.fixture
def store_factory(etcd_endpoint: str) -> EtcdFactory:
    return EtcdFactory(etcd_endpoint)


@pytest.mark.contract
@pytest.mark.integration
class TestEtcdStore(StoreContract, LoadContract):
    """The suites against a server."""


@pytest.fixture
async def faulty_factory(own_etcd: EtcdServer) -> AsyncIterator[OwnEtcdFactory]:
    async with Relay.to(own_etcd.endpoint) as relay:
        yield OwnEtcdFactory(own_etcd, relay)


@pytest.mark.contract
@pytest.mark.integration
class TestFaultyEtcdStore(FaultContract):
    """The suite against a server of its own, behind a network that can be cut."""


@pytest.mark.unit
def test_a_range_covers_exactly_a_prefix() -> None:
    assert key_range("/a/") == (b"/a/", b"/a0")
    assert key_range("") == (b"\0", b"\0")
    assert key_text(b"\xff") == "\\xff"


def _events(*revisions: int) -> list[wire.Event]:
    return [wire.Event(kv=wire.KeyValue(key=b"k", mod_revision=revision)) for revision in revisions]


def _told(revisions: list[Revision]) -> list[tuple[int, int]]:
    return [(revision.revision, len(revision.changes)) for revision in revisions]


@pytest.mark.unit
def test_a_revision_spread_over_fragments_comes_out_whole() -> None:
    grouper = RevisionGrouper(4)
    assert _told(grouper.add(_events(5, 6, 6), fragment=True)) == [(5, 1)]
    assert _told(grouper.add(_events(6, 6), fragment=True)) == []
    assert _told(grouper.add(_events(6, 7, 8, 8), fragment=False)) == [(6, 5), (7, 1), (8, 2)]
    assert _told(grouper.add([], fragment=False)) == []


@pytest.mark.unit
def test_events_delivered_before_are_dropped() -> None:
    grouper = RevisionGrouper(4)
    assert _told(grouper.add(_events(3, 4, 5), fragment=False)) == [(5, 1)]
    assert _told(grouper.add(_events(5, 4, 6, 5), fragment=False)) == [(6, 1)]


class _EndlessCall:
    """A watch call with always one more answer."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self) -> wire.WatchResponse:
        self.reads += 1
        assert self.reads < 1000, "reading without bound"
        return wire.WatchResponse(header=wire.Header(revision=self.reads))

    async def write(self, request: wire.WatchRequest) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError


@pytest.mark.unit
async def test_a_consumer_that_does_not_read_bounds_what_is_read_for_it() -> None:
    call = _EndlessCall()
    stream = Stream(call, "a:1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stream.read()
    assert call.reads == QUEUE_LIMIT + 1
    first = await stream.answer(1)
    assert first is not None
    assert first.header.revision == 1


@pytest.mark.integration
async def test_without_a_server_every_call_says_so_in_time() -> None:
    began = time.monotonic()
    async with EtcdStore((f"127.0.0.1:{free_port()}",), timeout_s=1) as store:
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
    assert time.monotonic() - began < 3


@pytest.mark.integration
async def test_a_stopped_server_is_noticed_by_deadlines_and_by_silence(own_etcd: EtcdServer) -> None:
    async with EtcdStore((own_etcd.endpoint,), timeout_s=0.5, patience=SHORT) as store:
        revision = await put(store, "k", b"1")
        async with store.watch("k", revision) as messages:
            await anext(messages)
            own_etcd.pause()
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="silent"):
                await next_revision(messages)
            assert time.monotonic() - began < 1.5
        with pytest.raises(StoreUnavailable):
            await store.commit((), (Put("k", b"2"),))
        own_etcd.resume()
        # The transaction that timed out may have happened.
        await eventually(lambda: _holds(store, "k", (b"1", b"2")), 5, "the server answers again")


async def _holds(store: EtcdStore, key: str, values: tuple[bytes, ...]) -> bool:
    try:
        held = await store.get(key)
    except StoreUnavailable:
        return False
    return held is not None and held.value in values


@pytest.mark.integration
async def test_a_dead_member_is_left_for_the_next_one(etcd_endpoint: str) -> None:
    key = EtcdFactory(etcd_endpoint).prefix
    dead = f"127.0.0.1:{free_port()}"
    async with EtcdStore((dead, etcd_endpoint), timeout_s=3, first=0) as store:
        assert await store.get(key) is None
        assert repr(store) == f"<EtcdStore {dead},{etcd_endpoint} now {etcd_endpoint}>"


@pytest.mark.integration
async def test_a_silent_member_leaves_time_for_the_next_one(etcd_endpoint: str) -> None:
    key = EtcdFactory(etcd_endpoint).prefix
    async with (
        Relay.to(etcd_endpoint) as silent,
        EtcdStore((silent.endpoint, etcd_endpoint), timeout_s=2, first=0) as store,
    ):
        assert await store.get(key) is None
        silent.pause()  # the connection stays, and says nothing any more
        assert await store.get(key) is None


@pytest.mark.integration
async def test_a_transaction_is_never_repeated_by_itself(etcd_endpoint: str) -> None:
    key = EtcdFactory(etcd_endpoint).prefix
    dead = f"127.0.0.1:{free_port()}"
    async with EtcdStore((dead, etcd_endpoint), timeout_s=3, first=0) as store:
        with pytest.raises(StoreUnavailable):
            await store.commit((), (Put(key, b"1"),))
        assert (await store.commit((), (Put(key, b"2"),))).succeeded


@pytest.mark.integration
async def test_a_watch_that_breaks_leaves_its_member_for_the_next_one(etcd_endpoint: str) -> None:
    prefix = EtcdFactory(etcd_endpoint).prefix
    dead = f"127.0.0.1:{free_port()}"
    async with EtcdStore((dead, etcd_endpoint), timeout_s=3, first=0) as store:
        with pytest.raises(StoreUnavailable):
            async with store.watch(prefix, 0) as messages:
                await anext(messages)
        async with store.watch(prefix, 0) as messages:
            assert isinstance(await anext(messages), Alive)


@pytest.mark.integration
async def test_a_list_overtaken_by_compaction_starts_over(shared_etcd: EtcdServer) -> None:
    factory = EtcdFactory(shared_etcd.endpoint)
    keys = [f"{factory.prefix}{number:03}" for number in range(100)]
    async with (
        Relay.to(shared_etcd.endpoint) as relay,
        EtcdStore((relay.endpoint,), timeout_s=10, page_keys=2) as store,
        factory.open() as other,
    ):
        await put_many(other, keys, b"old")
        relay.delay_s = 0.005
        before = shared_etcd.calls("Range")
        async with asyncio.TaskGroup() as group:
            listing = group.create_task(store.list(factory.prefix))
            await eventually(lambda: shared_etcd.calls("Range") > before + 2, 5, "the list is under way")
            await put_many(other, keys, b"new")
            await factory.compact(await put(other, keys[0], b"newest"))
        listed = listing.result()
        assert list(listed.entries) == keys
        assert {stored.value for stored in listed.entries.values()} == {b"new", b"newest"}
        assert shared_etcd.calls("Range") > before + len(keys) / 2


@pytest.mark.integration
@pytest.mark.slow
async def test_a_full_store_refuses_puts_and_goes_on_with_everything_else() -> None:
    with etcd_server(extra=("--quota-backend-bytes", "65536")) as server:
        async with EtcdStore((server.endpoint,), timeout_s=5) as store:
            lease = await store.grant(60)
            position = (await store.commit((), (Put("/kept", b"v", lease), Put("/gone", b"v")))).revision
            with pytest.raises(StoreRefused, match="space exceeded"):
                await _fill(store)
            for refused in ((Put("/kept", b"w"),), (Delete("/gone"), Put("/kept", b"w"))):
                with pytest.raises(StoreRefused, match="space exceeded"):
                    await store.commit((), refused)
            assert await store.keep_alive(lease) > 50
            assert (await store.commit((ValueIs("/gone", b"v"),), (Delete("/gone"),))).succeeded
            assert "/kept" in (await store.list("/kept")).entries
            async with store.watch("/gone", position) as messages:
                assert (await next_revision(messages)).changes == (Change("/gone", None),)
            await store.revoke(lease)
            assert await store.get("/kept") is None


async def _fill(store: EtcdStore) -> None:
    for number in range(100):
        await put(store, f"/filling/{number}", bytes(8_000))


@pytest.mark.integration
async def test_closing_the_store_with_a_silent_peer_does_not_hang(etcd_endpoint: str) -> None:
    async with Relay.to(etcd_endpoint) as relay:
        async with EtcdStore((relay.endpoint,), timeout_s=0.3, patience=SHORT) as store:
            await store.get("k")
            relay.pause()
            with pytest.raises(StoreUnavailable):
                await store.get("k")
            with pytest.raises(StoreUnavailable):
                async with store.watch("k", 0) as messages:
                    await anext(messages)
            began = time.monotonic()
        assert time.monotonic() - began < 1


@pytest.mark.unit
@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_etcd_a_test_is_skipped_and_fails_where_ci_promises_one(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("ETCD_BIN", raising=False)
    with pytest.raises(outcome, match="no etcd program"):
        require_etcd()
