"""Decode's decisions: every way a hand-off can end, and what that does to the request and to its memory."""

from __future__ import annotations

import math
from itertools import permutations

import pytest

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.entries import Allow, Delivered, Effect, Ended, Entry, Freed, Revoke, Tell
from pdcore.engine.transfer.failures import Reason
from pdcore.engine.transfer.receive_ledger import UNANSWERED_MOST, ReceiveLedger
from pdcore.engine.transfer.slot import Slot, SlotStatus
from pdcore.errors import ErrorCode

pytestmark = pytest.mark.unit

P, Q = "peer p", "peer q"
TOKEN = b"t" * 16


def new(slots: int = 4) -> ReceiveLedger:
    return ReceiveLedger(slots_total=slots, resend_s=0.2)


def opened(
    ledger: ReceiveLedger, *, peer: str = P, room: int = 7, blocks: int = 2, deadline: float = 10.0
) -> tuple[Entry, list[Effect]]:
    return ledger.open(
        room=room,
        peer=peer,
        peer_name=peer,
        blocks=(tuple(range(blocks)),),
        prompt_len=20,
        deadline=deadline,
        now=0.0,
    )


def asked() -> tuple[ReceiveLedger, Entry]:
    ledger = new()
    ledger.linked(P, 0.0)
    return ledger, opened(ledger)[0]


def slot(entry: Entry, status: SlotStatus = SlotStatus.DELIVERED, kv_len: int = 20) -> Slot:
    return Slot(seq=entry.seq, room=entry.room, token=42, kv_len=kv_len, status=status)


def freed(entry: Entry) -> Freed:
    return Freed(entry.seq, entry.slot)


def drain(ledger: ReceiveLedger, peer: str, seq: int, *, in_doubt: bool) -> list[Effect]:
    return ledger.hear(peer, wire.Drained(token=TOKEN, seq=seq, in_doubt=in_doubt), 1.0)


def fail(
    ledger: ReceiveLedger,
    peer: str,
    seq: int,
    code: ErrorCode,
    message: str,
    reason: Reason,
    *,
    drained: bool,
    in_doubt: bool,
    now: float,
) -> list[Effect]:
    notice = wire.Failed(
        token=TOKEN,
        seq=seq,
        code=code,
        reason=reason,
        message=message,
        drained=drained,
        in_doubt=in_doubt,
    )
    return ledger.hear(peer, notice, now)


def but_revoke(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Revoke)]


def failure(entry: Entry, effects: list[Effect]) -> Ended:
    [failed] = [effect for effect in effects if isinstance(effect, Ended)]
    assert (failed.seq, failed.peer) == (entry.seq, entry.peer)
    return failed


def test_a_room_waits_for_its_peer_and_is_then_asked_for_once() -> None:
    ledger = new()
    entry, effects = opened(ledger)
    assert effects == []
    assert entry.state.name == "BOOTSTRAPPING"
    assert ledger.linked(Q, 1.0) == []
    assert ledger.linked(P, 1.0) == [Allow(P, entry.seq), Tell(P, "handshake", entry.seq)]
    assert entry.state.name == "WAITING_FOR_INPUT"
    assert ledger.linked(P, 1.0) == []


def test_a_linked_peer_is_asked_at_once() -> None:
    ledger = new()
    ledger.linked(P, 0.0)
    entry, effects = opened(ledger)
    assert effects == [Allow(P, entry.seq), Tell(P, "handshake", entry.seq)]


def test_a_delivered_slot_gives_the_memory_to_the_request() -> None:
    ledger, entry = asked()
    assert ledger.wrote(entry.seq, slot(entry)) == [
        Revoke(P, entry.seq),
        Delivered(seq=entry.seq, peer=P, index=entry.slot, slot=slot(entry)),
    ]
    assert (len(ledger), ledger.slots_used) == (0, 0)
    assert ledger.wrote(entry.seq, slot(entry)) == []


def test_kv_of_another_length_fails_the_request_but_is_the_last_write() -> None:
    ledger, entry = asked()
    effects = ledger.wrote(entry.seq, slot(entry, kv_len=19))
    assert "19 tokens for a prompt of 20" in failure(entry, effects).message
    assert effects[-1] == freed(entry)
    assert ledger.slots_used == 0


