"""Prefill's decisions: the two halves of a room, the floor, the ends of a write, the ends of a peer."""

from __future__ import annotations

import math
from itertools import permutations

import pytest

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import wire
from pdcore.engine.transfer.links import Pair, Say
from pdcore.engine.transfer.mapping import GroupRank
from pdcore.engine.transfer.orders import DecodeGroup, Handshaken, SendFailed, Sent, WriteEnded
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.rooms import Count, Effect, Leg, Outcome, Release, Sign, StopWrite, Write
from pdcore.engine.transfer.send_ledger import SendLedger
from pdcore.engine.transfer.states import IllegalTransition, TransferState
from pdcore.engine.transfer.tombs import TOMB_S
from pdcore.errors import ErrorCode

pytestmark = pytest.mark.unit

A, B = b"a" * 16, b"b" * 16
LAYOUT = KvLayout.dense(layers=1, kv_heads=1, head_dim=1, block_size=10, itemsize=1, dtype_name="uint8")
SHAPE = RegionShape(LAYOUT, blocks=(8,), slots=4, probes=2)
ROOM = 7


def pair(name: str, tp: int = 0, *, of: int = 1) -> Pair:
    """Rank ``tp`` of ``of`` in a decode group, all of whose ranks need this prefill rank's KV."""
    decode = wire.RankIdentity(instance_id=name, incarnation=f"{name}1", tp=tp)
    group = DecodeGroup(instance_id=name, incarnation=decode.incarnation, dp=0, cp_size=1, tp_size=of)
    return Pair(decode, group, frozenset(GroupRank(0, other) for other in range(of)), SHAPE)


SHAKEN = Handshaken(room=ROOM, decode=pair("da").group)


def new(**bounds: float) -> SendLedger:
    ledger = SendLedger(**bounds)  # type: ignore[arg-type]
    for token, name in ((A, "da"), (B, "db")):
        ledger.welcome(token, pair(name), 0.0)
    return ledger


def shake(
    seq: int = 1,
    *,
    token: bytes = A,
    room: int = ROOM,
    slot: int = 0,
    blocks: tuple[int, ...] = (0, 1),
    prompt_len: int = 20,
    remaining_ms: int = 5000,
) -> wire.Handshake:
    return wire.Handshake(
        token=token,
        seq=seq,
        room=room,
        slot=slot,
        groups=(blocks,),
        prompt_len=prompt_len,
        remaining_ms=remaining_ms,
    )


def leg(expected: str | None = "da1", prompt_len: int = 20, deadline: float = 10.0) -> Leg:
    return Leg(expected, prompt_len, deadline)


def abort(seq: int = 1, *, token: bytes = A, room: int = ROOM, code: ErrorCode = "cancelled") -> wire.Abort:
    return wire.Abort(token=token, seq=seq, room=room, code=code)


def accepted(seq: int = 1, token: bytes = A) -> Say:
    return Say(token, wire.Accepted(token=token, seq=seq))


def drained(seq: int = 1, token: bytes = A, in_doubt: bool = False) -> Say:
    return Say(token, wire.Drained(token=token, seq=seq, in_doubt=in_doubt))


def notice(effects: list[Effect]) -> wire.Failed:
    [message] = [e.message for e in effects if isinstance(e, Say) and isinstance(e.message, wire.Failed)]
    return message


def asked_about(ledger: SendLedger, seq: int, token: bytes = A) -> list[Effect]:
    alive, *answers = ledger.beat(wire.Beat(token=token, seqs=(seq,)))
    assert alive == Say(token, wire.Alive(token=token))
    return answers


def done(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Count)]


def reasons(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(effect.reason, effect.peer) for effect in effects if isinstance(effect, Count)]


def failure(effects: list[Effect]) -> SendFailed:
    [failed] = [effect for effect in effects if isinstance(effect, SendFailed)]
    return failed


def waiting() -> SendLedger:
    ledger = new()
    ledger.expect(ROOM, leg(), 0.0)
    ledger.handshake(shake(), 0.0)
    return ledger


def writing() -> SendLedger:
    ledger = waiting()
    ledger.start(ROOM, 20)
    return ledger


def nothing_left(ledger: SendLedger) -> bool:
    counts = ledger.counts()
    return (counts.rooms, counts.stashed, counts.writing) == (0, 0, 0)


# The two halves


def test_leg_then_shake() -> None:
    ledger = new()
    assert ledger.expect(ROOM, leg(), 0.0) == []
    assert ledger.state(ROOM) is TransferState.BOOTSTRAPPING
    assert ledger.handshake(shake(), 0.0) == [accepted(), SHAKEN]
    assert ledger.state(ROOM) is TransferState.WAITING_FOR_INPUT


