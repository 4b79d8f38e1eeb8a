"""Following: the view equals the store, whatever the store and the network do."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.follower import FIRST_PAUSE_S, LONGEST_PAUSE_S, Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Delete, Put, Store
from pdcore.topology.codec import encode
from pdcore.topology.events import Event, RouterJoined, RouterLost
from pdcore.topology.keys import Keyspace, router
from pdcore.topology.records import RouterRecord
from pdcore.topology.topology import Topology, build
from tests.registry.faulty_store import FaultyStore, HurriedClock
from tests.registry.store_contract import compact_etcd
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually
from tests.support.network import Relay

KEYSPACE = Keyspace(cluster="followed")
VIEW = KEYSPACE.view
STORE_ID = VIEW + "store_id"
WITHIN_S = 10.0


def record(version: str = "1") -> bytes:
    return encode(RouterRecord(url="http://127.0.0.1:1", admin_url="http://127.0.0.1:1", version=version))


async def put_router(store: Store, router_id: str, version: str = "1") -> int:
    return (await store.commit((), (Put(VIEW + router(router_id), record(version)),))).revision


async def delete_router(store: Store, router_id: str) -> int:
    return (await store.commit((), (Delete(VIEW + router(router_id)),))).revision


def has(*router_ids: str) -> Callable[[Topology], bool]:
    """Whether exactly these routers are in the view."""
    return lambda topology: set(topology.routers) == set(router_ids)


class PausesRemembered(HurriedClock):
    """How long a follower waited before each new try."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds <= LONGEST_PAUSE_S:
            self.pauses.append(seconds)
        await super().sleep(seconds)


@dataclass
class Heard:
    """What a subscriber was told."""

    events: list[Event] = field(default_factory=list)
    topologies: list[Topology] = field(default_factory=list)
    calls: int = 0

    def __call__(self, events: tuple[Event, ...], topology: Topology) -> None:
        self.calls += 1
        self.events += events
        self.topologies.append(topology)

    def routers(self) -> list[tuple[str, str, bool]]:
        """Kind, id and coalesced of every event about a router."""
        return [
            (type(event).__name__, event.router_id, event.coalesced)
            for event in self.events
            if isinstance(event, RouterJoined | RouterLost)
        ]


def memory(history: int = 10_000) -> FaultyStore[MemoryStore]:
    return FaultyStore(MemoryStore(alive_s=0.01, history=history))


def follower_of(store: Store, **options: float) -> Follower:
    return Follower(store, KEYSPACE, clock=HurriedClock(), random=random.Random(7), **options)


async def following(follower: Follower, *router_ids: str) -> Topology:
    """Wait until it is connected and has exactly these routers in view."""
    topology = await follower.wait_until(has(*router_ids), WITHIN_S)
    await eventually(lambda: follower.last_error is None, WITHIN_S, "following")
    return topology


async def listed(store: Store) -> Topology:
    """The view as a fresh list tells it."""
    snapshot = await store.list(VIEW)
    return build({key.removeprefix(VIEW): held for key, held in snapshot.entries.items()}, snapshot.revision)


