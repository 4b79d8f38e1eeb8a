"""Everybody who starts has a seat of its own, whoever comes for one that went has that one's, and no trouble is worth more."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.clock import SystemClock
from pdcore.config import StoreAccess
from pdcore.errors import LeaseGone, StoreRefused, StoreUnavailable
from pdcore.registry.desired import Fence, Wanted
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.memory import MemoryStore
from pdcore.registry.processes import Processes
from pdcore.registry.redis.driver import RedisStore
from pdcore.registry.registrar_messages import Leave, Start, Want
from pdcore.registry.seats import MAX_FAILURES, MAX_TRIES, Seat, choose, numbered
from pdcore.registry.store import Committed, Condition, Delete, LeaseId, Put, Store, Stored, Write
from pdcore.registry.upkeep import Upkeep
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import InstanceRecord, Role
from tests.support.etcd_server import EtcdServer
from tests.support.faulty_store import FaultyStore, ManualClock
from tests.support.fleet import instance_record
from tests.support.redis_server import redis_server
from tests.support.registrations import records, spec

TRIES = 60
Opened = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@pytest.fixture(
    params=[
        pytest.param("memory", marks=pytest.mark.unit),
        pytest.param("etcd", marks=pytest.mark.integration),
        pytest.param("redis", marks=pytest.mark.integration),
    ]
)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """An empty keyspace in a store of every kind."""
    async with _store(request) as store:
        yield Place(store, f"seats-{uuid.uuid4().hex}")


def _store(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Store]:
    if request.param == "memory":
        return nullcontext(MemoryStore())
    if request.param == "redis":
        return RedisStore(StoreAccess(url=request.getfixturevalue("redis_url"), timeout_s=5))
    server: EtcdServer = request.getfixturevalue("shared_etcd")
    return EtcdStore((server.endpoint,), timeout_s=5.0)


@dataclass
class Place:
    """A keyspace, and hands to register there."""

    store: Store
    cluster: str

    def registrar(self, instance_id: str, **changes: str) -> Registrar:
        return Registrar(self, instance_id, changes)

    async def seats(self) -> dict[str, str]:
        """Who has which seat, by the keys below ``seats/``."""
        prefix = f"{Keyspace(cluster=self.cluster).side}seats/"
        entries = (await self.store.list(prefix)).entries
        return {key.removeprefix(prefix): stored.value.decode() for key, stored in entries.items()}

    async def seat_of(self, instance_id: str) -> int | None:
        """By the instance's record."""
        record = (await records(self.store, self.cluster))[keys.instance(instance_id)]
        assert isinstance(record, InstanceRecord)
        return record.seat


@dataclass
class Registrar:
    """A registrar's loop, driven by hand."""

    place: Place
    instance_id: str
    changes: dict[str, str]
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    version: int = 0

    def __post_init__(self) -> None:
        own = spec(
            "etcd://a",
            self.incarnation,
            cluster=self.place.cluster,
            instance_id=self.instance_id,
            take_over=True,
        )
        clock, wake = SystemClock(), asyncio.Event()
        self.upkeep = Upkeep(
            Start(spec=own, parent_pid=1, claimed=False, predecessor=None),
            self.place.store,
            Processes(20, clock, on_change=wake.set),
            wake=wake,
            clock=clock,
            jitter=random.random,
        )

    async def register(self) -> int | None:
        """Have the record stand; the seat that it says."""
        self.version += 1
        role: Role = "prefill"
        made = instance_record(role, incarnation=self.incarnation, **self.changes)
        self.upkeep.want(Want(version=self.version, instance=codec.encode(made).decode(), ranks={}))
        for _ in range(TRIES):
            await self.upkeep.attempt()
            if self.upkeep.status.version == self.version:
                return await self.place.seat_of(self.instance_id)
        raise AssertionError(f"not registered: {self.upkeep.status}")

    async def lose_lease(self) -> None:
        stored = await self.place.store.get(
            Keyspace(cluster=self.place.cluster).view + keys.instance(self.instance_id)
        )
        assert stored is not None
        assert stored.lease is not None
        await self.place.store.revoke(stored.lease)

    async def leave(self) -> None:
        self.upkeep.leave(Leave(reason="left", timeout_s=5))
        await self.upkeep.run()