def test_an_abort_before_the_handshake_frees_at_once() -> None:
    ledger = new()
    entry, _ = opened(ledger)
    assert ledger.abort(entry.seq, "cancelled", 1.0) == [freed(entry)]
    assert ledger.slots_used == 0
    assert ledger.linked(P, 2.0) == []


def test_an_abort_after_the_handshake_is_repeated_until_drained() -> None:
    ledger, entry = asked()
    assert ledger.abort(entry.seq, "cancelled", 1.0) == [Revoke(P, entry.seq), Tell(P, "abort", entry.seq)]
    assert ledger.abort(entry.seq, "cancelled", 1.0) == []
    assert ledger.tick(1.1) == []
    told, now = 0, 1.1
    while now < 60:
        told += ledger.tick(now) == [Tell(P, "abort", entry.seq)]
        now += 0.1
    assert 25 <= told <= 40  # backs off to every two seconds, never stops
    assert ledger.slots_used == 1
    assert drain(ledger, P, entry.seq, in_doubt=False) == [freed(entry)]
    assert (ledger.slots_used, ledger.tick(99.0), ledger.next_wake()) == (0, [], math.inf)


def test_a_deadline_ends_the_request_and_keeps_the_memory() -> None:
    ledger, entry = asked()
    assert ledger.next_wake() <= 0.2
    effects = ledger.tick(10.0)
    failed = failure(entry, effects)
    assert (failed.code, P in failed.message) == ("deadline_exceeded", True)
    assert effects[-1] == Tell(P, "abort", entry.seq)
    assert (ledger.slots_used, len(ledger)) == (1, 1)
    assert not [e for e in ledger.tick(10_000.0) if not isinstance(e, Tell)]
    assert drain(ledger, P, entry.seq, in_doubt=False) == [freed(entry)]


def test_a_deadline_before_the_handshake_frees_at_once() -> None:
    ledger = new()
    entry, _ = opened(ledger)
    effects = ledger.tick(10.0)
    assert failure(entry, effects).code == "deadline_exceeded"
    assert effects[-1] == freed(entry)


@pytest.mark.parametrize("status", [SlotStatus.DELIVERED, SlotStatus.FAILED])
def test_the_slot_of_an_aborted_seq_drains_it(status: SlotStatus) -> None:
    ledger, entry = asked()
    ledger.abort(entry.seq, "cancelled", 1.0)
    assert ledger.wrote(entry.seq, slot(entry, status)) == [freed(entry)]
    assert drain(ledger, P, entry.seq, in_doubt=False) == []


def test_a_failed_slot_ends_request_and_memory() -> None:
    ledger, entry = asked()
    effects = ledger.wrote(entry.seq, slot(entry, SlotStatus.FAILED))
    assert failure(entry, effects).code == "prefill_failed"
    assert effects[-1] == freed(entry)


def test_a_failure_notice_with_a_write_in_flight_waits_for_the_drain() -> None:
    ledger, entry = asked()
    effects = fail(
        ledger, P, entry.seq, "cancelled", "client left", "abort", drained=False, in_doubt=False, now=1.0
    )
    assert (failure(entry, effects).code, failure(entry, effects).message) == (
        "cancelled",
        f"{P}: client left",
    )
    assert effects[-1] == Tell(P, "abort", entry.seq)
    assert ledger.slots_used == 1
    assert drain(ledger, P, entry.seq, in_doubt=False) == [freed(entry)]


def test_a_failure_notice_without_writes_frees_at_once() -> None:
    ledger, entry = asked()
    effects = fail(ledger, P, entry.seq, "cancelled", "no", "abort", drained=True, in_doubt=False, now=1.0)
    assert [type(effect) for effect in effects] == [Ended, Revoke, Freed]


IN_DOUBT_BY = ["slot", "failed", "drained"]


