"""The registrar's loop against a store in memory that fails wherever it can."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import pytest

from pdcore.errors import Superseded
from pdcore.registry.claiming import Refused
from pdcore.registry.desired import Fence
from pdcore.registry.instance_keys import DEPARTURE_TTL_S
from pdcore.registry.memory import MemoryStore
from pdcore.registry.processes import Processes
from pdcore.registry.registrar_messages import PARENT, Leave, Start, Want
from pdcore.registry.store import Delete, Put, Stored
from pdcore.registry.upkeep import PARENT_ENDS_S, Upkeep
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DepartureRecord, InstanceRecord, OrderKind
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, FaultyStore, ManualClock
from tests.support.fleet import order_record
from tests.support.registrations import instance_record, rank_record, records, spec

pytestmark = pytest.mark.unit

VIEW, CLAIM = "/pdcore/test/view/", "/pdcore/test/side/claims/d0"
SEAT = "/pdcore/test/side/seats/-/decode/0"
INSTANCE, RANK, RANK_2, DEPARTURE = "instances/d0", "ranks/d0/0.0.0", "ranks/d0/1.0.0", "departures/d0"
ORDER = "orders/d0"
KINDS: tuple[OrderKind, ...] = ("drain", "undrain", "end")
TTL_S = 9


class CountingProcesses(Processes):
    """Counts how often the loop looks. Its parent is imaginary, and dies when it is killed."""

    looks = 0

    def look(self) -> bool:
        self.looks += 1
        return super().look()

    def kill_parent(self) -> None:
        self.exited |= {PARENT}
        self.on_change()


@dataclass
class Bench:
    """An upkeep, what it works on, and hands to drive it."""

    clock: ManualClock
    memory: MemoryStore
    store: FaultyStore
    processes: CountingProcesses
    upkeep: Upkeep
    incarnation: str

    async def settle(self) -> None:
        """Attempts until nothing is left to do, well within what a real loop would wait for."""
        for _ in range(12):
            await self.upkeep.attempt()
            self.clock.time += 0.01
        assert self.upkeep.status.store_error is None

    async def next_check(self) -> None:
        self.clock.time += TTL_S / 3
        await self.settle()

    async def view(self) -> dict[str, object]:
        return dict(await records(self.memory))

    def want(self, version: int = 1) -> None:
        ranks: dict[str, str | None] = {
            "0.0.0": codec.encode(rank_record(self.incarnation)).decode(),
            "1.0.0": codec.encode(rank_record(self.incarnation, 7002)).decode(),
        }
        instance = codec.encode(instance_record(self.incarnation, ranks=2)).decode()
        self.upkeep.want(Want(version=version, instance=instance, ranks=ranks))


def bench(
    memory: MemoryStore | None = None,
    *,
    incarnation: str = "a",
    clock: ManualClock | None = None,
    fail_at: int | None = None,
    fault: Fault = "lost answer",
    claimed: bool = False,
    predecessor: str | None = None,
    take_over: bool = False,
) -> Bench:
    clock = clock or ManualClock()
    memory = memory or MemoryStore(clock=clock)
    store = FaultyStore(memory, fail_at, fault)
    wake = asyncio.Event()
    processes = CountingProcesses(2 * TTL_S, clock, on_change=wake.set)
    start = Start(
        spec=spec("etcd://a", incarnation, ttl_s=TTL_S, take_over=take_over),
        parent_pid=1,
        claimed=claimed,
        predecessor=predecessor,
    )
    upkeep = Upkeep(start, store, processes, wake=wake, clock=clock, jitter=lambda: 0.5)
    return Bench(clock, memory, store, processes, upkeep, incarnation)


async def registered(on: Bench) -> Bench:
    on.want()
    await on.settle()
    assert {INSTANCE, RANK, RANK_2} <= (await on.view()).keys()
    return on


async def reason_in(on: Bench) -> str:
    departure = (await on.view())[DEPARTURE]
    assert isinstance(departure, DepartureRecord)
    assert departure.incarnation == on.incarnation
    return departure.reason


async def stored(on: Bench, key: str) -> Stored:
    found = await on.memory.get(key)
    assert found is not None
    return found


async def test_a_claim_and_the_whole_instance_in_one_revision() -> None:
    on = await registered(bench())
    assert (await stored(on, CLAIM)).value == b"a"
    revisions = {(await stored(on, VIEW + key)).mod_revision for key in (INSTANCE, RANK, RANK_2)}
    assert len(revisions) == 1
    assert (on.upkeep.status.version, {on.upkeep.status.revision}) == (1, revisions)


async def test_an_idle_registration_writes_nothing_and_lives_for_ever() -> None:
    on = await registered(bench())
    before = (await on.memory.list("/")).revision
    for _ in range(50):
        await on.next_check()
    assert (await on.memory.list("/")).revision == before


async def test_every_key_deleted_by_hand_is_back_after_the_next_check() -> None:
    on = await registered(bench())
    before = await on.view()
    for key in (VIEW + INSTANCE, VIEW + RANK, CLAIM, SEAT):
        await on.memory.commit((), (Delete(key),))
        await on.next_check()
        assert (await on.view(), (await stored(on, CLAIM)).value) == (before, b"a")
        assert (await stored(on, SEAT)).value == b"d0"


async def test_a_value_changed_by_hand_is_put_right() -> None:
    on = await registered(bench())
    before = await on.view()
    await on.memory.commit((), (Put(VIEW + RANK, b"garbage"),))
    await on.next_check()
    assert await on.view() == before
    assert (await stored(on, VIEW + RANK)).lease is not None


async def test_a_lost_lease_is_replaced_with_the_same_records() -> None:
    on = await registered(bench())
    before = await on.view()
    lost = (await stored(on, VIEW + INSTANCE)).lease
    assert lost is not None
    await on.memory.revoke(lost)
    assert await on.view() == {}
    await on.next_check()
    assert await on.view() == before
    assert (await stored(on, VIEW + INSTANCE)).lease != lost


async def test_a_lost_lease_does_not_bring_an_older_record_back() -> None:
    on = await registered(bench())
    lease = (await stored(on, VIEW + INSTANCE)).lease
    assert lease is not None
    await on.memory.revoke(lease)
    on.want(2)
    on.upkeep.want(Want(version=3, instance=None, ranks={"0.0.0": None, "1.0.0": None}))
    await on.next_check()
    assert await on.view() == {}
    assert on.upkeep.status.version == 3


async def test_a_lease_lost_just_before_a_change_is_replaced_at_once() -> None:
    on = await registered(bench())
    lease = (await stored(on, VIEW + INSTANCE)).lease
    assert lease is not None
    await on.memory.revoke(lease)
    on.want(2)
    await on.settle()
    assert on.upkeep.status.version == 2
    assert {INSTANCE, RANK, RANK_2} <= (await on.view()).keys()


async def test_a_rank_that_loaded_for_long_is_not_silent_when_it_appears() -> None:
    on = bench()
    read_end, write_end = os.pipe()
    with on.processes:
        on.processes.listen("0.0.0", read_end)
        await on.settle()
        on.clock.time += 100
        await on.settle()
        on.want()
        await on.settle()
        assert RANK in await on.view()
        for _ in range(7):
            await on.next_check()
        assert RANK not in await on.view()
        assert await reason_in(on) == "silent"
        on.want(2)  # the same rank again is no sign of life
        await on.settle()
        assert RANK not in await on.view()
        os.write(write_end, b".")
        await on.settle()
        assert (await on.view()).keys() == {INSTANCE, RANK, RANK_2}
    os.close(write_end)


async def test_the_loop_rests_between_events() -> None:
    on = bench()
    running = asyncio.ensure_future(on.upkeep.run())
    on.want()
    await eventually(lambda: on.upkeep.status.version == 1, 2.0, "registered")
    steps = on.processes.looks
    await asyncio.wait({running}, timeout=0.1)
    assert on.processes.looks <= steps + 1
    on.upkeep.leave(Leave(reason="left", timeout_s=1))
    async with asyncio.timeout(2):
        await running
    assert (await on.view()).keys() == {DEPARTURE}


async def test_a_wiped_store_is_filled_again() -> None:
    on = await registered(bench())
    before = await on.view()
    on.memory.wipe()
    await on.next_check()
    assert (await on.view(), (await stored(on, CLAIM)).value) == (before, b"a")


async def test_the_claim_outlives_its_first_day() -> None:
    on = await registered(bench())
    before = (await stored(on, CLAIM)).mod_revision
    for _ in range(6):
        on.clock.time += 8 * 3600
        await on.settle()
    assert (await stored(on, CLAIM)).mod_revision == before


async def test_a_dead_rank_goes_and_the_rest_stays() -> None:
    on = await registered(bench())
    on.processes.exited |= {"0.0.0"}
    await on.settle()
    assert (await on.view()).keys() == {INSTANCE, RANK_2, DEPARTURE}
    assert await reason_in(on) == "died"
    assert on.upkeep.status.withdrawn == ("0.0.0",)


async def test_the_parents_death_withdraws_everything_and_ends_the_loop() -> None:
    on = await registered(bench())
    on.processes.exited |= {PARENT}
    await on.upkeep.run()
    assert (await on.view()).keys() == {DEPARTURE}
    assert await reason_in(on) == "died"


async def test_a_departure_is_remembered_for_a_minute() -> None:
    on = await registered(bench())
    on.processes.exited |= {PARENT}
    await on.upkeep.run()
    on.clock.time += DEPARTURE_TTL_S - 1
    assert DEPARTURE in await on.view()
    on.clock.time += 2
    assert DEPARTURE not in await on.view()


async def test_leaving_before_anything_stood_ends_without_the_store() -> None:
    on = bench()
    on.store.down = True
    on.upkeep.leave(Leave(reason="left", timeout_s=1))
    await on.upkeep.run()
    assert on.upkeep.status.left
    assert on.store.calls == 0


async def test_leaving_gives_up_when_the_store_stays_away() -> None:
    on = await registered(bench())
    on.store.down = True
    on.upkeep.leave(Leave(reason="left", timeout_s=1))
    await on.upkeep.attempt()
    assert not on.upkeep.is_done
    on.clock.time += 1
    await on.upkeep.run()
    assert not on.upkeep.status.left


async def test_trouble_with_the_store_is_told_once_and_taken_back() -> None:
    on = await registered(bench())
    on.upkeep.changed.clear()
    on.store.down = True
    on.clock.time += TTL_S / 3
    await on.upkeep.attempt()
    assert on.upkeep.status.store_error == "no answer in time"
    assert on.upkeep.changed.is_set()
    on.upkeep.changed.clear()
    for _ in range(5):
        await on.upkeep.attempt()
    assert not on.upkeep.changed.is_set()
    on.store.down = False
    await on.settle()
    assert on.upkeep.changed.is_set()


async def test_a_full_store_still_takes_the_delete() -> None:
    on = await registered(bench())
    on.store.full = True
    on.processes.exited |= {"0.0.0"}
    for _ in range(3):
        await on.upkeep.attempt()
    assert (await on.view()).keys() == {INSTANCE, RANK_2}
    on.want(2)
    on.upkeep.want(Want(version=3, instance="{}", ranks={"0.0.0": None, "1.0.0": None}))
    for _ in range(3):
        await on.upkeep.attempt()
    assert (await on.view()).keys() == {INSTANCE}
    assert on.upkeep.status.store_error == "database space exceeded"


async def test_another_incarnation_ends_the_loop_and_keeps_its_keys() -> None:
    on = await registered(bench())
    newer = await registered(bench(on.memory, incarnation="b", clock=on.clock))
    on.clock.time += TTL_S / 3
    with pytest.raises(Superseded) as raised:
        await on.settle()
    assert raised.value.holder == "b"
    found = await newer.view()
    assert found.keys() == {INSTANCE, RANK, RANK_2, DEPARTURE}
    departure = found[DEPARTURE]
    assert isinstance(departure, DepartureRecord)
    assert (departure.incarnation, departure.reason) == ("a", "died")  # its pid is ours, so it cannot be its


async def test_a_dying_incarnation_cannot_touch_its_successors_keys() -> None:
    on = await registered(bench())
    newer = await registered(bench(on.memory, incarnation="b", clock=on.clock))
    before = await newer.view()
    on.processes.exited |= {PARENT}
    with pytest.raises(Superseded):
        await on.upkeep.run()
    assert await newer.view() == before


async def test_a_restored_store_that_names_our_predecessor_is_not_a_newer_start() -> None:
    on = await registered(bench())
    newer = await registered(bench(on.memory, incarnation="b", clock=on.clock))
    assert newer.upkeep.status.predecessor == "a"
    await on.memory.commit((), (Put(CLAIM, b"a"),))
    await newer.next_check()
    assert (await stored(newer, CLAIM)).value == b"b"


async def test_a_replaced_registrar_goes_on_without_a_gap_and_takes_the_claims_lease_over() -> None:
    on = await registered(bench())
    before, claim = await on.view(), await stored(on, CLAIM)
    created = (await stored(on, VIEW + INSTANCE)).create_revision
    again = bench(on.memory, clock=on.clock, claimed=True)
    await again.settle()
    assert await again.view() == before  # told nothing yet, it leaves everything alone
    again.want()
    await again.settle()
    assert (await again.view(), await stored(again, CLAIM)) == (before, claim)
    assert (await stored(again, VIEW + INSTANCE)).create_revision == created
    again.clock.time += 20 * 3600
    await again.settle()
    again.clock.time += 20 * 3600
    assert await again.memory.get(CLAIM) is not None


@pytest.mark.parametrize("take_over", [False, True])
async def test_a_living_incumbent_is_refused_unless_told_otherwise(take_over: bool) -> None:
    on = bench()
    alive = instance_record("old")
    alive_elsewhere = Fence(keyspace=Keyspace(cluster="test"), instance_id="d0", incarnation="old")
    record = alive._replace(pid=os.getppid())
    await on.memory.commit(
        (), (Put(CLAIM, b"old"), Put(alive_elsewhere.absolute(INSTANCE), codec.encode(record)))
    )
    on = bench(on.memory, clock=on.clock, take_over=take_over)
    if take_over:
        await registered(on)
    else:
        with pytest.raises(Refused, match="instance d0 is in use: incarnation old runs on this machine"):
            await on.settle()
        assert (await stored(on, CLAIM)).value == b"old"


async def seat_of(on: Bench) -> int | None:
    record = (await on.view())[INSTANCE]
    assert isinstance(record, InstanceRecord)
    return record.seat


async def test_a_seat_is_held_through_silence_and_given_up_at_the_end() -> None:
    on = await registered(bench())
    read_end, write_end = os.pipe()
    with on.processes:
        on.processes.listen(PARENT, read_end)
        for _ in range(7):
            await on.next_check()
        assert (await on.view()).keys() == {DEPARTURE}
        assert (await stored(on, SEAT)).value == b"d0"
        os.write(write_end, b".")
        await on.settle()
        assert await seat_of(on) == 0
        on.processes.exited |= {PARENT}
        await on.upkeep.run()
    os.close(write_end)
    assert (await stored(on, SEAT)).value == b"left d0"
    assert (await stored(on, SEAT)).lease is None


async def test_a_seat_that_somebody_took_meanwhile_is_another_ones() -> None:
    on = await registered(bench())
    await on.memory.commit((), (Put(SEAT, b"other"),))
    await on.next_check()
    assert (await seat_of(on), (await stored(on, SEAT)).value) == (1, b"other")


async def order(on: Bench, kind: OrderKind, incarnation: str) -> None:
    await on.memory.commit((), (Put(VIEW + ORDER, codec.encode(order_record(kind, incarnation))),))


async def test_an_order_to_end_is_obeyed_at_the_next_check_and_withdraws_as_ordered() -> None:
    on = await registered(bench())
    await order(on, "end", "a")
    await on.next_check()
    assert (await on.view()).keys() == {ORDER, DEPARTURE}
    assert await reason_in(on) == "ordered"
    assert not on.upkeep.is_done  # until the parent is gone
    assert PARENT not in on.processes.exited
    on.clock.time += PARENT_ENDS_S  # it did not end by itself
    await on.upkeep.run()
    assert PARENT in on.processes.exited
    assert await reason_in(on) == "ordered"


async def test_every_registrar_of_the_incarnation_obeys_and_leaves_the_order_to_the_others() -> None:
    leader = await registered(bench())
    other = bench(leader.memory, clock=leader.clock, claimed=True)
    value = codec.encode(rank_record("a", 7003)).decode()
    other.upkeep.want(Want(version=1, instance=None, ranks={"2.0.0": value}))
    await other.settle()
    await order(leader, "end", "a")
    await other.next_check()
    assert (await other.view()).keys() == {INSTANCE, RANK, RANK_2, ORDER, DEPARTURE}
    await leader.next_check()
    assert (await leader.view()).keys() == {ORDER, DEPARTURE}


async def test_an_order_for_somebody_else_means_nothing_and_costs_one_read() -> None:
    on = await registered(bench())
    for kind in KINDS:
        await order(on, kind, "b")
        await on.next_check()
    assert {INSTANCE, RANK, RANK_2} <= (await on.view()).keys()
    calls = on.store.calls
    await on.next_check()
    assert on.store.calls == calls + 2  # the keepalive, and one question


async def test_an_order_to_drain_goes_with_its_incarnation_and_the_next_start_clears_what_stayed() -> None:
    on = await registered(bench())
    await order(on, "drain", "a")
    await on.next_check()
    on.upkeep.leave(Leave(reason="drained", timeout_s=10))
    await on.settle()
    assert (await on.view()).keys() == {DEPARTURE}

    await order(on, "end", "a")
    again = await registered(bench(on.memory, incarnation="b", clock=on.clock))
    assert ORDER not in await again.view()


async def test_a_call_that_was_never_made_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    on = await registered(bench())
    on.store.down = True
    on.clock.time += TTL_S / 3
    await on.upkeep.attempt()
    assert on.upkeep.status.store_error is not None
    on.upkeep.leave(Leave(reason="left", timeout_s=1))
    on.clock.time += 1
    await on.upkeep.run()
    assert on.upkeep.status.store_error is not None
    assert "store answers again" not in capfd.readouterr().out


async def live(on: Bench) -> dict[str, object]:
    """A whole life: claim, register, lose a rank, lose the lease, change, leave; the view before leaving."""
    on.want()
    await on.settle()
    on.processes.exited |= {"0.0.0"}
    await on.settle()
    instance = await on.memory.get(VIEW + INSTANCE)
    if instance is not None and instance.lease is not None:
        await on.memory.revoke(instance.lease)
    await on.next_check()
    on.want(2)
    await on.settle()
    before = await on.view()
    on.upkeep.leave(Leave(reason="drained", timeout_s=10))
    await on.settle()
    return before


async def _calls_of_a_life() -> int:
    on = bench()
    await live(on)
    return on.store.calls


@pytest.mark.parametrize("fault", ["lost request", "lost answer"])
async def test_a_life_interrupted_at_any_call_goes_on_to_the_same_end(fault: Fault) -> None:
    expected = await live(bench())
    expected.pop(DEPARTURE)
    assert expected.keys() == {INSTANCE, RANK_2}
    for number in range(await _calls_of_a_life()):
        on = bench(fail_at=number, fault=fault)
        before = await live(on)
        assert before.keys() - {DEPARTURE} == expected.keys(), number
        assert all(before[key] == expected[key] for key in expected), number
        assert (await on.view()).keys() == {DEPARTURE}, number
        assert await reason_in(on) in {"drained", "died"}, number
        assert on.upkeep.status.left, number