def test_shake_then_leg() -> None:
    ledger = new()
    assert ledger.handshake(shake(), 0.0) == [accepted()]
    assert ledger.counts().stashed == 1
    assert ledger.expect(ROOM, leg(), 0.0) == [SHAKEN]
    assert (ledger.counts().stashed, ledger.counts().rooms) == (0, 1)


def test_a_stashed_shake_ends_at_its_own_deadline_and_its_late_leg_is_told_why() -> None:
    ledger = new()
    ledger.handshake(shake(remaining_ms=1000), 0.0)
    assert ledger.next_wake() == 1.0
    assert ledger.tick(0.9) == []
    said = notice(ledger.tick(1.0))
    assert (said.code, said.drained) == ("deadline_exceeded", True)
    assert nothing_left(ledger)
    refused = failure(ledger.expect(ROOM, leg(), 1.1))
    assert refused.code == "deadline_exceeded"


def test_the_stash_is_bounded() -> None:
    ledger = new(stash_most=3)
    for seq in range(1, 4):
        ledger.handshake(shake(seq, room=seq), 0.0)
    said = notice(ledger.handshake(shake(4, room=4), 0.0))
    assert (said.code, said.drained) == ("peer_backlog", True)
    assert ledger.counts().stashed == 3


def test_legs_are_bounded() -> None:
    ledger = new(rooms_most=1)
    ledger.expect(1, leg(), 0.0)
    refused = failure(ledger.expect(2, leg(), 0.0))
    assert refused.code == "rate_limited"


def test_prompts_of_different_length_fail_both_halves() -> None:
    for shake_first in (False, True):
        ledger = new()
        effects: list[Effect] = []
        if shake_first:
            effects += ledger.handshake(shake(), 0.0)
        effects += ledger.expect(ROOM, leg(prompt_len=19), 0.0)
        if not shake_first:
            effects += ledger.handshake(shake(), 0.0)
        assert "19 tokens for prefill and 20 for decode" in failure(effects).message
        assert notice(effects).drained
        assert nothing_left(ledger)


def test_a_leg_for_another_incarnation_refuses_the_stashed_stranger_and_waits_on() -> None:
    ledger = new()
    ledger.handshake(shake(token=B), 0.0)
    effects = ledger.expect(ROOM, leg("da1"), 0.0)
    assert "for decode incarnation da1" in notice(effects).message
    assert ledger.state(ROOM) is TransferState.BOOTSTRAPPING
    assert ledger.handshake(shake(), 0.0)[-1] == SHAKEN


def test_a_shake_of_another_incarnation_is_refused_and_the_leg_waits_on() -> None:
    ledger = new()
    ledger.expect(ROOM, leg("da1"), 0.0)
    assert "for decode incarnation da1" in notice(ledger.handshake(shake(token=B), 0.0)).message
    assert ledger.handshake(shake(), 0.0)[-1] == SHAKEN


def test_a_leg_that_names_nobody_takes_anybody() -> None:
    ledger = new()
    ledger.expect(ROOM, leg(None), 0.0)
    assert ledger.handshake(shake(token=B), 0.0)[-1] == Handshaken(room=ROOM, decode=pair("db").group)


def test_a_second_leg_is_refused_and_the_first_is_undisturbed() -> None:
    ledger = waiting()
    refused = failure(ledger.expect(ROOM, leg(), 0.0))
    assert refused.code == "room_in_use"
    ledger.start(ROOM, 20)


@pytest.mark.parametrize("token", [A, B])
def test_a_second_shake_is_refused_and_the_first_is_undisturbed(token: bytes) -> None:
    ledger = waiting()
    said = notice(ledger.handshake(shake(2, token=token), 0.0))
    assert (said.seq, said.code, said.drained) == (2, "room_in_use", True)
    assert ledger.start(ROOM, 20)[0].shake.seq == 1


# Checks


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (shake(slot=4), "slot 4"),
        (shake(blocks=(0, 8)), "outside"),
        (shake(blocks=(3, 3)), "twice"),
        (shake(blocks=(1,)), "1 blocks cannot hold 20 tokens"),
        (shake(blocks=(1, 2, 3)), "need 2 blocks, not 3"),
        (shake(blocks=tuple(range(9)), prompt_len=90), "pool has 8"),
    ],
)
def test_a_destination_that_does_not_fit_is_refused(bad: wire.Handshake, why: str) -> None:
    ledger = new()
    ledger.expect(ROOM, leg(), 0.0)
    said = notice(ledger.handshake(bad, 0.0))
    assert why in said.message
    assert said.drained
    assert ledger.state(ROOM) is TransferState.BOOTSTRAPPING
    assert ledger.handshake(shake(2), 0.0)[-1] == SHAKEN