@pytest.mark.parametrize("by", IN_DOUBT_BY)
@pytest.mark.parametrize("aborted", [False, True])
def test_a_write_in_doubt_keeps_the_memory_until_the_fence(by: str, aborted: bool) -> None:
    ledger, entry = asked()
    if aborted:
        ledger.abort(entry.seq, "cancelled", 1.0)
    effects: list[Effect]
    if by == "slot":
        effects = ledger.wrote(entry.seq, slot(entry, SlotStatus.IN_DOUBT))
    elif by == "failed":
        effects = fail(
            ledger, P, entry.seq, "prefill_failed", "x", "failed", drained=False, in_doubt=True, now=1.0
        )
    else:
        effects = drain(ledger, P, entry.seq, in_doubt=True)
    assert [type(effect) for effect in but_revoke(effects)] == ([] if aborted else [Ended])
    assert ledger.tick(1e9) == []
    assert drain(ledger, P, entry.seq, in_doubt=False) == []
    assert ledger.wrote(entry.seq, slot(entry)) == []
    assert (
        fail(ledger, P, entry.seq, "prefill_failed", "x", "failed", drained=True, in_doubt=False, now=2.0)
        == []
    )
    assert (ledger.slots_used, entry.in_doubt) == (1, True)
    assert ledger.lost(P, "is gone") == [freed(entry)]
    assert ledger.slots_used == 0


def test_the_fence_ends_everything_of_that_peer_and_nothing_else() -> None:
    ledger = new()
    ledger.linked(P, 0.0)
    ledger.linked(Q, 0.0)
    (live, _), (over, _), (other, _) = opened(ledger), opened(ledger, room=8), opened(ledger, peer=Q, room=9)
    ledger.abort(over.seq, "cancelled", 1.0)
    effects = ledger.lost(P, "is gone")
    failed = failure(live, effects)
    assert (failed.code, failed.message) == ("prefill_failed", "peer p is gone")
    assert [e.seq for e in effects if isinstance(e, Freed)] == [live.seq, over.seq]
    assert [entry.seq for entry in ledger] == [other.seq]
    assert opened(ledger, room=10)[1] == []  # the next link has to be made first


def test_a_message_of_another_peer_changes_nothing() -> None:
    ledger, entry = asked()
    assert drain(ledger, Q, entry.seq, in_doubt=False) == []
    assert fail(ledger, Q, entry.seq, "cancelled", "x", "failed", drained=True, in_doubt=False, now=0.0) == []
    ledger.rang(Q, entry.seq)
    assert not entry.rung
    ledger.rang(P, entry.seq)
    assert entry.rung
    assert ledger.slots_used == 1


def test_an_unknown_seq_changes_nothing() -> None:
    ledger, entry = asked()
    seq = entry.seq + 1
    assert drain(ledger, P, seq, in_doubt=False) == []
    assert fail(ledger, P, seq, "cancelled", "x", "failed", drained=True, in_doubt=False, now=0.0) == []
    assert ledger.hear(P, wire.Accepted(token=TOKEN, seq=seq), 0.0) == []
    assert ledger.abort(seq, "cancelled", 0.0) == []
    assert len(ledger) == 1


def test_an_unanswered_handshake_is_repeated_and_an_answered_one_only_asked_about() -> None:
    ledger, entry = asked()
    assert ledger.tick(0.2) == [Tell(P, "handshake", entry.seq)]
    ledger.hear(P, wire.Accepted(token=TOKEN, seq=entry.seq), 0.0)
    assert ledger.open_seqs(P) == [entry.seq]
    assert (ledger.tick(9.9), ledger.next_wake()) == ([], 10.0)


def test_seqs_grow_strictly_over_all_peers_and_are_never_used_again() -> None:
    ledger = new()
    seqs = []
    for turn in range(50):
        entry, _ = opened(ledger, peer=P if turn % 2 else Q, room=turn + 1)
        seqs.append(entry.seq)
        ledger.abort(entry.seq, "cancelled", 0.0)
    assert seqs == sorted(set(seqs))
    assert seqs[0] >= 1


def test_slots_are_counted() -> None:
    ledger = new(slots=2)
    first, _ = opened(ledger)
    opened(ledger, peer=Q, room=8)
    assert (ledger.slots_free, ledger.slots_used) == (0, 2)
    ledger.abort(first.seq, "cancelled", 0.0)
    assert (ledger.slots_free, ledger.slots_used) == (1, 1)


# What the engine can prove