@pytest.mark.contract
async def test_eight_that_start_at_once_have_the_eight_lowest_seats(place: Place) -> None:
    starting = [place.registrar(f"p{number}") for number in range(8)]
    seats = await asyncio.gather(*(one.register() for one in starting))
    assert sorted(seats, key=str) == list(range(8))
    assert await place.seats() == {
        f"-/prefill/{seat}": one.instance_id for one, seat in zip(starting, seats, strict=True)
    }


@pytest.mark.contract
async def test_whoever_comes_for_one_that_left_has_its_seat_and_each_group_and_role_its_own(
    place: Place,
) -> None:
    first, second = place.registrar("a"), place.registrar("b")
    assert [await one.register() for one in (first, second)] == [0, 1]
    assert await place.registrar("c", group="g").register() == 0
    await first.leave()
    assert await place.seats() == {"-/prefill/0": "left a", "-/prefill/1": "b", "g/prefill/0": "c"}
    assert await place.registrar("z").register() == 0
    assert await place.registrar("d").register() == 2
    assert await second.register() == 1, "nobody else's changes"


@pytest.mark.contract
async def test_a_seat_that_is_left_is_remembered_for_its_instance_and_for_who_replaces_it(
    place: Place,
) -> None:
    four = [place.registrar(name) for name in ("a", "b", "c", "d")]
    assert [await one.register() for one in four] == [0, 1, 2, 3]
    for one in (four[0], four[3], four[1]):
        await one.leave()
    assert await place.registrar("d").register() == 3, "its own"
    assert await place.registrar("new").register() == 1, "the last one's"
    assert await place.registrar("newer").register() == 0
    assert await place.registrar("newest").register() == 4


@pytest.mark.contract
async def test_a_lost_lease_comes_back_to_its_seat_or_to_the_next_free_one(place: Place) -> None:
    first, second = place.registrar("a"), place.registrar("b")
    assert [await one.register() for one in (first, second)] == [0, 1]
    await second.lose_lease()
    assert await place.seats() == {"-/prefill/0": "a"}
    assert await second.register() == 1
    await first.lose_lease()
    assert await place.registrar("c").register() == 0
    assert await first.register() == 2
    assert await place.seats() == {"-/prefill/0": "c", "-/prefill/1": "b", "-/prefill/2": "a"}


@pytest.mark.contract
async def test_a_restart_under_the_same_id_takes_its_own_seat_over_before_the_lease_ends(
    place: Place,
) -> None:
    first, second = place.registrar("a"), place.registrar("b")
    assert [await one.register() for one in (first, second)] == [0, 1]
    again = place.registrar("b")
    assert await again.register() == 1
    stored = await place.store.get(Keyspace(cluster=place.cluster).seats("", "prefill") + "1")
    instance = await place.store.get(Keyspace(cluster=place.cluster).view + keys.instance("b"))
    assert stored is not None
    assert instance is not None
    assert stored.lease == instance.lease, "it outlives the lease of the one before"


# choosing, and trouble


def _stored(value: str, revision: int = 1) -> Stored:
    return Stored(value.encode(), revision, revision)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("instance_id", "former", "seat"),
    [
        ("c", 7, 4),  # an earlier start's lease has not ended
        ("e", 7, 7),
        ("e", 1, 1),
        ("e", 0, 5),  # somebody has the former one
        ("b", None, 1),
        ("new", None, 2),  # this one's lease has ended
    ],
)
def test_our_own_seat_comes_first_then_one_that_vanished(
    instance_id: str, former: int | None, seat: int
) -> None:
    known = {0: "a", 1: "left b", 3: "left d", 4: "c", 5: "left e"}
    assert choose({number: _stored(value) for number, value in known.items()}, instance_id, former) == seat