def test_only_a_room_that_waits_for_input_can_start_and_only_once() -> None:
    ledger = new()
    for prepare in (lambda: None, lambda: ledger.expect(ROOM, leg(), 0.0)):
        prepare()
        with pytest.raises(IllegalTransition):
            ledger.start(ROOM, 20)
    ledger.handshake(shake(), 0.0)
    with pytest.raises(ValueError, match="KV of 19 tokens"):
        ledger.start(ROOM, 19)
    assert ledger.start(ROOM, 20)[0].shake.blocks == ((0, 1),)
    with pytest.raises(IllegalTransition):
        ledger.start(ROOM, 20)
    assert ledger.counts().writing == 1


# The floor


def test_a_repeated_handshake_is_answered_not_taken_again() -> None:
    ledger = waiting()
    assert ledger.handshake(shake(), 0.0) == [accepted()]
    ledger.start(ROOM, 20)
    ledger.write_ended(ROOM, A, "delivered", "", 0.0)
    assert ledger.handshake(shake(), 0.0) == [accepted()]
    assert nothing_left(ledger)


@pytest.mark.parametrize("seq", [1, 4, 5])
def test_nothing_at_or_below_the_floor_is_started(seq: int) -> None:
    ledger = new()
    ledger.handshake(shake(5, room=99), 0.0)
    ledger.abort(abort(5, room=99), 0.0)
    ledger.expect(ROOM, leg(), 0.0)
    said = notice(ledger.handshake(shake(seq), 0.0))
    assert (said.seq, said.drained) == (seq, True)
    assert ledger.state(ROOM) is TransferState.BOOTSTRAPPING


def test_an_abort_raises_the_floor_of_its_link_alone() -> None:
    ledger = new()
    assert ledger.abort(abort(9, room=1), 0.0) == [drained(9)]
    assert notice(ledger.handshake(shake(9), 0.0)).drained
    assert ledger.handshake(shake(1, token=B, room=2), 0.0) == [accepted(1, B)]
    assert ledger.handshake(shake(10), 0.0) == [accepted(10)]


def test_an_abort_that_overtook_its_handshake_fails_the_leg_now_or_later() -> None:
    ledger = new()
    ledger.expect(ROOM, leg(), 0.0)
    effects = ledger.abort(abort(code="deadline_exceeded"), 0.0)
    assert failure(effects).code == "deadline_exceeded"
    assert effects[-1] == drained()
    ledger = new()
    assert ledger.abort(abort(), 0.0) == [drained()]
    assert "gave the request up" in failure(ledger.expect(ROOM, leg(), 0.0)).message


def test_a_foreign_abort_leaves_a_room_alone() -> None:
    ledger = waiting()
    assert ledger.abort(abort(1, token=B), 0.0) == [drained(1, B)]
    assert ledger.state(ROOM) is TransferState.WAITING_FOR_INPUT
    ledger = new()
    ledger.expect(ROOM, leg("da1"), 0.0)
    assert ledger.abort(abort(1, token=B), 0.0) == [drained(1, B)]
    assert ledger.state(ROOM) is TransferState.BOOTSTRAPPING


def test_a_query_is_answered_with_the_last_word() -> None:
    ledger = waiting()
    assert asked_about(ledger, 1) == []  # all is well with it
    said = ledger.fail(ROOM, "cancelled", "client left", 0.0)
    assert asked_about(ledger, 1) == done(said)
    assert asked_about(ledger, 2) == []


def test_a_query_about_a_forgotten_seq_is_answered_as_ended() -> None:
    ledger = new()
    ledger.abort(abort(5, room=1), 0.0)
    said = notice(asked_about(ledger, 3))
    assert (said.seq, said.drained, said.in_doubt) == (3, True, False)


# Ends without a write


def test_a_failed_leg_is_told_to_decode_at_once() -> None:
    ledger = waiting()
    effects = done(ledger.fail(ROOM, "cancelled", "client left", 0.0))
    said = notice(effects)
    assert (len(effects), said.code, said.message, said.drained) == (1, "cancelled", "client left", True)
    assert nothing_left(ledger)
    assert ledger.fail(ROOM, "cancelled", "again", 0.0) == []


def test_a_leg_that_failed_before_its_handshake_is_told_when_that_comes() -> None:
    for known in (True, False):
        ledger = new()
        if known:
            ledger.expect(ROOM, leg(), 0.0)
        assert done(ledger.fail(ROOM, "cancelled", "client left", 0.0)) == []
        said = notice(ledger.handshake(shake(), 1.0))
        assert (said.code, said.message, said.drained) == ("cancelled", "client left", True)
        assert nothing_left(ledger)