@pytest.mark.unit
class TestFollower:
    """On a memory store that fails on command, with hurried time."""

    async def test_the_first_list_is_told_as_coalesced_events(self) -> None:
        store, heard = memory(), Heard()
        await put_router(store, "a")
        follower = follower_of(store)
        follower.subscribe(heard)
        assert not follower.synced
        assert follower.view_age_s() == float("inf")
        async with follower:
            topology = await follower.wait_until(has("a"), WITHIN_S)
            assert follower.synced
            assert topology == await listed(store)
        assert heard.routers() == [("RouterJoined", "a", True)]

    async def test_a_missing_store_id_is_created_once(self) -> None:
        store = memory()
        async with follower_of(store) as one, follower_of(store) as two:
            await one.wait_until(lambda topology: topology.store_id is not None, WITHIN_S)
            await two.wait_until(lambda topology: topology.store_id is not None, WITHIN_S)
            assert one.topology.store_id == two.topology.store_id
        held = await store.get(STORE_ID)
        assert held is not None
        assert held.create_revision == held.mod_revision

    async def test_every_change_is_told_at_its_revision_and_once(self) -> None:
        store, heard = memory(), Heard()
        async with follower_of(store) as follower:
            await follower.wait_until(has(), WITHIN_S)
            follower.subscribe(heard)
            joined = await put_router(store, "a")
            lost = await delete_router(store, "a")
            await eventually(lambda: len(heard.events) == 2, WITHIN_S)
        assert heard.routers() == [("RouterJoined", "a", False), ("RouterLost", "a", False)]
        assert [event.revision for event in heard.events] == [joined, lost]

    async def test_keys_of_one_lease_go_in_one_call(self) -> None:
        store, heard = memory(), Heard()
        lease = await store.grant(60)
        keys = [VIEW + router(name) for name in ("a", "b")]
        await store.commit((), tuple(Put(key, record(), lease) for key in keys))
        async with follower_of(store) as follower:
            await follower.wait_until(has("a", "b"), WITHIN_S)
            follower.subscribe(heard)
            await store.revoke(lease)
            await follower.wait_until(has(), WITHIN_S)
        assert heard.calls == 1
        assert len(heard.events) == 2

    async def test_nobody_is_called_after_unsubscribing(self) -> None:
        store, heard = memory(), Heard()
        async with follower_of(store) as follower:
            await follower.wait_until(has(), WITHIN_S)
            unsubscribe = follower.subscribe(heard)
            unsubscribe()
            unsubscribe()
            await put_router(store, "a")
            await follower.wait_until(has("a"), WITHIN_S)
        assert heard.calls == 0

    async def test_waiting_ends_with_its_deadline(self) -> None:
        async with follower_of(memory()) as follower:
            with pytest.raises(TimeoutError):
                await follower.wait_until(has("never"), 0.05)

    async def test_a_view_that_was_never_complete_satisfies_nobody(self) -> None:
        store = memory()
        store.down = True
        async with follower_of(store) as follower:
            with pytest.raises(TimeoutError):
                await follower.wait_until(has(), 0.05)

    async def test_a_store_that_is_down_at_the_start_is_followed_once_it_is_up(self) -> None:
        store = memory()
        await put_router(store, "a")
        store.down = True
        async with follower_of(store) as follower:
            await eventually(lambda: follower.last_error == "the store is down", WITHIN_S)
            assert not follower.synced
            store.down = False
            await follower.wait_until(has("a"), WITHIN_S)
            await eventually(lambda: follower.last_error is None, WITHIN_S)
            assert follower.relists_total == 0

    async def test_a_break_is_resumed_without_listing_and_without_loss(self) -> None:
        store, heard = memory(), Heard()
        async with follower_of(store) as follower:
            await put_router(store, "a")
            await following(follower, "a")
            follower.subscribe(heard)
            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            for name in ("b", "c"):
                await put_router(store.store, name)
            await delete_router(store.store, "a")
            assert has("a")(follower.topology)
            store.down = False
            await follower.wait_until(has("b", "c"), WITHIN_S)
            assert (follower.reconnects_total, follower.relists_total) == (1, 0)
        assert heard.routers() == [
            ("RouterJoined", "b", False),
            ("RouterJoined", "c", False),
            ("RouterLost", "a", False),
        ]

    async def test_after_compaction_the_difference_is_told_coalesced(self) -> None:
        store, heard = memory(), Heard()
        async with follower_of(store) as follower:
            await put_router(store, "a")
            await following(follower, "a")
            follower.subscribe(heard)
            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            await put_router(store.store, "b")
            await delete_router(store.store, "b")
            await delete_router(store.store, "a")
            store.store.compact(await put_router(store.store, "c"))
            store.down = False
            await follower.wait_until(has("c"), WITHIN_S)
            assert follower.relists_total == 1
        assert sorted(heard.routers()) == [("RouterJoined", "c", True), ("RouterLost", "a", True)]

    async def test_a_store_that_was_long_away_is_listed_at_once_when_in_doubt(self) -> None:
        store, clock = memory(), PausesRemembered()
        async with Follower(store, KEYSPACE, clock=clock) as follower:
            await following(follower)
            store.down = True
            await eventually(lambda: clock.pauses and clock.pauses[-1] >= LONGEST_PAUSE_S / 2, WITHIN_S)
            store.store.compact(await put_router(store.store, "a"))
            store.down = False
            await follower.wait_until(has("a"), WITHIN_S)
            assert follower.relists_total == 1
            assert clock.pauses[-1] <= FIRST_PAUSE_S

    @pytest.mark.parametrize("later_writes", [0, 100])
    async def test_another_store_behind_the_same_address_is_listed(self, later_writes: int) -> None:
        store = memory()
        async with follower_of(store) as follower:
            await put_router(store, "old")
            before = await following(follower, "old")
            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            store.store.wipe()
            for _ in range(later_writes):  # so many that its revisions overtake the old store's
                await put_router(store.store, "new")
            store.down = False
            expected = has("new") if later_writes else has()
            topology = await follower.wait_until(expected, WITHIN_S)
            assert topology.store_id not in {None, before.store_id}
            assert follower.relists_total == 1

    async def test_a_store_replaced_at_the_last_moment_tells_nothing_as_if_it_were_the_old_one(self) -> None:
        store, heard = memory(), Heard()
        async with follower_of(store) as follower:
            await put_router(store, "old")
            await following(follower, "old")
            follower.subscribe(heard)

            async def replaced_and_overtaken() -> None:
                store.store.wipe()
                for _ in range(100):
                    await put_router(store.store, "new")

            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            store.before_watch = replaced_and_overtaken
            store.down = False
            await follower.wait_until(has("new"), WITHIN_S)
            assert (follower.relists_total, follower.repairs_total) == (1, 0)
        assert sorted(heard.routers()) == [("RouterJoined", "new", True), ("RouterLost", "old", True)]

    async def test_a_store_id_deleted_or_replaced_under_the_watch_is_renewed(self) -> None:
        store = memory()
        async with follower_of(store) as follower:
            first = await follower.wait_until(lambda topology: topology.store_id is not None, WITHIN_S)
            await store.commit((), (Delete(STORE_ID),))
            second = await follower.wait_until(
                lambda topology: topology.store_id not in {None, first.store_id}, WITHIN_S
            )
            await store.commit((), (Put(STORE_ID, b'"another"'),))
            await follower.wait_until(lambda topology: topology.store_id == "another", WITHIN_S)
            await eventually(lambda: follower.relists_total == 2, WITHIN_S)
            assert second.store_id != "another"

    async def test_a_garbage_store_id_is_followed_all_the_same(self) -> None:
        store = memory()
        await store.commit((), (Put(STORE_ID, b"\xff not an id"),))
        async with follower_of(store) as follower:
            await put_router(store, "a")
            await follower.wait_until(has("a"), WITHIN_S)
            assert follower.relists_total == 0

    async def test_a_lost_event_is_repaired_and_counted(self) -> None:
        store, heard = memory(), Heard()
        async with follower_of(store, reconcile_s=5.0) as follower:
            await follower.wait_until(has(), WITHIN_S)
            follower.subscribe(heard)
            store.drop_revisions = 1
            await put_router(store, "lost")
            await put_router(store, "seen")
            await follower.wait_until(has("lost", "seen"), WITHIN_S)
            assert follower.repairs_total == 1
            await put_router(store, "later")
            await follower.wait_until(has("lost", "seen", "later"), WITHIN_S)
            assert follower.topology == await listed(store)
        assert heard.routers() == [
            ("RouterJoined", "seen", False),
            ("RouterJoined", "lost", True),
            ("RouterJoined", "later", False),
        ]

    async def test_reconciling_a_busy_store_repairs_nothing(self) -> None:
        store = memory()
        async with follower_of(store, reconcile_s=0.5) as follower:
            await follower.wait_until(has(), WITHIN_S)
            before = store.lists_total
            number = 0
            while store.lists_total < before + 20:
                await put_router(store, f"r{number % 7}", str(number))
                await delete_router(store, f"r{(number + 3) % 7}")
                number += 1
                await asyncio.sleep(0)
            final = await put_router(store, "last")
            await follower.wait_until(lambda topology: topology.revision >= final, WITHIN_S)
            assert follower.topology == await listed(store)
            assert follower.repairs_total == 0

    async def test_a_change_during_the_listing_is_no_difference(self) -> None:
        store = memory()
        async with follower_of(store, reconcile_s=1.0) as follower:
            await following(follower)
            before = store.lists_total

            async def change_and_follow() -> None:
                revision = await put_router(store.store, "busy", str(store.lists_total))
                await follower.wait_until(lambda topology: topology.revision >= revision, WITHIN_S)

            store.during_list = change_and_follow
            await eventually(lambda: store.lists_total > before + 5, WITHIN_S)
            store.during_list = None
            assert follower.repairs_total == 0

    @pytest.mark.slow
    async def test_a_proof_of_life_that_overtakes_a_change_repairs_nothing(self) -> None:
        store = memory()
        async with Follower(store, KEYSPACE, clock=HurriedClock(speed=2.0), reconcile_s=0.2) as follower:
            await following(follower)
            store.hold_revisions = True
            await put_router(store, "late")
            before = store.lists_total
            await eventually(lambda: store.lists_total > before, WITHIN_S)
            store.hold_revisions = False
            await following(follower, "late")
            await eventually(lambda: store.lists_total > before + 2, WITHIN_S)
            assert follower.repairs_total == 0

    async def test_a_change_delivered_twice_is_told_once(self) -> None:
        store, heard = memory(), Heard()
        store.repeat_revisions = True
        async with follower_of(store) as follower:
            await following(follower)
            follower.subscribe(heard)
            await put_router(store, "a")
            await delete_router(store, "a")
            revision = await put_router(store, "a")
            await follower.wait_until(lambda topology: topology.revision >= revision, WITHIN_S)
            assert follower.statistics().revision == revision
        assert [kind for kind, _, _ in heard.routers()] == ["RouterJoined", "RouterLost", "RouterJoined"]

    async def test_a_restored_store_that_is_behind_is_listed(self) -> None:
        store = memory()
        async with follower_of(store) as follower:
            for n in range(20):
                await put_router(store, "a", str(n))
            await following(follower, "a")
            held = await store.get(STORE_ID)
            assert held is not None
            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            store.store.wipe()
            await store.store.commit((), (Put(STORE_ID, held.value),))
            await put_router(store.store, "restored")
            store.down = False
            await following(follower, "restored")
            assert follower.relists_total == 1

    async def test_a_resumption_is_reconciled_soon(self) -> None:
        store = memory()
        async with follower_of(store, reconcile_s=1e9) as follower:
            await following(follower)
            before = store.lists_total
            store.break_next_message = True
            await eventually(lambda: store.lists_total > before, WITHIN_S)
            assert (follower.reconnects_total, follower.relists_total) == (1, 0)

    async def test_a_quiet_prefix_is_not_listed_again_for_compaction_elsewhere(self) -> None:
        store = memory()
        async with follower_of(store, reconcile_s=1.0) as follower:
            await follower.wait_until(has(), WITHIN_S)
            other = [(await store.commit((), (Put("/elsewhere", b"v"),))).revision for _ in range(50)][-1]
            await eventually(lambda: follower.statistics().revision >= other, WITHIN_S)
            store.store.compact(other)
            store.break_next_message = True
            await eventually(lambda: follower.reconnects_total == 1, WITHIN_S)
            await put_router(store, "a")
            await follower.wait_until(has("a"), WITHIN_S)
            assert follower.relists_total == 0

    async def test_a_subscriber_that_raises_ends_the_owners_block(self) -> None:
        store = memory()

        def broken(events: tuple[Event, ...], topology: Topology) -> None:
            raise ZeroDivisionError("a bug")

        with pytest.raises(ExceptionGroup) as raised:
            await _follow_with(follower_of(store), store, broken)
        assert raised.group_contains(ZeroDivisionError)

    async def test_an_error_of_the_owners_block_leaves_as_it_is(self) -> None:
        with pytest.raises(LookupError):
            await _fail_inside(follower_of(memory()))

    async def test_the_view_ages_while_the_store_is_silent(self) -> None:
        store, clock = memory(), HurriedClock(speed=1.0)
        async with Follower(store, KEYSPACE, clock=clock) as follower:
            await eventually(lambda: follower.last_error is None, WITHIN_S)
            store.down = True
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            clock.ahead_s = 60.0
            assert 60 <= follower.view_age_s() < 70
            assert follower.statistics().view_age_s >= 60
            assert repr(follower).startswith(
                "<Follower of /pdcore/followed/view/ not following (the store is"
            )
            store.down = False
            await eventually(lambda: follower.view_age_s() < 10, WITHIN_S)
            assert follower.statistics().synced

    @pytest.mark.parametrize("seed", range(12))
    async def test_whatever_happens_the_view_ends_equal_to_a_fresh_list(self, seed: int) -> None:
        chance, store, heard = random.Random(seed), memory(history=20), Heard()
        async with follower_of(store) as follower:
            follower.subscribe(heard)
            await follower.wait_until(has(), WITHIN_S)
            for _ in range(60):
                await _something_happens(chance, store)
            store.down = False
            await put_router(store, "last")
            await follower.wait_until(lambda topology: "last" in topology.routers, WITHIN_S)
            assert follower.topology == await listed(store)
            assert follower.repairs_total == 0
        revisions = [topology.revision for topology in heard.topologies]
        assert revisions == sorted(set(revisions))
        assert [event.revision for event in heard.events] == sorted(event.revision for event in heard.events)