@pytest.mark.unit
def test_without_a_gap_the_last_to_leave_is_replaced_then_numbers_go_on() -> None:
    known = {0: _stored("a"), 1: _stored("left b", 7), 2: _stored("left d", 5)}
    assert choose(known, "new", None) == 1
    known[1] = _stored("new", 8)
    assert choose(known, "newer", None) == 2
    known[2] = _stored("newer", 9)
    assert choose(known, "newest", None) == 3
    assert choose({}, "new", None) == 0
    assert choose({999_999_999: _stored("by hand")}, "new", None) == 0


@pytest.mark.unit
@settings(max_examples=200)
@given(
    events=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["start", "leave", "vanish"])), max_size=60)
)
def test_nobody_shares_a_seat_and_there_are_no_more_than_there_were_instances_at_once(
    events: list[tuple[int, str]],
) -> None:
    known: dict[int, Stored] = {}
    most = 0
    for revision, (number, event) in enumerate(events):
        name = f"p{number}"
        held = [seat for seat, stored in known.items() if stored.value == name.encode()]
        if event == "start":
            seat = choose(known, name, None)
            assert held in ([], [seat])
            assert seat not in known or known[seat].value.startswith(b"left ") or held
            known[seat] = _stored(name, revision)
        elif held and event == "leave":
            known[held[0]] = _stored(f"left {name}", revision)
        elif held:
            del known[held[0]]
        most = max(most, sum(not stored.value.startswith(b"left ") for stored in known.values()))
        assert len(known) <= most
        assert max(known, default=-1) < most


@pytest.mark.unit
def test_a_key_that_is_no_seat_is_none() -> None:
    entries = {f"p/{name}": _stored("a") for name in ("0", "12", "01", "-1", "x", "", "1/2", "²", "9" * 5000)}
    assert numbered(entries, "p/").keys() == {0, 12}


class Rivalled(FaultyStore):
    """Whatever seat is tried for, somebody else was quicker."""

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        for write in writes:
            if isinstance(write, Put) and "/seats/" in write.key:
                await super().commit((), (Put(write.key, b"rival"),))
        return await super().commit(conditions, writes)


class Forbidding(FaultyStore):
    """Refuses to write below ``seats/``, or does not answer; unless ``error`` is None."""

    error: Exception | None = StoreRefused("permission denied")

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        if self.error is not None and any("/seats/" in write.key for write in writes):
            raise self.error
        return await super().commit(conditions, writes)


FENCE = Fence(keyspace=Keyspace(cluster="c"), instance_id="p", incarnation="a")
WANTED = Wanted(entries={FENCE.instance_key: codec.encode(instance_record("prefill"))})


async def _granted(store: Store) -> LeaseId:
    await store.commit((), (Put(FENCE.claim_key, b"a"),))
    return await store.grant(60)


def _seat(store: Store, *, patience_s: float = 60.0) -> Seat:
    return Seat(FENCE, store, patience_s=patience_s, clock=ManualClock(), jitter=lambda: 0.5)


@pytest.mark.unit
@pytest.mark.parametrize(("patience_s", "tries"), [(60.0, MAX_TRIES), (0.01, 4)])
async def test_who_is_always_too_late_goes_without_after_so_many_tries(patience_s: float, tries: int) -> None:
    store = Rivalled(MemoryStore())
    lease = await _granted(store)
    seat = _seat(store, patience_s=patience_s)
    await seat.hold(WANTED, lease)
    rivals = (await store.list(FENCE.keyspace.side + "seats/")).entries
    assert (seat.number, seat.held, len(rivals)) == (None, (), tries)
    calls = store.calls
    await seat.hold(WANTED, lease)
    assert store.calls == calls, "it asks once per lease"