def test_an_abort_before_the_write_drains_at_once() -> None:
    ledger = waiting()
    effects = ledger.abort(abort(), 0.0)
    assert failure(effects).code == "cancelled"
    assert effects[-1] == drained()
    assert nothing_left(ledger)
    assert ledger.abort(abort(), 0.0) == [drained()]


@pytest.mark.parametrize(("leg_deadline", "remaining_ms", "at"), [(3.0, 9000, 3.0), (9.0, 4000, 4.0)])
def test_the_earlier_deadline_of_both_halves_fails_the_room(
    leg_deadline: float, remaining_ms: int, at: float
) -> None:
    ledger = new()
    ledger.expect(ROOM, leg(deadline=leg_deadline), 0.0)
    ledger.handshake(shake(remaining_ms=remaining_ms), 0.0)
    assert (ledger.next_wake(), ledger.tick(at - 0.1)) == (at, [])
    effects = ledger.tick(at)
    assert failure(effects).code == notice(effects).code == "deadline_exceeded"
    assert (ledger.next_wake(), nothing_left(ledger)) == (math.inf, True)


def test_a_room_that_ended_stays_ended_for_a_while() -> None:
    ledger = writing()
    ledger.write_ended(ROOM, A, "delivered", "", 0.0)
    assert "handed off already" in failure(ledger.expect(ROOM, leg(), TOMB_S - 1)).message
    assert notice(ledger.handshake(shake(2), TOMB_S - 1)).code == "room_in_use"
    ledger.tick(TOMB_S)
    assert ledger.counts().tombs == 0
    ledger.expect(ROOM, leg(deadline=TOMB_S + 10), TOMB_S)


def test_ten_thousand_rooms_leave_bounded_memory() -> None:
    ledger = new()
    for seq in range(1, 10_001):
        ledger.handshake(shake(seq, room=seq), 0.0)
        ledger.abort(abort(seq, room=seq), 0.0)
    assert nothing_left(ledger)
    assert ledger.counts().tombs <= 4096


# Ends with a write

OUTCOMES: list[tuple[Outcome, bool]] = [("delivered", False), ("failed", False), ("in_doubt", True)]


def test_a_delivered_write() -> None:
    ledger = writing()
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]
    assert nothing_left(ledger)
    assert ledger.abort(abort(), 0.0) == [drained()]


def test_a_write_that_definitely_failed() -> None:
    ledger = writing()
    effects = ledger.write_ended(ROOM, A, "failed", "the peer refused", 0.0)
    assert effects[0] == WriteEnded(room=ROOM)
    assert (failure(effects).code, failure(effects).message) == ("prefill_failed", "the peer refused")
    assert (notice(effects).drained, notice(effects).in_doubt) == (True, False)
    assert ledger.abort(abort(), 0.0) == [drained()]


def test_a_write_in_doubt_is_never_drained_and_keeps_its_source_until_decode_is_gone() -> None:
    ledger = writing()
    effects = ledger.write_ended(ROOM, A, "in_doubt", "no answer", 0.0)
    assert WriteEnded(room=ROOM) not in effects
    assert (notice(effects).drained, notice(effects).in_doubt) == (False, True)
    assert ledger.abort(abort(), 0.0) == [drained(in_doubt=True)]
    assert notice(ledger.handshake(shake(), 0.0)).in_doubt
    for seq in range(2, 9000):  # long after everything else about it is forgotten
        ledger.abort(abort(seq, room=seq + 100), 0.0)
        ledger.handshake(shake(seq, room=seq), 0.0)
    assert ledger.abort(abort(), 0.0) == [drained(in_doubt=True)]
    assert asked_about(ledger, 1) == [drained(in_doubt=True)]
    assert ledger.lost(A, 0.0) == [Release(A), WriteEnded(room=ROOM)]


@pytest.mark.parametrize("why", ["abort", "fail", "deadline"])
@pytest.mark.parametrize(("outcome", "in_doubt"), OUTCOMES)
def test_a_request_that_ends_during_its_write_is_drained_when_the_write_ended(
    why: str, outcome: Outcome, in_doubt: bool
) -> None:
    ledger = writing()
    if why == "abort":
        effects = ledger.abort(abort(), 1.0)
        assert failure(effects).code == "cancelled"
    elif why == "fail":
        effects = ledger.fail(ROOM, "cancelled", "x", 1.0)
        assert not notice(effects).drained
        assert asked_about(ledger, 1) == done(effects)[:1]
    else:
        effects = ledger.tick(5.0)
        assert not notice(effects).drained
    assert effects[-1] == StopWrite(ROOM, A)
    assert ledger.abort(abort(), 1.0) == []
    assert ledger.tick(99.0) == []
    assert "in use" in failure(ledger.expect(ROOM, leg(), 1.0)).message
    after = ledger.write_ended(ROOM, A, outcome, "", 2.0)
    assert after == [*([] if in_doubt else [WriteEnded(room=ROOM)]), drained(in_doubt=in_doubt)]
    assert ledger.abort(abort(), 3.0) == [drained(in_doubt=in_doubt)]
    assert nothing_left(ledger)