def test_a_proof_frees_the_memory_at_once_and_the_abort_is_repeated_until_it_is_answered() -> None:
    ledger, entry = asked()
    ledger.abort(entry.seq, "cancelled", 1.0)
    assert ledger.revoked(P, entry.seq) == [freed(entry)]
    assert (ledger.slots_used, len(ledger)) == (0, 1)
    assert ledger.tick(1.3) == [Tell(P, "abort", entry.seq)]
    assert ledger.wrote(entry.seq, slot(entry)) == []
    assert drain(ledger, P, entry.seq, in_doubt=True) == []
    assert (len(ledger), ledger.tick(99.0)) == (0, [])


def test_a_proof_after_the_answer_ends_the_doubt() -> None:
    ledger, entry = asked()
    assert ledger.wrote(entry.seq, slot(entry, SlotStatus.IN_DOUBT))[-1] == Revoke(P, entry.seq)
    assert ledger.slots_used == 1
    assert ledger.revoked(P, entry.seq) == [freed(entry)]
    assert (len(ledger), ledger.slots_used) == (0, 0)


def test_a_proof_about_a_live_seq_is_no_end() -> None:
    ledger, entry = asked()
    assert ledger.revoked(P, entry.seq) == []
    assert ledger.wrote(entry.seq, slot(entry))[-1] == Delivered(
        seq=entry.seq, peer=P, index=entry.slot, slot=slot(entry)
    )


def test_aborts_that_nobody_answers_are_bounded() -> None:
    ledger = new(slots=4)
    ledger.linked(P, 0.0)
    for room in range(1, UNANSWERED_MOST + 100):
        entry, _ = opened(ledger, room=room)
        ledger.abort(entry.seq, "cancelled", 0.0)
        ledger.revoked(P, entry.seq)
    assert len(ledger) <= UNANSWERED_MOST + 4
    assert ledger.slots_used == 0
    assert ledger.lost(P, "is gone") == []
    assert len(ledger) == 0


# Silence


def test_silence_ends_the_requests_of_that_peer_and_keeps_their_memory() -> None:
    ledger, entry = asked()
    ledger.linked(Q, 0.0)
    other, _ = opened(ledger, peer=Q, room=8)
    assert ledger.waits_for(P)
    effects = ledger.silent(P, "has said nothing for 20 s", 1.0)
    failed = failure(entry, effects)
    assert (failed.code, failed.reason) == ("prefill_failed", "silent")
    assert "peer p has said nothing" in failed.message
    assert effects[-1] == Tell(P, "abort", entry.seq)
    assert (ledger.slots_used, ledger.waits_for(P), ledger.waits_for(Q)) == (2, False, True)
    assert ledger.silent(P, "", 2.0) == []
    assert drain(ledger, P, entry.seq, in_doubt=False)[-1] == freed(entry)
    assert not other.request_over


ENDS = ["slot", "failed", "drained", "abort", "deadline", "lost"]


def _happen(ledger: ReceiveLedger, entry: Entry, what: str) -> list[Effect]:
    match what:
        case "slot":
            return ledger.wrote(entry.seq, slot(entry))
        case "failed":
            return fail(
                ledger, P, entry.seq, "cancelled", "x", "failed", drained=True, in_doubt=False, now=1.0
            )
        case "drained":
            return drain(ledger, P, entry.seq, in_doubt=False)
        case "abort":
            return ledger.abort(entry.seq, "cancelled", 1.0)
        case "deadline":
            return ledger.tick(10.0)
    return ledger.lost(P, "is gone")


@pytest.mark.parametrize("order", list(permutations(ENDS, 4)))
def test_in_any_order_of_ends_request_and_memory_end_exactly_once(order: tuple[str, ...]) -> None:
    ledger, entry = asked()
    effects = [effect for what in order for effect in _happen(ledger, entry, what)]
    effects += ledger.lost(P, "is gone")
    arrived = sum(isinstance(effect, Delivered) for effect in effects)
    failed = sum(isinstance(effect, Ended) for effect in effects)
    drained = sum(isinstance(effect, Freed) for effect in effects)
    assert arrived + drained == 1
    assert arrived + failed <= 1
    assert arrived + failed == 1 or "abort" in order
    assert (len(ledger), ledger.slots_used) == (0, 0)