@pytest.mark.unit
@pytest.mark.parametrize("error", [StoreRefused("permission denied"), StoreUnavailable("no answer")])
async def test_trouble_with_seats_alone_delays_a_registration_and_does_not_keep_it_out(
    error: Exception,
) -> None:
    store = Forbidding(MemoryStore())
    store.error = error
    lease, seat = await _granted(store), _seat(store)
    for _ in range(MAX_FAILURES - 1):
        with pytest.raises(type(error)):
            await seat.hold(WANTED, lease)
    await seat.hold(WANTED, lease)
    assert (seat.number, seat.held) == (None, ())
    with pytest.raises(type(error)):
        await seat.hold(WANTED, await store.grant(60))  # another lease is another chance


@pytest.mark.unit
async def test_who_had_a_seat_and_gets_none_again_keeps_the_number_without_holding_it() -> None:
    store = Forbidding(MemoryStore())
    store.error = None
    lease, seat = await _granted(store), _seat(store)
    await seat.hold(WANTED, lease)
    await store.revoke(lease)
    key = FENCE.keyspace.seats("", "prefill") + "0"
    await store.commit((), (Put(key, b"other"),))
    store.error, again = StoreRefused("permission denied"), await store.grant(60)
    for _ in range(MAX_FAILURES - 1):
        with pytest.raises(StoreRefused):
            await seat.hold(WANTED, again)
    await seat.hold(WANTED, again)
    assert (seat.number, seat.held) == (0, ())
    store.error = None
    await seat.leave()
    stored = await store.get(key)
    assert stored is not None
    assert stored.value == b"other"


@pytest.mark.unit
async def test_a_lease_that_ends_meanwhile_is_the_registrations_trouble() -> None:
    store = MemoryStore()
    lease, seat = await _granted(store), _seat(store)
    await store.revoke(lease)
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(LeaseGone):
            await seat.hold(WANTED, lease)


@pytest.mark.unit
async def test_a_parent_without_the_instances_record_takes_no_seat() -> None:
    store = FaultyStore(MemoryStore())
    lease, seat = await _granted(store), _seat(store)
    calls = store.calls
    await seat.hold(Wanted(entries={"ranks/p/0.0.0": b"{}"}), lease)
    await seat.hold(Wanted(entries={FENCE.instance_key: b"garbage"}), lease)
    assert (seat.number, store.calls) == (None, calls)


@pytest.mark.unit
async def test_a_start_that_was_superseded_takes_no_seat() -> None:
    store = MemoryStore()
    lease, seat = await _granted(store), _seat(store)
    await store.commit((), (Put(FENCE.claim_key, b"newer"),))
    await seat.hold(WANTED, lease)
    assert seat.number is None
    assert not (await store.list(FENCE.keyspace.side + "seats/")).entries


@pytest.mark.unit
async def test_a_seat_deleted_by_hand_is_taken_again_and_one_taken_by_hand_is_left() -> None:
    store = MemoryStore()
    lease, seat = await _granted(store), _seat(store)
    await seat.hold(WANTED, lease)
    key = FENCE.keyspace.seats("", "prefill") + "0"
    await store.commit((), (Delete(key),))
    assert not (await store.commit(seat.held, ())).succeeded
    await seat.hold(WANTED, lease)
    assert (await store.commit(seat.held, ())).succeeded
    await store.commit((), (Put(key, b"other"),))
    await seat.hold(WANTED, lease)
    assert seat.number == 1


@pytest.mark.unit
def test_a_record_is_marked_with_the_seat_and_otherwise_as_it_was() -> None:
    seat = _seat(MemoryStore())
    made = instance_record("prefill", extra={"pid_started": 7})
    want = Want(version=1, instance=codec.encode(made).decode(), ranks={})
    assert seat.marked(want) is want
    seat.number = 3
    marked = seat.marked(want).instance
    assert marked is not None
    read = codec.decode(FENCE.instance_key, marked.encode())
    assert read == made._replace(extra={"pid_started": 7, "seat": 3})
    follower = Want(version=1, instance=None, ranks={"0.0.0": "{}"})
    assert seat.marked(follower) is follower