# Ends of a peer


def test_decodes_death_fails_its_rooms_and_releases_its_memory() -> None:
    ledger = waiting()
    ledger.handshake(shake(2, room=8), 0.0)
    effects = ledger.lost(A, 0.0)
    assert (failure(effects).room, failure(effects).code) == (ROOM, "decode_failed")
    assert "da rank 0.0.0 (incarnation da1)" in failure(effects).message
    assert [e for e in done(effects) if not isinstance(e, SendFailed)] == [Release(A)]
    assert nothing_left(ledger)
    assert (ledger.heard(A, 0.0), ledger.heard(B, 0.0)) == (False, True)


@pytest.mark.parametrize(("outcome", "in_doubt"), OUTCOMES)
def test_decodes_memory_is_released_only_after_its_writes_returned(outcome: Outcome, in_doubt: bool) -> None:
    ledger = writing()
    effects = ledger.lost(A, 0.0)
    assert done(effects) == [failure(effects), StopWrite(ROOM, A)]
    assert not ledger.heard(A, 0.0)
    after = ledger.write_ended(ROOM, A, outcome, "", 0.0)
    assert after == ([Release(A), WriteEnded(room=ROOM)] if in_doubt else [WriteEnded(room=ROOM), Release(A)])
    assert nothing_left(ledger)


# Silence


def test_a_decode_rank_that_says_nothing_fails_its_rooms_and_releases_nothing() -> None:
    ledger = new(silence_s=3.0)
    ledger.expect(ROOM, leg(), 0.0)
    ledger.handshake(shake(remaining_ms=9000), 0.0)
    assert ledger.next_wake() == 3.0
    assert ledger.heard(A, 2.0)
    assert done(ledger.tick(4.9)) == []
    effects = ledger.tick(5.0)
    assert (failure(effects).code, reasons(effects)) == ("decode_failed", [("silent", "da rank 0.0.0")])
    assert "has said nothing for 3 s" in failure(effects).message
    assert notice(effects).drained
    assert nothing_left(ledger)
    assert ledger.counts().links == 2


def test_silence_during_a_write_stops_it_and_waits_for_its_end() -> None:
    ledger = new(silence_s=3.0)
    ledger.expect(ROOM, leg(), 0.0)
    ledger.handshake(shake(), 0.0)
    ledger.start(ROOM, 20)
    effects = ledger.tick(3.0)
    assert effects[-1] == StopWrite(ROOM, A)
    assert not notice(effects).drained
    assert ledger.counts().pinned == 1
    assert done(ledger.write_ended(ROOM, A, "failed", "stopped", 4.0)) == [WriteEnded(room=ROOM), drained()]
    assert nothing_left(ledger)


def test_nobody_is_silent_who_is_not_waited_for() -> None:
    ledger = new(silence_s=3.0)
    ledger.expect(ROOM, leg(deadline=900.0), 0.0)
    assert (ledger.tick(800.0), ledger.next_wake()) == ([], 900.0)


# Ahead of the rest

CHUNK = 10


def ahead() -> SendLedger:
    """A first chunk is being written over A."""
    ledger = waiting()
    [write] = ledger.send_ahead(ROOM, 20, CHUNK)
    assert isinstance(write, Write)
    assert (write.shake.seq, write.tokens) == (1, range(CHUNK))
    return ledger


def between_chunks() -> SendLedger:
    ledger = ahead()
    assert ledger.write_ended(ROOM, A, "written", "", 0.0) == []
    return ledger


def test_the_rest_is_written_when_the_chunk_before_it_has_ended() -> None:
    ledger = ahead()
    assert ledger.start(ROOM, 20) == []
    assert ledger.state(ROOM) is TransferState.TRANSFERRING
    [write] = ledger.write_ended(ROOM, A, "written", "", 0.0)
    assert isinstance(write, Write)
    assert write.tokens == range(CHUNK, 20)
    assert ledger.counts().writing == 1
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]
    assert nothing_left(ledger)


def test_chunks_that_came_during_a_write_go_together() -> None:
    ledger = ahead()
    assert ledger.send_ahead(ROOM, 20, 12) == []
    assert ledger.send_ahead(ROOM, 20, 17) == []
    [write] = ledger.write_ended(ROOM, A, "written", "", 0.0)
    assert isinstance(write, Write)
    assert write.tokens == range(CHUNK, 17)