async def _something_happens(chance: random.Random, store: FaultyStore[MemoryStore]) -> None:
    name = f"r{chance.randrange(6)}"
    match chance.choices(["put", "delete", "cut", "down", "up", "compact", "wait"], [9, 6, 2, 1, 3, 1, 6])[0]:
        case "put":
            await put_router(store.store, name, str(chance.randrange(1000)))
        case "delete":
            await delete_router(store.store, name)
        case "cut":
            store.break_next_message = True
        case "down":
            store.down = True
        case "up":
            store.down = False
        case "compact":
            store.store.compact(1 << 40)
        case _:
            await asyncio.sleep(chance.choice([0, 0.001, 0.012]))


async def _follow_with(
    follower: Follower,
    store: FaultyStore[MemoryStore],
    on_events: Callable[[tuple[Event, ...], Topology], None],
) -> None:
    async with follower:
        await follower.wait_until(has(), WITHIN_S)
        follower.subscribe(on_events)
        await put_router(store, "a")
        await follower.wait_until(has("never"), WITHIN_S)


async def _fail_inside(follower: Follower) -> None:
    async with follower:
        raise LookupError("the owner's")


@pytest.mark.integration
class TestFollowerOnEtcd:
    """On a real server that is killed, stopped, cut off, compacted and wiped."""

    async def test_the_store_may_be_the_last_to_start(self) -> None:
        with etcd_server(started=False) as server:
            async with (
                open_store(StoreAccess(url=server.url, timeout_s=1)) as store,
                Follower(store, KEYSPACE) as follower,
            ):
                await eventually(
                    lambda: follower.last_error is not None and server.endpoint in follower.last_error,
                    WITHIN_S,
                )
                assert not follower.synced
                await asyncio.to_thread(server.start)
                began = time.monotonic()
                await follower.wait_until(lambda topology: topology.store_id is not None, WITHIN_S)
                assert time.monotonic() - began < 3

    async def test_a_killed_server_that_comes_back_with_its_data_is_resumed(
        self, own_etcd: EtcdServer
    ) -> None:
        heard = Heard()
        async with (
            open_store(StoreAccess(url=own_etcd.url, timeout_s=1)) as store,
            Follower(store, KEYSPACE) as follower,
        ):
            await put_router(store, "a")
            await following(follower, "a")
            follower.subscribe(heard)
            own_etcd.kill()
            await asyncio.to_thread(own_etcd.start)
            async with open_store(StoreAccess(url=own_etcd.url, timeout_s=3)) as fresh:
                revisions = [await put_router(fresh, f"b{n}") for n in range(20)]
            began = time.monotonic()
            await follower.wait_until(lambda topology: topology.revision == revisions[-1], WITHIN_S)
            assert time.monotonic() - began < 3
            assert follower.relists_total == 0
            assert [event.revision for event in heard.events] == revisions

    @pytest.mark.slow
    async def test_a_stopped_server_is_noticed_within_eight_seconds(self, own_etcd: EtcdServer) -> None:
        async with (
            open_store(StoreAccess(url=own_etcd.url, timeout_s=1)) as store,
            Follower(store, KEYSPACE) as follower,
        ):
            await put_router(store, "a")
            await following(follower, "a")
            own_etcd.pause()
            await eventually(lambda: follower.last_error is not None, 8.0, "the silence is noticed")
            assert has("a")(follower.topology)
            own_etcd.resume()
            await eventually(lambda: follower.last_error is None, 3.0, "it is followed again")
            await put_router(store, "b")
            await follower.wait_until(has("a", "b"), 3.0)
            assert follower.relists_total == 0

    async def test_compaction_while_cut_off_is_told_as_the_difference(self, own_etcd: EtcdServer) -> None:
        heard = Heard()
        async with (
            Relay.to(own_etcd.endpoint) as relay,
            open_store(StoreAccess(url=own_etcd.url, timeout_s=3)) as direct,
            EtcdStore((relay.endpoint,), timeout_s=1) as store,
            Follower(store, KEYSPACE) as follower,
        ):
            await put_router(direct, "a")
            await following(follower, "a")
            follower.subscribe(heard)
            relay.refuse()
            await eventually(lambda: follower.last_error is not None, WITHIN_S)
            await delete_router(direct, "a")
            revision = await put_router(direct, "b")
            await asyncio.to_thread(compact_etcd, own_etcd.endpoint, revision)
            relay.allow()
            await follower.wait_until(has("b"), WITHIN_S)
            assert follower.relists_total == 1
        assert sorted(heard.routers()) == [("RouterJoined", "b", True), ("RouterLost", "a", True)]

    async def test_a_server_with_a_new_data_directory_is_another_store(self, own_etcd: EtcdServer) -> None:
        async with (
            open_store(StoreAccess(url=own_etcd.url, timeout_s=1)) as store,
            Follower(store, KEYSPACE) as follower,
        ):
            await put_router(store, "old")
            before = await following(follower, "old")
            own_etcd.stop()
            own_etcd.wipe()
            await asyncio.to_thread(own_etcd.start)
            after = await follower.wait_until(has(), WITHIN_S)
            assert after.store_id not in {None, before.store_id}
            await put_router(store, "new")
            await follower.wait_until(has("new"), WITHIN_S)
            assert follower.repairs_total == 0

    async def test_keys_of_an_expired_lease_go_together(self, own_etcd: EtcdServer) -> None:
        heard = Heard()
        async with (
            open_store(StoreAccess(url=own_etcd.url, timeout_s=1)) as store,
            Follower(store, KEYSPACE) as follower,
        ):
            await follower.wait_until(has(), WITHIN_S)
            follower.subscribe(heard)
            lease = await store.grant(2)
            names = [f"r{number}" for number in range(50)]
            await store.commit((), tuple(Put(VIEW + router(name), record(), lease) for name in names))
            await eventually(lambda: heard.calls == 2, WITHIN_S, "they came and went")
        assert [kind for kind, _, _ in heard.routers()] == ["RouterJoined"] * 50 + ["RouterLost"] * 50
