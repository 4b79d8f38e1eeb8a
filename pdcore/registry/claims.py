"""Who may use an instance id: the claim, its incumbent, and the decision. Pure.

``claims/{instance_id}`` holds the incarnation of the newest start, and every write of an instance's keys compares
it. A start takes it from whoever holds it unless that one provably lives; whoever finds another incarnation there
has been superseded and never registers again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from pdcore.registry.desired import MAX_OPERATIONS, Fence, Transaction
from pdcore.registry.store import Absent, Condition, Delete, LeaseId, ModRevisionIs, Put, Stored, Write
from pdcore.topology.records import DepartureReason, InstanceRecord

_NAME_BYTES: Final = 128
Standing = Literal["held", "missing", "rewound", "superseded"]
PID_STARTED = "pid_started"
"""Field of an instance's record beside ``pid``: when that process started, in clock ticks since boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """What is known of another incarnation under our id.

    ``record`` is its instance record, if it stands. ``answers``: its URL answered ``/health`` with its incarnation.
    ``alive``: whether its process runs; None when it is not this kernel's to tell.
    """

    incarnation: str
    record: InstanceRecord | None
    answers: bool
    alive: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Take the claim. ``departed`` is the incarnation whose keys go with it, ``reason`` why."""

    departed: str | None = None
    reason: DepartureReason = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Leave the incumbent alone; ``sentence`` says why."""

    sentence: str


def decide(instance_id: str, incumbent: Incumbent | None, *, take_over: bool) -> Take | Refuse:
    """Whether a start may take the claim from ``incumbent`` (None: nobody's, or our own)."""
    if incumbent is None:
        return Take()
    if incumbent.record is None:
        return Take(departed=incumbent.incarnation)
    if not (incumbent.answers or incumbent.alive):
        return Take(departed=incumbent.incarnation, reason="died" if incumbent.alive is False else "silent")
    if take_over:
        return Take(departed=incumbent.incarnation, reason="ordered")
    proof = (
        f"answers at {incumbent.record.url}"
        if incumbent.answers
        else f"runs on this machine as process {incumbent.record.pid}"
    )
    return Refuse(
        sentence=f"instance {instance_id} is in use: incarnation {incumbent.incarnation} {proof}; "
        "stop it, choose another --instance-id, or pass --take-over"
    )


def standing(claim: Stored | None, incarnation: str, predecessor: str | None) -> Standing:
    """How a claim once taken stands. Naming our own predecessor it comes from a restored, older store."""
    if claim is None:
        return "missing"
    holder = holder_of(claim)
    if holder == incarnation:
        return "held"
    return "rewound" if holder == predecessor else "superseded"


def holder_of(claim: Stored) -> str:
    """The incarnation a claim names; anybody may have written there, so no more than a name's length of it."""
    return claim.value[:_NAME_BYTES].decode(errors="replace")


def taking(
    fence: Fence,
    claim: Stored | None,
    leftovers: Iterable[str],
    take: Take,
    *,
    order: Stored | None = None,
    claim_lease: LeaseId,
    departure_lease: LeaseId | None,
    by: str,
) -> Transaction:
    """Compare-and-swap the claim from exactly the ``claim`` that was read, and clear what its holder left: keys, and
    an ``order`` that bound it alone.

    Leftovers beyond one transaction are for the repair that follows.
    """
    unchanged: Condition = (
        Absent(fence.claim_key) if claim is None else ModRevisionIs(fence.claim_key, claim.mod_revision)
    )
    cleared: list[Write] = [
        Delete(fence.absolute(key)) for key in itertools.islice(sorted(leftovers), MAX_OPERATIONS - 3)
    ]
    if cleared and take.departed is not None and departure_lease is not None:
        cleared.append(fence.departure(take.departed, take.reason, by, departure_lease))
    put = Put(fence.claim_key, fence.incarnation.encode(), claim_lease)
    if not fence.is_stale(order):
        return Transaction(conditions=(unchanged,), writes=(put, *cleared))
    cleared.append(Delete(fence.absolute(fence.order_key)))
    return Transaction(conditions=(unchanged, fence.order_is(order)), writes=(put, *cleared))


def is_process_alive(
    record: InstanceRecord, *, boot_id: str, started: int | None, own_pids: frozenset[int]
) -> bool | None:
    """Whether the process in ``record`` runs, judged by ``started`` (when that pid here started, None: no such).

    None when another kernel runs it. A pid that started at another time, or is our own, has been reused.
    """
    if record.boot_id != boot_id:
        return None
    if started is None:
        return False
    recorded = record.extra.get(PID_STARTED)
    if isinstance(recorded, int):
        return recorded == started
    return record.pid not in own_pids
