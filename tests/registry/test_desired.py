"""From the desired record to transactions: what is put, deleted and explained, and that repeating leads home."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.registry.desired import (
    MAX_OPERATIONS,
    Fence,
    Presence,
    Transaction,
    Wanted,
    confirmation,
    repair,
    wanted,
)
from pdcore.registry.memory import MemoryStore
from pdcore.registry.registrar_messages import PARENT, Want
from pdcore.registry.store import Absent, Delete, LeaseId, ModRevisionIs, Put, Stored, ValueIs
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DepartureRecord, OrderKind
from tests.support.fleet import order_record
from tests.support.registrations import instance_record, rank_record

pytestmark = pytest.mark.unit

FENCE = Fence(keyspace=Keyspace(cluster="test"), instance_id="d0", incarnation="a")
VIEW = "/pdcore/test/view/"
INSTANCE, RANK, RANK_2, DEPARTURE = "instances/d0", "ranks/d0/0.0.0", "ranks/d0/1.0.0", "departures/d0"
ORDER = "orders/d0"
LEASE, DEPARTURE_LEASE = LeaseId(7), LeaseId(8)
OURS = codec.encode(rank_record("a")).decode()
FULL = Want(
    version=1, instance=codec.encode(instance_record("a")).decode(), ranks={"0.0.0": OURS, "1.0.0": OURS}
)


def stored(value: str | bytes, lease: LeaseId | None = LEASE) -> Stored:
    return Stored(value if isinstance(value, bytes) else value.encode(), 5, 5, lease)


def standing(want: Want = FULL) -> dict[str, Stored]:
    """Everything ``want`` asks for, in the store already."""
    return {key: stored(value) for key, value in wanted("d0", want, Presence()).entries.items()}


def repaired(
    found: Mapping[str, Stored],
    want: Wanted,
    departure_lease: LeaseId | None = DEPARTURE_LEASE,
    order: Stored | None = None,
) -> tuple[Transaction, ...]:
    return repair(FENCE, found, want, order=order, lease=LEASE, departure_lease=departure_lease, by="test")


def departure_in(transaction: Transaction) -> tuple[str, str] | None:
    """(incarnation, reason) of the departure a transaction writes."""
    for write in transaction.writes:
        if isinstance(write, Put) and write.key == VIEW + DEPARTURE:
            record = codec.decode(DEPARTURE, write.value)
            assert isinstance(record, DepartureRecord)
            assert write.lease == DEPARTURE_LEASE
            return record.incarnation, record.reason
    return None


def test_nothing_is_done_when_everything_stands() -> None:
    assert repaired(standing(), wanted("d0", FULL, Presence())) == ()


def test_missing_keys_are_put_together_under_the_claim_with_the_instance_last() -> None:
    (transaction,) = repaired({}, wanted("d0", FULL, Presence()))
    assert transaction.conditions == (ValueIs("/pdcore/test/side/claims/d0", b"a"),)
    assert [write.key for write in transaction.writes] == [VIEW + RANK_2, VIEW + RANK, VIEW + INSTANCE]
    assert all(isinstance(write, Put) and write.lease == LEASE for write in transaction.writes)


@pytest.mark.parametrize("flaw", [stored("{}"), stored(OURS, LeaseId(6)), stored(OURS, None)])
def test_a_changed_value_or_another_lease_is_put_again(flaw: Stored) -> None:
    (transaction,) = repaired(standing() | {RANK: flaw}, wanted("d0", FULL, Presence()))
    assert transaction.writes == (Put(VIEW + RANK, OURS.encode(), LEASE),)


@pytest.mark.parametrize(
    ("presence", "gone", "reason"),
    [
        (Presence(exited=frozenset({"0.0.0"})), {RANK}, "died"),
        (Presence(silent=frozenset({"0.0.0"})), {RANK}, "silent"),
        (Presence(silent=frozenset({"0.0.0"}), exited=frozenset({"1.0.0"})), {RANK, RANK_2}, "died"),
        (Presence(exited=frozenset({PARENT})), {INSTANCE, RANK, RANK_2}, "died"),
        (Presence(silent=frozenset({PARENT})), {INSTANCE, RANK, RANK_2}, "silent"),
        (Presence(leaving="drained"), {INSTANCE, RANK, RANK_2}, "drained"),
        (Presence(leaving="left", exited=frozenset({PARENT})), {INSTANCE, RANK, RANK_2}, "died"),
    ],
)
def test_what_goes_is_explained_in_the_same_transaction(
    presence: Presence, gone: set[str], reason: str
) -> None:
    (transaction,) = repaired(standing(), wanted("d0", FULL, presence))
    deleted = {write.key.removeprefix(VIEW) for write in transaction.writes if isinstance(write, Delete)}
    assert deleted == gone
    assert departure_in(transaction) == ("a", reason)


def test_a_rank_dropped_from_the_record_has_left() -> None:
    smaller = Want(version=2, instance=FULL.instance, ranks={"0.0.0": OURS, "1.0.0": None})
    (transaction,) = repaired(standing(), wanted("d0", smaller, Presence()))
    assert Delete(VIEW + RANK_2) in transaction.writes
    assert departure_in(transaction) == ("a", "left")


def test_without_a_lease_for_it_there_is_no_departure_that_would_stay_for_ever() -> None:
    (transaction,) = repaired(standing(), wanted("d0", FULL, Presence(leaving="left")), departure_lease=None)
    assert all(isinstance(write, Delete) for write in transaction.writes)


def test_keys_that_are_gone_already_are_not_explained() -> None:
    assert repaired({}, wanted("d0", FULL, Presence(exited=frozenset({PARENT})))) == ()


def test_what_is_back_takes_its_departure_back() -> None:
    silent = codec.encode(DepartureRecord(incarnation="a", reason="silent", by="test"))
    other = codec.encode(DepartureRecord(incarnation="b", reason="silent", by="test"))
    found = {key: value for key, value in standing().items() if key != RANK}
    (transaction,) = repaired(found | {DEPARTURE: stored(silent)}, wanted("d0", FULL, Presence()))
    assert transaction.writes == (Delete(VIEW + DEPARTURE), Put(VIEW + RANK, OURS.encode(), LEASE))
    assert repaired(standing() | {DEPARTURE: stored(other)}, wanted("d0", FULL, Presence())) == ()
    still_silent = wanted("d0", FULL, Presence(silent=frozenset({"0.0.0"})))
    assert repaired(found | {DEPARTURE: stored(silent)}, still_silent) == ()


@pytest.mark.parametrize("leftover", [codec.encode(rank_record("b")), b"garbage"])
def test_leftovers_of_others_go_without_a_word(leftover: bytes) -> None:
    found = standing() | {"ranks/d0/9.0.0": stored(leftover)}
    (transaction,) = repaired(found, wanted("d0", FULL, Presence()))
    assert transaction.writes == (Delete(VIEW + "ranks/d0/9.0.0"),)


def test_a_leader_leaves_other_parents_ranks_alone_until_the_whole_instance_goes() -> None:
    found = standing() | {"ranks/d0/9.0.0": stored(OURS, LeaseId(70))}
    assert repaired(found, wanted("d0", FULL, Presence())) == ()
    (transaction,) = repaired(found, wanted("d0", FULL, Presence(exited=frozenset({PARENT}))))
    assert Delete(VIEW + "ranks/d0/9.0.0") in transaction.writes


def test_a_parent_without_the_leader_withdraws_only_its_own_ranks() -> None:
    follower = Want(version=1, instance=None, ranks={"1.0.0": OURS})
    want = wanted("d0", follower, Presence(exited=frozenset({PARENT})))
    (transaction,) = repaired(standing(), want)
    assert [write.key for write in transaction.writes if isinstance(write, Delete)] == [VIEW + RANK_2]


def test_an_instance_too_large_for_one_transaction_takes_several_the_instance_last() -> None:
    want = Want(version=1, instance=FULL.instance, ranks={f"{dp}.0.0": OURS for dp in range(300)})
    transactions = repaired({}, wanted("d0", want, Presence()))
    assert [len(transaction.writes) for transaction in transactions] == [MAX_OPERATIONS, MAX_OPERATIONS, 61]
    assert transactions[-1].writes[-1].key == VIEW + INSTANCE
    assert all(FENCE.claimed in transaction.conditions for transaction in transactions)
    assert confirmation(FENCE, wanted("d0", want, Presence())) is None


def test_confirmation_asks_for_everything_and_writes_nothing() -> None:
    want = wanted("d0", FULL, Presence(exited=frozenset({"0.0.0"})))
    question = confirmation(FENCE, want)
    assert question is not None
    assert question.writes == ()
    assert set(question.conditions) == {
        FENCE.claimed,
        ValueIs(VIEW + INSTANCE, want.entries[INSTANCE]),
        ValueIs(VIEW + RANK_2, OURS.encode()),
        Absent(VIEW + RANK),
        Absent(VIEW + ORDER),
    }


def order_for(incarnation: str, *, kind: OrderKind = "drain", sticky: bool = False) -> Stored:
    return Stored(codec.encode(order_record(kind, incarnation, sticky=sticky)), 11, 11)


def test_an_order_to_end_withdraws_everything_and_says_so() -> None:
    presence = Presence(ended=True, leaving="died", exited=frozenset({PARENT, "0.0.0"}))
    (transaction,) = repaired(standing(), wanted("d0", FULL, presence))
    assert departure_in(transaction) == ("a", "ordered")


@pytest.mark.parametrize(
    ("order", "presence", "goes"),
    [
        (order_for("a"), Presence(leaving="left"), True),
        (order_for("a", kind="undrain"), Presence(exited=frozenset({PARENT})), True),
        (order_for("a"), Presence(silent=frozenset({PARENT})), False),  # it may beat again
        (order_for("a"), Presence(), False),
        (order_for("a", sticky=True), Presence(leaving="left"), False),
        (order_for("b"), Presence(leaving="left"), False),
        (order_for("a", kind="end"), Presence(ended=True), False),  # other registrars have to read it
    ],
)
def test_an_order_goes_with_the_incarnation_it_binds(order: Stored, presence: Presence, goes: bool) -> None:
    transactions = repaired(standing(), wanted("d0", FULL, presence), order=order)
    deletes = [t for t in transactions if Delete(VIEW + ORDER) in t.writes]
    assert bool(deletes) == goes
    assert all(ModRevisionIs(VIEW + ORDER, 11) in t.conditions for t in deletes)


MEMBERS = ("0.0.0", "1.0.0", PARENT)
members = st.frozensets(st.sampled_from(MEMBERS))
presences = st.builds(
    Presence, exited=members, silent=members, leaving=st.sampled_from([None, None, "left", "drained"])
)
values = st.sampled_from([OURS, codec.encode(rank_record("a", 7002)).decode(), None])
wants = st.builds(
    Want,
    version=st.just(1),
    instance=st.sampled_from([FULL.instance, None]),
    ranks=st.fixed_dictionaries({"0.0.0": values, "1.0.0": values}),
)
found_values = st.sampled_from([OURS.encode(), codec.encode(rank_record("b")), b"garbage"])
founds = st.dictionaries(
    st.sampled_from([INSTANCE, RANK, RANK_2, "ranks/d0/9.0.0", DEPARTURE]), found_values, max_size=5
)


@settings(max_examples=100, deadline=None)
@given(founds=founds, want=wants, presence=presences)
def test_repairing_what_was_repaired_does_nothing(
    founds: dict[str, bytes], want: Want, presence: Presence
) -> None:
    asyncio.run(_repair_twice(founds, wanted("d0", want, presence)))


async def _repair_twice(founds: dict[str, bytes], want: Wanted) -> None:
    store = MemoryStore()
    lease, departure_lease = await store.grant(10), await store.grant(60)
    await store.commit((), (Put(FENCE.claim_key, b"a"),))
    for key, value in founds.items():
        await store.commit((), (Put(VIEW + key, value, lease),))

    async def read() -> dict[str, Stored]:
        entries = (await store.list(VIEW)).entries
        return {key.removeprefix(VIEW): entry for key, entry in entries.items()}

    def transactions(found: dict[str, Stored]) -> tuple[Transaction, ...]:
        return repair(FENCE, found, want, lease=lease, departure_lease=departure_lease, by="test")

    for transaction in transactions(await read()):
        assert (await store.commit(transaction.conditions, transaction.writes)).succeeded
    found = await read()
    assert transactions(found) == ()
    assert {key: found[key].value for key in want.entries} == dict(want.entries)
    assert not found.keys() & set(want.absent)