def test_between_two_chunks_nothing_is_written_and_the_source_stays_pinned() -> None:
    ledger = between_chunks()
    counts = ledger.counts()
    assert (counts.writing, counts.pinned, counts.rooms) == (0, 1, 1)
    assert ledger.state(ROOM) is TransferState.SENDING_AHEAD
    [write] = ledger.start(ROOM, 20)
    assert isinstance(write, Write)
    assert write.tokens == range(CHUNK, 20)


def all_ahead() -> SendLedger:
    """All KV is being written over A, and the first token is not known."""
    ledger = waiting()
    [write] = ledger.send_ahead(ROOM, 20, 20)
    assert isinstance(write, Write)
    assert write.tokens == range(20)
    return ledger


def test_with_all_kv_ahead_the_last_write_is_the_slot_alone() -> None:
    ledger = all_ahead()
    assert ledger.write_ended(ROOM, A, "written", "", 0.0) == []
    assert (ledger.state(ROOM), ledger.counts().pinned) == (TransferState.SENDING_AHEAD, 1)
    [write] = ledger.start(ROOM, 20)
    assert isinstance(write, Write)
    assert (write.shake.seq, write.tokens) == (1, range(20, 20))
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]
    assert nothing_left(ledger)


def test_a_write_of_all_that_is_under_way_may_sign() -> None:
    ledger = all_ahead()
    [sign] = ledger.start(ROOM, 20)
    assert isinstance(sign, Sign)
    assert (sign.room, sign.shake.link.token) == (ROOM, A)
    assert ledger.counts().writing == 1
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]
    assert nothing_left(ledger)


def test_a_write_of_all_that_could_not_sign_is_followed_by_the_slot() -> None:
    ledger = all_ahead()
    ledger.start(ROOM, 20)
    [write] = ledger.write_ended(ROOM, A, "written", "", 0.0)
    assert isinstance(write, Write)
    assert (write.tokens, ledger.counts().writing) == (range(20, 20), 1)
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]
    assert nothing_left(ledger)


def test_a_write_of_a_part_never_signs() -> None:
    ledger = ahead()
    assert ledger.send_ahead(ROOM, 20, 20) == []
    assert ledger.start(ROOM, 20) == []
    [write] = ledger.write_ended(ROOM, A, "written", "", 0.0)
    assert isinstance(write, Write)
    assert write.tokens == range(CHUNK, 20)


def test_an_abort_while_a_write_signs_stops_it_and_waits_for_it() -> None:
    ledger = all_ahead()
    ledger.start(ROOM, 20)
    effects = ledger.abort(abort(), 1.0)
    assert effects[-1] == StopWrite(ROOM, A)
    assert drained() not in effects
    assert ledger.write_ended(ROOM, A, "delivered", "", 2.0) == [WriteEnded(room=ROOM), drained()]
    assert (nothing_left(ledger), ledger.counts().pinned) == (True, 0)


@pytest.mark.parametrize("computed", [0, 9, CHUNK, 21])
def test_what_is_sent_ahead_grows_and_is_never_more_than_all(computed: int) -> None:
    ledger = ahead()
    with pytest.raises(ValueError, match=f"KV of {computed} of 20 tokens"):
        ledger.send_ahead(ROOM, 20, computed)
    assert ledger.counts().writing == 1


def test_nothing_is_sent_ahead_before_the_handshake_or_after_the_last_write() -> None:
    ledger = new()
    for prepare in (lambda: None, lambda: ledger.expect(ROOM, leg(), 0.0)):
        prepare()
        with pytest.raises(IllegalTransition):
            ledger.send_ahead(ROOM, 20, CHUNK)
    with pytest.raises(IllegalTransition):
        writing().send_ahead(ROOM, 20, CHUNK)


def test_an_abort_between_two_chunks_drains_at_once_and_lets_the_source_go() -> None:
    ledger = between_chunks()
    effects = ledger.abort(abort(), 1.0)
    assert failure(effects).code == "cancelled"
    assert [e for e in effects if isinstance(e, WriteEnded)] == [WriteEnded(room=ROOM)]
    assert effects[-1] == drained()
    assert (nothing_left(ledger), ledger.counts().pinned) == (True, 0)


