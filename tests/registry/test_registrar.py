"""The registrar on a real etcd with real processes: deaths, restarts, lost keys and leases, supersession."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from pdcore.errors import ConfigError
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.registration import Registration
from pdcore.registry.store import Delete
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DepartureRecord, InstanceRecord, RankRecord
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.parents import has_ended, parent, rank
from tests.support.processes import free_port
from tests.support.registrations import (
    FIRST,
    SECOND,
    draining,
    instance_record,
    rank_record,
    records,
    spec,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

START_S = 20.0
INSTANCE, RANK, RANK_2, DEPARTURE = "instances/d0", "ranks/d0/0.0.0", "ranks/d0/1.0.0", "departures/d0"


@pytest.fixture
async def store(shared_etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    async with EtcdStore((shared_etcd.endpoint,), timeout_s=3.0) as opened:
        yield opened
        leftovers = (await opened.list("/pdcore/test/")).entries
        for key in leftovers:
            await opened.commit((), (Delete(key),))


async def keys(store: EtcdStore) -> set[str]:
    return set(await records(store))


async def put_one(registration: Registration, incarnation: str) -> InstanceRecord:
    """Register an instance of one rank, and wait until it stands."""
    record = instance_record(incarnation)
    registration.put(record, {FIRST: rank_record(incarnation)})
    await registration.wait_registered(START_S)
    return record


async def test_killed_parent_is_withdrawn_with_a_departure_and_its_ranks_die(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    with parent(spec(shared_etcd.url, "a"), ranks=2) as running:
        ranks = running.wait_registered()["ranks"]
        assert {INSTANCE, RANK, RANK_2} <= await keys(store)
        killed_at = time.monotonic()
        running.kill()
        await eventually(lambda: _only_departure(store), 1.0, "keys gone")
        assert time.monotonic() - killed_at < 1.0
        departure = (await records(store))[DEPARTURE]
        assert isinstance(departure, DepartureRecord)
        assert (departure.incarnation, departure.reason) == ("a", "died")
        for pid in ranks:
            await eventually(partial(has_ended, pid), 1.0, "rank killed")


async def test_whoever_starts_after_a_kill_under_another_id_has_the_seat_of_the_one_killed(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    with contextlib.ExitStack() as ended_last:
        both = [parent(spec(shared_etcd.url, name, instance_id=name)) for name in ("first", "second")]
        first, second = map(ended_last.enter_context, both)
        newcomer = ended_last.enter_context(parent(spec(shared_etcd.url, "new", instance_id="new")))
        first.wait_registered()
        second.wait_registered()
        assert await seats(store) == {"first": 0, "second": 1}
        first.kill()
        await eventually(lambda: _gone(store, "instances/first"), 1.0, "keys gone")
        newcomer.wait_registered()
        assert await seats(store) == {"new": 0, "second": 1}


@pytest.mark.cluster
async def test_eight_that_start_at_once_have_eight_seats_and_one_lost_with_its_registrar_is_replaced(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    with contextlib.ExitStack() as ended_last:
        names = [f"p{number}" for number in range(8)]
        eight = [
            ended_last.enter_context(parent(spec(shared_etcd.url, name, instance_id=name))) for name in names
        ]
        for one in eight:
            one.go()
        for one in eight:
            one.wait("claimed")
            one.registered = one.wait("registered")
        before = await seats(store)
        assert set(before) == set(names)
        assert set(before.values()) == set(range(8))
        os.kill(eight[3].registered["registrar"], signal.SIGSTOP)
        eight[3].process.kill()
        await eventually(lambda: _gone(store, "instances/p3"), 10.0, "its lease has ended")
        newcomer = ended_last.enter_context(parent(spec(shared_etcd.url, "new", instance_id="new")))
        newcomer.wait_registered()
        assert (await seats(store))["new"] == before["p3"]
        os.kill(eight[3].registered["registrar"], signal.SIGCONT)


async def seats(store: EtcdStore) -> dict[str, int | None]:
    """Who has which seat, by the records."""
    found = await records(store)
    return {
        key.removeprefix("instances/"): record.seat
        for key, record in found.items()
        if isinstance(record, InstanceRecord)
    }


async def _only_departure(store: EtcdStore) -> bool:
    return await keys(store) == {DEPARTURE}


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.cluster)])
async def test_restarts_at_one_address_are_each_registered_at_once(
    store: EtcdStore, shared_etcd: EtcdServer, times: int
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as ended_last:
        following = ended_last.enter_context(parent(spec(shared_etcd.url, "run-0"), url=url))
        for number in range(times):
            running = following
            following = ended_last.enter_context(parent(spec(shared_etcd.url, f"run-{number + 1}"), url=url))
            assert running.wait_registered()["took_s"] < 1.0
            found = await records(store)
            instance, rank_found = found[INSTANCE], found[RANK]
            assert isinstance(instance, InstanceRecord)
            assert isinstance(rank_found, RankRecord)
            assert {instance.incarnation, rank_found.incarnation} == {f"run-{number}"}
            running.kill()  # and the next one starts at once: it races with this one's registrar


async def test_dead_rank_is_withdrawn_at_once_and_the_instance_stays(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    async with Registration(spec(shared_etcd.url, "a")) as registration:
        await registration.claim()
        with rank(registration) as pid, rank(registration, SECOND):
            registration.put(
                instance_record("a", ranks=2), {FIRST: rank_record("a"), SECOND: rank_record("a", 7002)}
            )
            await registration.wait_registered(START_S)
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: _gone(store, RANK), 0.5, "rank withdrawn")
            found = await records(store)
            assert found.keys() >= {INSTANCE, RANK_2}
            departure = found[DEPARTURE]
            assert isinstance(departure, DepartureRecord)
            assert departure.reason == "died"
            await eventually(lambda: registration.withdrawn == ("0.0.0",), 1.0, "parent told")


async def _gone(store: EtcdStore, key: str) -> bool:
    return key not in await keys(store)


async def test_leaving_withdraws_everything_with_its_reason(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    async with Registration(spec(shared_etcd.url, "a")) as registration:
        await registration.claim()
        await put_one(registration, "a")
        assert await registration.leave("drained")
        found = await records(store)
        departure = found[DEPARTURE]
        assert found.keys() == {DEPARTURE}
        assert isinstance(departure, DepartureRecord)
        assert departure.reason == "drained"


async def test_leaving_the_block_on_an_error_withdraws_and_lets_the_error_through(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    async def fail_while_registered() -> None:
        async with Registration(spec(shared_etcd.url, "a")) as registration:
            await registration.claim()
            await put_one(registration, "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_registered()
    assert await keys(store) == {DEPARTURE}


async def test_newest_record_stands(store: EtcdStore, shared_etcd: EtcdServer) -> None:
    async with Registration(spec(shared_etcd.url, "a")) as registration:
        await registration.claim()
        record = await put_one(registration, "a")
        for _ in range(20):
            registration.put(record, {FIRST: rank_record("a")})
        registration.put(draining(record), {})
        revision = await registration.wait_registered(5)
        found = await records(store)
        instance = found[INSTANCE]
        assert isinstance(instance, InstanceRecord)
        assert (instance.state, RANK in found) == ("draining", False)
        stored = await store.get("/pdcore/test/view/" + INSTANCE)
        assert stored is not None
        assert stored.mod_revision == revision


async def test_deleted_keys_and_revoked_leases_come_back(store: EtcdStore, shared_etcd: EtcdServer) -> None:
    ttl_s = 3
    async with Registration(spec(shared_etcd.url, "a", ttl_s=ttl_s)) as registration:
        await registration.claim()
        await put_one(registration, "a")
        keyspace = Keyspace(cluster="test")
        for key in (keyspace.view + RANK, keyspace.view + INSTANCE, keyspace.claim("d0")):
            await store.commit((), (Delete(key),))
            await eventually(partial(store.get, key), ttl_s / 3 + 1, f"{key} back")
        for key in (keyspace.view + INSTANCE, keyspace.claim("d0")):
            stored = await store.get(key)
            assert stored is not None
            assert stored.lease is not None
            await store.revoke(stored.lease)
            await eventually(partial(store.get, key), ttl_s / 3 + 1, f"{key} back after its lease")
        assert {INSTANCE, RANK} <= await keys(store)
        assert DEPARTURE not in await keys(store)


async def test_killed_registrar_is_replaced_without_a_gap(store: EtcdStore, shared_etcd: EtcdServer) -> None:
    async with Registration(spec(shared_etcd.url, "a", ttl_s=5)) as registration:
        await registration.claim()
        with rank(registration) as pid:
            await put_one(registration, "a")
            before = await store.get("/pdcore/test/view/" + INSTANCE)
            first = registration.registrar_pid
            assert before is not None
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: registration.registrar_pid not in {None, first}, 5, "another registrar")
            await registration.wait_registered(5)
            after = await store.get("/pdcore/test/view/" + INSTANCE)
            assert after is not None
            assert after.create_revision == before.create_revision
            assert after.lease != before.lease
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: _gone(store, RANK), 1.0, "the new one watches the rank")


async def test_signals_to_the_process_group_do_not_end_the_registrar(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    async with Registration(spec(shared_etcd.url, "a")) as registration:
        await registration.claim()
        pid = registration.registrar_pid
        assert pid is not None
        assert os.getsid(pid) == pid
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        await put_one(registration, "a")
        assert registration.registrar_pid == pid


async def test_newer_start_supersedes_an_incumbent_it_cannot_reach(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    async with Registration(spec(shared_etcd.url, "old", ttl_s=3)) as old:
        await old.claim()
        # Before its first record nobody can tell where the old one runs: the newest claim wins.
        async with Registration(spec(shared_etcd.url, "new")) as new:
            await new.claim()
            await put_one(new, "new")
            async with asyncio.timeout(5):
                superseded = await old.wait_superseded()
            assert superseded.holder == "new"
            old.put(instance_record("old"), {})
            found = (await records(store))[INSTANCE]
            assert isinstance(found, InstanceRecord)
            assert found.incarnation == "new"


async def test_living_incumbent_is_refused_until_told_to_take_over(
    store: EtcdStore, shared_etcd: EtcdServer
) -> None:
    with parent(spec(shared_etcd.url, "old", ttl_s=3)) as incumbent:
        incumbent.wait_registered()
        with parent(spec(shared_etcd.url, "new")) as refused:
            refused.go()
            assert refused.process.wait(START_S) == 2
            errors = refused.errors()
            assert (
                errors.strip().splitlines()[-1].startswith("instance d0 is in use: incarnation old runs on")
            )
            assert "--take-over" in errors
        with parent(spec(shared_etcd.url, "new", take_over=True)) as taker:
            taker.wait_registered()
            assert incumbent.wait("superseded")["holder"] == "new"
            assert incumbent.process.wait(5) == 3
            found = await records(store)
            departure, instance = found[DEPARTURE], found[INSTANCE]
            assert isinstance(departure, DepartureRecord)
            assert (departure.incarnation, departure.reason) == ("old", "ordered")
            assert isinstance(instance, InstanceRecord)
            assert instance.incarnation == "new"


async def test_stopped_rank_is_withdrawn_and_put_back(store: EtcdStore, shared_etcd: EtcdServer) -> None:
    async with Registration(spec(shared_etcd.url, "a", ttl_s=1)) as registration:
        await registration.claim()
        with rank(registration) as pid:
            await put_one(registration, "a")
            os.kill(pid, signal.SIGSTOP)
            await eventually(lambda: _gone(store, RANK), 4.0, "silent rank withdrawn")
            departure = (await records(store))[DEPARTURE]
            assert isinstance(departure, DepartureRecord)
            assert departure.reason == "silent"
            os.kill(pid, signal.SIGCONT)
            await eventually(lambda: _stands(store), 1.0, "rank put back")


async def _stands(store: EtcdStore) -> bool:
    return await keys(store) == {INSTANCE, RANK}


async def test_store_away_at_the_start_and_later_heals_by_itself(own_etcd: EtcdServer) -> None:
    own_etcd.stop()
    async with Registration(spec(own_etcd.url, "a", ttl_s=5)) as registration:
        await eventually(lambda: registration.store_error, START_S, "store away")
        registration.put(instance_record("a"), {FIRST: rank_record("a")})
        assert not registration.is_registered
        own_etcd.start()
        await registration.wait_registered(5)
        assert registration.store_error is None
        own_etcd.stop()
        await eventually(lambda: registration.store_error, 6, "store away again")
        own_etcd.wipe()
        own_etcd.start()
        async with EtcdStore((own_etcd.endpoint,), timeout_s=3.0) as store:
            await eventually(lambda: _stands(store), 5, "registered in the empty store")


async def test_leaving_with_the_store_away_is_bounded(own_etcd: EtcdServer) -> None:
    async with Registration(spec(own_etcd.url, "a", timeout_s=0.5)) as registration:
        await registration.claim()
        await put_one(registration, "a")
        own_etcd.pause()
        started = time.monotonic()
        assert not await registration.leave("left", timeout_s=1.0)
        assert time.monotonic() - started < 3.0
        own_etcd.resume()


async def test_parent_dying_while_the_store_is_away_still_ends_its_ranks_and_registrar(
    own_etcd: EtcdServer,
) -> None:
    with parent(spec(own_etcd.url, "a", ttl_s=2, timeout_s=0.5)) as running:
        running.wait_registered()
        own_etcd.kill()
        running.kill()
        # close() waits for both


async def test_a_wrong_store_url_is_one_sentence() -> None:
    async with Registration(spec("consul://127.0.0.1:1", "a")) as registration:
        with pytest.raises(ConfigError, match="--store"):
            await registration.claim()
