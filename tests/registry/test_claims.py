"""Who may use an instance id."""

from __future__ import annotations

import pytest

from pdcore.registry.claims import (
    PID_STARTED,
    Incumbent,
    Refuse,
    Take,
    decide,
    is_process_alive,
    standing,
    taking,
)
from pdcore.registry.desired import MAX_OPERATIONS, Fence
from pdcore.registry.store import Absent, Delete, LeaseId, ModRevisionIs, Put, Stored
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DepartureReason, DepartureRecord, OrderKind
from tests.support.fleet import order_record
from tests.support.registrations import instance_record

pytestmark = pytest.mark.unit

FENCE = Fence(keyspace=Keyspace(cluster="test"), instance_id="d0", incarnation="new")
CLAIM, VIEW = "/pdcore/test/side/claims/d0", "/pdcore/test/view/"
RECORD = instance_record("old", url="http://10.0.0.1:8100")
LEASE, DEPARTURE_LEASE = LeaseId(7), LeaseId(8)


def incumbent(*, answers: bool, alive: bool | None) -> Incumbent:
    return Incumbent(incarnation="old", record=RECORD, answers=answers, alive=alive)


def test_nobodys_claim_is_taken() -> None:
    assert decide("d0", None, take_over=False) == Take()


def test_a_claim_without_a_record_is_taken() -> None:
    unknown = Incumbent(incarnation="old", record=None, answers=False, alive=None)
    assert decide("d0", unknown, take_over=False) == Take(departed="old", reason="silent")


@pytest.mark.parametrize(("alive", "reason"), [(False, "died"), (None, "silent")])
def test_an_incumbent_that_shows_no_life_is_succeeded(alive: bool | None, reason: DepartureReason) -> None:
    decision = decide("d0", incumbent(answers=False, alive=alive), take_over=False)
    assert decision == Take(departed="old", reason=reason)


@pytest.mark.parametrize(
    ("answers", "alive", "proof"),
    [
        (True, None, "answers at http://10.0.0.1:8100"),
        (True, False, "answers at http://10.0.0.1:8100"),
        (False, True, f"runs on this machine as process {RECORD.pid}"),
    ],
    ids=["answers", "answers-though-gone", "runs"],
)
def test_a_living_incumbent_is_refused_with_the_proof(answers: bool, alive: bool | None, proof: str) -> None:
    decision = decide("d0", incumbent(answers=answers, alive=alive), take_over=False)
    assert isinstance(decision, Refuse)
    assert f"instance d0 is in use: incarnation old {proof};" in decision.sentence
    assert "--take-over" in decision.sentence
    taken = decide("d0", incumbent(answers=answers, alive=alive), take_over=True)
    assert taken == Take(departed="old", reason="ordered")


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (None, "missing"),
        (b"new", "held"),
        (b"old", "rewound"),
        (b"newer", "superseded"),
        (b"\xff", "superseded"),
    ],
)
def test_a_claim_once_taken_is_held_missing_or_lost(claim: bytes | None, expected: str) -> None:
    held = None if claim is None else Stored(claim, 3, 3)
    assert standing(held, "new", "old") == expected


def test_the_first_claim_is_created_only_if_absent() -> None:
    transaction = taking(FENCE, None, (), Take(), claim_lease=LEASE, departure_lease=None, by="test")
    assert transaction.conditions == (Absent(CLAIM),)
    assert transaction.writes == (Put(CLAIM, b"new", LEASE),)


def test_taking_a_claim_compares_it_and_clears_and_explains_what_its_holder_left() -> None:
    transaction = taking(
        FENCE,
        Stored(b"old", 9, 2, LeaseId(1)),
        {"instances/d0", "ranks/d0/0.0.0"},
        Take(departed="old", reason="died"),
        claim_lease=LEASE,
        departure_lease=DEPARTURE_LEASE,
        by="test",
    )
    departure = DepartureRecord(incarnation="old", reason="died", by="test")
    assert transaction.conditions == (ModRevisionIs(CLAIM, 9),)
    assert set(transaction.writes) == {
        Put(CLAIM, b"new", LEASE),
        Delete(VIEW + "instances/d0"),
        Delete(VIEW + "ranks/d0/0.0.0"),
        Put(VIEW + "departures/d0", codec.encode(departure), DEPARTURE_LEASE),
    }


def order_for(incarnation: str, *, kind: OrderKind = "drain", sticky: bool = False) -> Stored:
    return Stored(codec.encode(order_record(kind, incarnation, sticky=sticky)), 11, 11)


@pytest.mark.parametrize(
    ("order", "goes"),
    [
        (order_for("old"), True),
        (order_for("old", kind="end"), True),
        (order_for("old", kind="end", sticky=True), True),
        (order_for("old", sticky=True), False),
        (order_for("new"), False),
        (Stored(b"garbage", 11, 11), False),
        (None, False),
    ],
)
def test_an_order_for_the_holder_alone_goes_with_it(order: Stored | None, goes: bool) -> None:
    transaction = taking(
        FENCE,
        Stored(b"old", 9, 2),
        (),
        Take(),
        order=order,
        claim_lease=LEASE,
        departure_lease=None,
        by="test",
    )
    key = VIEW + "orders/d0"
    assert (Delete(key) in transaction.writes) == goes
    assert (ModRevisionIs(key, 11) in transaction.conditions) == goes


def test_taking_never_exceeds_one_transaction() -> None:
    leftovers = {f"ranks/d0/{dp}.0.0" for dp in range(500)}
    claim = Stored(b"old", 9, 2)
    transaction = taking(
        FENCE,
        claim,
        leftovers,
        Take(departed="old"),
        order=order_for("old"),
        claim_lease=LEASE,
        departure_lease=DEPARTURE_LEASE,
        by="test",
    )
    assert len(transaction.writes) == MAX_OPERATIONS


STARTED = RECORD._replace(extra={PID_STARTED: 100})


@pytest.mark.parametrize(
    ("record", "boot_id", "started", "own", "expected"),
    [
        (STARTED, "elsewhere", 100, set(), None),
        (STARTED, RECORD.boot_id, None, set(), False),
        (STARTED, RECORD.boot_id, 100, set(), True),
        (STARTED, RECORD.boot_id, 101, set(), False),
        (RECORD, RECORD.boot_id, 101, set(), True),
        (RECORD, RECORD.boot_id, 101, {RECORD.pid}, False),
    ],
)
def test_a_process_is_known_by_boot_pid_and_start(
    record: object, boot_id: str, started: int | None, own: set[int], expected: bool | None
) -> None:
    assert (
        is_process_alive(record, boot_id=boot_id, started=started, own_pids=frozenset(own))  # type: ignore[arg-type]
        is expected
    )