def test_an_abort_during_a_chunk_waits_for_it() -> None:
    ledger = ahead()
    effects = ledger.abort(abort(), 1.0)
    assert effects[-1] == StopWrite(ROOM, A)
    assert drained() not in effects
    assert ledger.counts().pinned == 1
    assert ledger.has_nothing_to_send(ROOM, 1.0, ahead=True)
    assert ledger.write_ended(ROOM, A, "written", "", 2.0) == [WriteEnded(room=ROOM), drained()]
    assert (nothing_left(ledger), ledger.counts().pinned) == (True, 0)


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_chunk_that_fails_ends_the_room(in_doubt: bool) -> None:
    ledger = ahead()
    ledger.send_ahead(ROOM, 20, 15)
    effects = ledger.write_ended(ROOM, A, "in_doubt" if in_doubt else "failed", "broken", 0.0)
    assert not [e for e in effects if isinstance(e, Write)], "nothing follows a write that failed"
    assert (failure(effects).code, failure(effects).message) == ("prefill_failed", "broken")
    assert (notice(effects).drained, notice(effects).in_doubt) == (not in_doubt, in_doubt)
    assert (WriteEnded(room=ROOM) in effects) is not in_doubt
    assert ledger.has_nothing_to_send(ROOM, 0.0)
    if in_doubt:
        assert ledger.lost(A, 0.0) == [Release(A), WriteEnded(room=ROOM)]
    assert ledger.counts().pinned == 0


def test_decodes_death_between_two_chunks_lets_the_source_go() -> None:
    ledger = between_chunks()
    effects = ledger.lost(A, 0.0)
    assert done(effects) == [failure(effects), WriteEnded(room=ROOM), Release(A)]
    assert nothing_left(ledger)


def test_a_rank_that_nobody_asks_waits_for_the_last_order() -> None:
    ledger = new()
    ledger.expect(ROOM, leg(None), 0.0)
    assert ledger.has_nothing_to_send(ROOM, 0.0, ahead=True)
    assert ledger.counts().rooms == 1
    assert ledger.has_nothing_to_send(ROOM, 0.0)
    assert nothing_left(ledger)


# Many destinations


def two(**bounds: float) -> SendLedger:
    """A and B are the ranks of one decode group of two."""
    ledger = SendLedger(**bounds)  # type: ignore[arg-type]
    ledger.welcome(A, pair("d", 0, of=2), 0.0)
    ledger.welcome(B, pair("d", 1, of=2), 0.0)
    return ledger


BOTH = Handshaken(room=ROOM, decode=pair("d", of=2).group)


def both_waiting() -> SendLedger:
    ledger = two()
    ledger.expect(ROOM, leg("d1"), 0.0)
    ledger.handshake(shake(), 0.0)
    assert ledger.handshake(shake(token=B), 0.0)[-1] == BOTH
    return ledger


def both_writing() -> SendLedger:
    ledger = both_waiting()
    assert {one.shake.link.token for one in ledger.start(ROOM, 20)} == {A, B}
    return ledger


@pytest.mark.parametrize("order", list(permutations(["leg", "a", "b"])))
def test_a_room_is_handshaken_when_its_leg_and_every_destination_are_here(order: tuple[str, ...]) -> None:
    ledger = two()
    happen = {
        "leg": lambda: ledger.expect(ROOM, leg("d1"), 0.0),
        "a": lambda: ledger.handshake(shake(), 0.0),
        "b": lambda: ledger.handshake(shake(token=B), 0.0),
    }
    effects = [happen[what]() for what in order]
    assert [BOTH in each for each in effects] == [False, False, True]


def test_a_room_is_sent_when_every_slot_is_written_and_unpinned_when_every_write_ended() -> None:
    ledger = both_writing()
    assert ledger.write_ended(ROOM, B, "delivered", "", 0.0) == []
    assert ledger.state(ROOM) is TransferState.TRANSFERRING
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]
    assert nothing_left(ledger)


def test_a_destination_that_does_not_come_fails_the_others_at_the_deadline() -> None:
    ledger = two()
    ledger.expect(ROOM, leg("d1"), 0.0)
    ledger.handshake(shake(), 0.0)
    effects = ledger.tick(5.0)
    assert failure(effects).code == notice(effects).code == "deadline_exceeded"
    late = notice(ledger.handshake(shake(token=B), 6.0))
    assert (late.code, late.reason, late.drained) == ("deadline_exceeded", "deadline", True)
    assert nothing_left(ledger)


def test_an_abort_of_one_destination_fails_the_other_and_each_is_drained_by_its_own_write() -> None:
    ledger = both_writing()
    effects = ledger.abort(abort(), 0.0)
    assert notice(effects).token == B
    assert [e for e in effects if isinstance(e, StopWrite)] == [StopWrite(ROOM, A), StopWrite(ROOM, B)]
    assert drained() not in effects
    assert ledger.write_ended(ROOM, B, "failed", "stopped", 0.0) == [drained(1, B)]
    assert ledger.abort(abort(token=B), 0.0) == [drained(1, B)]
    assert ledger.write_ended(ROOM, A, "delivered", "", 0.0) == [WriteEnded(room=ROOM), drained()]
    assert nothing_left(ledger)


def test_a_write_that_fails_stops_the_other_and_what_was_delivered_is_not_taken_back() -> None:
    ledger = both_writing()
    ledger.write_ended(ROOM, A, "delivered", "", 0.0)
    effects = ledger.write_ended(ROOM, B, "failed", "refused", 0.0)
    assert effects[0] == WriteEnded(room=ROOM)
    assert reasons(effects) == [("failed", "d rank 0.0.1")]
    assert notice(effects).token == B
    assert asked_about(ledger, 1) == [accepted()]
    assert nothing_left(ledger)


def test_one_write_in_doubt_pins_the_source_after_the_others_ended() -> None:
    ledger = both_writing()
    assert WriteEnded(room=ROOM) not in ledger.write_ended(ROOM, A, "in_doubt", "no answer", 0.0)
    assert WriteEnded(room=ROOM) not in ledger.write_ended(ROOM, B, "failed", "stopped", 0.0)
    assert ledger.counts().pinned == 1
    assert failure(ledger.expect(ROOM, leg("d1"), 1e6)).code == "room_in_use"
    assert ledger.lost(B, 0.0) == [Release(B)]
    assert ledger.lost(A, 0.0) == [Release(A), WriteEnded(room=ROOM)]
    assert ledger.counts().pinned == 0


def test_each_destination_gets_the_next_chunk_when_its_own_write_has_ended() -> None:
    ledger = both_waiting()
    ledger.send_ahead(ROOM, 20, CHUNK)
    ledger.write_ended(ROOM, A, "written", "", 0.0)
    [to_a] = ledger.start(ROOM, 20)
    assert isinstance(to_a, Write)
    assert (to_a.shake.link.token, to_a.tokens) == (A, range(CHUNK, 20))
    ledger.write_ended(ROOM, A, "delivered", "", 0.0)
    [to_b] = ledger.write_ended(ROOM, B, "written", "", 0.0)
    assert isinstance(to_b, Write)
    assert (to_b.shake.link.token, to_b.tokens) == (B, range(CHUNK, 20))
    assert ledger.write_ended(ROOM, B, "delivered", "", 0.0) == [WriteEnded(room=ROOM), Sent(room=ROOM)]


def test_a_chunk_that_fails_stops_the_other_destinations_chunk_and_unpins_last() -> None:
    ledger = both_waiting()
    ledger.send_ahead(ROOM, 20, CHUNK)
    effects = ledger.write_ended(ROOM, A, "failed", "refused", 0.0)
    assert effects[-1] == StopWrite(ROOM, B)
    assert ledger.write_ended(ROOM, B, "written", "", 0.0) == [WriteEnded(room=ROOM), drained(1, B)]
    assert nothing_left(ledger)


def test_two_decode_groups_cannot_share_a_room() -> None:
    ledger = two()
    ledger.welcome(b"c" * 16, pair("other", 1, of=2), 0.0)
    ledger.handshake(shake(), 0.0)
    assert notice(ledger.handshake(shake(token=b"c" * 16), 0.0)).code == "room_in_use"
    ledger.handshake(shake(token=B), 0.0)
    assert ledger.expect(ROOM, leg("d1"), 0.0) == [BOTH]


def test_a_rank_that_nobody_asks_takes_send_as_the_end_of_the_room() -> None:
    ledger = new()
    ledger.expect(ROOM, leg(None), 0.0)
    assert ledger.has_nothing_to_send(ROOM, 0.0)
    assert nothing_left(ledger)
    assert ledger.has_nothing_to_send(ROOM, 0.0)
    assert not waiting().has_nothing_to_send(ROOM, 0.0)


# Probes


def test_a_probe_is_written_once_in_its_own_place_and_counts_as_a_write() -> None:
    ledger = new()
    assert ledger.begin_probe(A, 3, 1)
    assert not ledger.begin_probe(A, 3, 1)
    assert not ledger.begin_probe(A, 4, 2)
    assert ledger.lost(A, 0.0) == []
    assert ledger.probe_ended(A) == [Release(A)]


def test_a_probe_raises_the_floor() -> None:
    ledger = new()
    ledger.begin_probe(A, 3, 0)
    assert notice(ledger.handshake(shake(2), 0.0)).drained
    assert ledger.handshake(shake(4), 0.0) == [accepted(4)]


def test_an_unknown_link_is_released_at_once() -> None:
    assert new().lost(b"x" * 16, 0.0) == [Release(b"x" * 16)]
