"""Both sessions in one process over real shared memory and sockets."""

from __future__ import annotations

import gc
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from operator import contains
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import zmq

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer.memory import on_host
from pdcore.engine.transfer.orders import (
    Arrived,
    DecodeGroup,
    Drained,
    HandoffFailed,
    Handshaken,
    SendFailed,
    Sent,
    WriteEnded,
)
from pdcore.engine.transfer.plan import Buffer, WriteOps
from pdcore.engine.transfer.sending import Endpoint
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.shm_sender import ShmSender
from pdcore.errors import TransferTimeout
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import CANARY, DECODE_BLOCKS, SLOTS, Context, Decode, Prefill, got, has, run

pytestmark = pytest.mark.integration

GROUP = DecodeGroup(instance_id="d", incarnation="d1", dp=0, cp_size=1, tp_size=1)


class Pair:
    """One prefill and one decode rank, open."""

    def __init__(self, prefill: Prefill, decode: Decode) -> None:
        self.prefill, self.decode = prefill, decode
        self.peer = ranks.peer_at(prefill.session.endpoint)

    def hand_off(self, room: int, blocks: tuple[int, ...]) -> int:
        self.prefill.expect(room, ranks.tokens_of(room))
        return self.decode.open(room, self.peer, blocks)

    def until(self, check: Callable[[], object], within_s: float = 10.0) -> None:
        run(check, self.prefill, self.decode, within_s=within_s)

    def until_arrived(self, count: int) -> None:
        self.until(lambda: len(got(self.decode, Arrived)) >= count)

    def assert_idle(self) -> None:
        """Nothing is held on either side."""
        p, d = self.prefill.session.statistics(), self.decode.session.statistics()
        assert (p.rooms, p.stashed, p.writing, p.pinned) == (0, 0, 0, 0)
        assert (d.slots_used, d.handoffs, d.rooms, d.quarantined, d.in_doubt) == (0, 0, 0, 0, 0)


@pytest.fixture(params=[False, True], ids=["polled", "doorbell"])
def pair(request: pytest.FixtureRequest, context: Context, runtime_dir: Path) -> Iterator[Pair]:
    engine = ShmEngine(doorbell=request.param)
    with (
        ranks.sending(context, runtime_dir, engine=engine) as sending,
        ranks.receiving(context, engine=engine) as receiving,
    ):
        yield Pair(Prefill(sending), Decode(receiving))


def test_kv_arrives_block_by_block_and_nothing_else_changes(pair: Pair) -> None:
    seq = pair.hand_off(3, (9, 4, 20))
    pair.until(lambda: has(pair.decode, Arrived) and has(pair.prefill, Sent))
    assert pair.decode.events == [Arrived(handoff=seq, first_token=3, kv_len=8)]
    assert pair.prefill.events == [Handshaken(room=3, decode=GROUP), WriteEnded(room=3), Sent(room=3)]
    assert (pair.decode.block(9), pair.decode.block(4)) == ({4}, {5})
    assert all(pair.decode.block(b) == {CANARY} for b in range(DECODE_BLOCKS) if b not in (9, 4))
    pair.assert_idle()


def test_full_blocks_arrive_ahead_and_nothing_is_said_before_the_slot(pair: Pair) -> None:
    pair.prefill.sends = False
    handoff = pair.hand_off(3, (9, 4, 20))
    pair.until(lambda: has(pair.prefill, Handshaken))
    pair.prefill.send_ahead(3, 7)
    pair.until(lambda: pair.decode.block(9) == {4})
    pair.until(lambda: not pair.prefill.session.statistics().writing)
    assert (pair.decode.events, pair.decode.block(4)) == ([], {CANARY})
    assert pair.prefill.session.statistics().pinned == 1
    pair.prefill.send(3, 8, first=False)
    pair.until(lambda: has(pair.decode, Arrived) and has(pair.prefill, Sent))
    assert pair.decode.events == [Arrived(handoff=handoff, first_token=3, kv_len=8)]
    assert pair.prefill.events == [Handshaken(room=3, decode=GROUP), WriteEnded(room=3), Sent(room=3)]
    assert (pair.decode.block(9), pair.decode.block(4)) == ({4}, {5})
    assert all(pair.decode.block(b) == {CANARY} for b in range(DECODE_BLOCKS) if b not in (9, 4))
    pair.assert_idle()


def test_all_of_it_may_arrive_ahead_of_the_slot(pair: Pair) -> None:
    pair.prefill.sends = False
    handoff = pair.hand_off(3, (9, 4, 20))
    pair.until(lambda: has(pair.prefill, Handshaken))
    pair.prefill.send_ahead(3, 4)
    pair.prefill.send_ahead(3, 8, first=False)
    pair.until(lambda: pair.decode.block(4) == {5})
    pair.prefill.announce(3)
    pair.until(lambda: not pair.prefill.session.statistics().writing)
    assert (pair.decode.events, pair.decode.block(9)) == ([], {4})
    pair.prefill.send(3, 8, first=False)
    pair.until(lambda: has(pair.decode, Arrived) and has(pair.prefill, Sent))
    assert pair.decode.events == [Arrived(handoff=handoff, first_token=3, kv_len=8)]
    assert pair.prefill.events == [Handshaken(room=3, decode=GROUP), WriteEnded(room=3), Sent(room=3)]
    assert all(pair.decode.block(b) == {CANARY} for b in range(DECODE_BLOCKS) if b not in (9, 4))
    pair.assert_idle()


def test_the_slot_may_be_ordered_while_all_of_it_is_on_its_way(pair: Pair) -> None:
    pair.prefill.sends = False
    for room in range(1, 40):
        handoff, kv_len = pair.hand_off(room, (9, 4, 20)), ranks.tokens_of(room)
        pair.until(partial(contains, pair.prefill.events, Handshaken(room=room, decode=GROUP)))
        pair.prefill.send_ahead(room, kv_len)
        pair.prefill.send(room, kv_len, first=False)
        arrived = Arrived(handoff=handoff, first_token=room, kv_len=kv_len)
        pair.until(partial(contains, pair.decode.events, arrived))
        pair.until(partial(contains, pair.prefill.events, Sent(room=room)))
        pair.assert_idle()


def test_decode_stays_awake_from_the_announcement_until_the_slot(pair: Pair) -> None:
    pair.prefill.sends = False
    pair.hand_off(3, (9, 4))
    pair.until(lambda: has(pair.prefill, Handshaken))
    session, clock = pair.decode.session, pair.decode.clock
    pair.until(lambda: session.next_wake() > clock.now())
    for _ in range(20):  # a machine that is busy may not be seen staying awake
        pair.prefill.announce(3)
        pair.decode.turn()
        if session.next_wake() <= clock.now():
            break
    else:
        raise AssertionError("never awake")
    pair.prefill.send(3, 8)
    pair.until(lambda: has(pair.decode, Arrived))
    pair.decode.turn()
    assert session.next_wake() > clock.now()
    pair.until(lambda: has(pair.prefill, Sent))
    pair.assert_idle()


def test_an_abort_between_two_chunks_drains_and_later_orders_say_nothing(pair: Pair) -> None:
    pair.prefill.sends = False
    handoff = pair.hand_off(3, (9, 4))
    pair.until(lambda: has(pair.prefill, Handshaken))
    pair.prefill.send_ahead(3, 4)
    pair.until(lambda: pair.decode.block(9) == {4})
    pair.decode.abort(handoff)
    pair.until(lambda: has(pair.decode, Drained) and has(pair.prefill, SendFailed))
    pair.prefill.send_ahead(3, 7, first=False)
    pair.prefill.send(3, 8, first=False)
    for _ in range(10):
        pair.prefill.turn()
        pair.decode.turn()
    assert got(pair.prefill, WriteEnded) == [WriteEnded(room=3)]
    assert pair.decode.block(4) == {CANARY}
    pair.assert_idle()


def test_a_room_that_was_over_before_its_first_chunk_is_let_go_of_once(pair: Pair) -> None:
    pair.prefill.sends = False
    handoff = pair.hand_off(3, (9, 4))
    pair.until(lambda: has(pair.prefill, Handshaken))
    pair.decode.abort(handoff)
    pair.until(lambda: has(pair.prefill, SendFailed))
    pair.prefill.send_ahead(3, 4)
    pair.prefill.send(3, 8, first=False)
    pair.prefill.turn()
    assert got(pair.prefill, WriteEnded) == [WriteEnded(room=3)]
    assert pair.decode.block(9) == {CANARY}
    pair.until(lambda: has(pair.decode, Drained))
    pair.assert_idle()


def test_many_rooms_share_few_slots(pair: Pair) -> None:
    waiting, done = list(range(1, 61)), 0
    while done < 60:
        while waiting and pair.decode.session.statistics().slots_used < SLOTS:
            room = waiting.pop()
            pair.hand_off(room, (2 * (room % 16), 2 * (room % 16) + 1))
        before = done
        pair.until_arrived(before + 1)
        done = len(got(pair.decode, Arrived))
    assert {event.first_token for event in got(pair.decode, Arrived)} == set(range(1, 61))
    pair.until(lambda: len(got(pair.prefill, Sent)) == 60)
    pair.assert_idle()


def test_every_wake_up_is_a_pollable(pair: Pair) -> None:
    """A loop that only ever wakes on the pollables (with a long timeout) completes a hand-off."""
    pair.hand_off(3, (1, 2))
    poller = zmq.Poller()
    while not (has(pair.decode, Arrived) and has(pair.prefill, Sent)):
        for pollable in [*pair.prefill.session.pollables(), *pair.decode.session.pollables()]:
            poller.register(pollable, zmq.POLLIN)
        assert poller.poll(5000), "nothing woke the loop"
        pair.prefill.turn()
        pair.decode.turn()


def test_an_abort_after_the_handshake_drains(pair: Pair) -> None:
    pair.prefill.sends = False
    seq = pair.hand_off(3, (1, 2))
    pair.until(lambda: got(pair.prefill, Handshaken))
    pair.decode.abort(seq)
    pair.until(lambda: has(pair.decode, Drained) and has(pair.prefill, SendFailed))
    assert pair.decode.events == [Drained(handoff=seq)]
    assert got(pair.prefill, SendFailed)[0].code == "cancelled"
    assert pair.decode.block(1) == {CANARY}
    pair.assert_idle()


def test_a_cancelled_leg_is_told_to_decode_at_once(pair: Pair) -> None:
    pair.prefill.sends = False
    seq = pair.hand_off(3, (1, 2))
    pair.until(lambda: got(pair.prefill, Handshaken))
    pair.prefill.fail(3)
    pair.until(lambda: got(pair.decode, Drained))
    [failed] = got(pair.decode, HandoffFailed)
    assert (failed.handoff, failed.code) == (seq, "cancelled")
    assert "the client left" in failed.message
    pair.assert_idle()


def test_a_leg_cancelled_before_the_handshake_refuses_it(pair: Pair) -> None:
    pair.prefill.fail(3)
    pair.decode.open(3, pair.peer, (1, 2))
    pair.until(lambda: got(pair.decode, Drained))
    assert got(pair.decode, HandoffFailed)[0].code == "cancelled"
    pair.assert_idle()


def test_a_deadline_passes_at_decode_while_prefill_waits_for_its_leg(pair: Pair) -> None:
    seq = pair.decode.open(3, pair.peer, (1, 2), within_s=0.1)
    pair.until(lambda: got(pair.decode, Drained))
    assert got(pair.decode, HandoffFailed)[0].code == "deadline_exceeded"
    assert got(pair.decode, Drained) == [Drained(handoff=seq)]
    pair.assert_idle()


def test_slots_run_out_and_come_back(pair: Pair) -> None:
    pair.prefill.sends = False
    seqs = [pair.hand_off(room, (2 * room, 2 * room + 1)) for room in range(1, SLOTS + 1)]
    refused = pair.decode.open(9, pair.peer, (30, 31))
    pair.decode.turn()
    [failed, drained] = pair.decode.events[-2:]
    assert (failed, drained) == (
        HandoffFailed(handoff=refused, code="peer_backlog", message="0 slots are free, not 1"),
        Drained(handoff=refused),
    )
    assert pair.decode.session.statistics().failures.request == {"admission": 1}
    pair.until(lambda: len(got(pair.prefill, Handshaken)) == SLOTS)
    for seq in seqs:
        pair.decode.abort(seq)
    pair.until(lambda: len(got(pair.decode, Drained)) == SLOTS + 1)
    pair.assert_idle()


@pytest.mark.parametrize("room", [0, -1, 2**63])
def test_a_room_outside_the_protocol_is_refused_on_both_sides(pair: Pair, room: int) -> None:
    pair.prefill.expect(room, 5)
    pair.prefill.turn()
    assert [failed.code for failed in got(pair.prefill, SendFailed)] == ["invalid_request"]
    with pytest.raises(ValueError, match="room"):
        pair.decode.open(room, pair.peer, (1, 2, 3))
    pair.assert_idle()


@pytest.mark.parametrize("blocks", [(1,), (1, 1), (1, DECODE_BLOCKS), (), (-1, 2)])
def test_blocks_that_cannot_hold_the_prompt_are_a_callers_mistake(
    pair: Pair, blocks: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError):
        pair.decode.open(3, pair.peer, blocks)
    pair.assert_idle()


def test_the_reprs_are_sentences(pair: Pair) -> None:
    assert repr(pair.prefill.session) == "<SendingSession 0 rooms, 0 stashed, 0 writing, 0 peers>"
    assert (
        repr(pair.decode.session)
        == "<ReceivingSession 0 rooms, 0 quarantined (0 in doubt), 0/4 slots, 0 peers>"
    )


# Peers that do not fit, are not there, or go


def _with_blocks_of(block_size: int) -> KvLayout:
    return KvLayout(groups=(msgspec.structs.replace(ranks.LAYOUT.only_group, block_size=block_size),))


def _refused(context: Context, runtime_dir: Path, peer_incarnation: str, block_size: int) -> HandoffFailed:
    with (
        ranks.sending(context, runtime_dir) as sending,
        ranks.receiving(context, layout=_with_blocks_of(block_size)) as receiving,
    ):
        prefill, decode = Prefill(sending), Decode(receiving)
        decode.open(3, ranks.peer_at(sending.endpoint, peer_incarnation), (1, 2))
        run(lambda: got(decode, Drained), prefill, decode)
        assert decode.session.statistics().peers == 0
        run(lambda: prefill.session.statistics().peers == 0, prefill)
        return got(decode, HandoffFailed)[0]


def test_another_incarnation_is_refused_with_both_names(context: Context, runtime_dir: Path) -> None:
    failed = _refused(context, runtime_dir, "p0", ranks.LAYOUT.block_size)
    assert (failed.code, "it is incarnation p1, not p0" in failed.message) == ("prefill_failed", True)


def test_another_layout_is_refused(context: Context, runtime_dir: Path) -> None:
    assert "KV group kv: its block_size is 4, decode's 8" in _refused(context, runtime_dir, "p1", 8).message


@pytest.mark.parametrize(
    "transfer",
    [
        {},
        {"engine": "tcp"},
        {"engine": "shm", "boot_id": "other", "socket": "/tmp/x"},
        {"engine": "shm", "socket": 7},
    ],
)
def test_an_endpoint_that_shm_cannot_reach_fails_the_request_and_frees(
    context: Context, transfer: dict[str, object]
) -> None:
    with ranks.receiving(context) as receiving:
        decode = Decode(receiving)
        endpoint = Endpoint("127.0.0.1", 9, transfer)
        seq = decode.open(3, ranks.peer_at(endpoint), (1, 2))
        decode.turn()
        assert [type(event) for event in decode.events] == [HandoffFailed, Drained]
        assert got(decode, Drained) == [Drained(handoff=seq)]
        assert (
            "prefill p rank 0.0.0 (incarnation p1) cannot be reached" in got(decode, HandoffFailed)[0].message
        )


def test_an_unusable_control_address_fails_the_request_and_closes_the_link(
    context: Context, runtime_dir: Path
) -> None:
    with ranks.sending(context, runtime_dir) as sending, ranks.receiving(context) as receiving:
        decode = Decode(receiving)
        for ip in ("not an address", "256.0.0.1", "localhost"):
            endpoint = Endpoint(ip, 1, sending.endpoint.transfer)
            decode.open(3, ranks.peer_at(endpoint), (1, 2))
        decode.turn()
        assert len(got(decode, Drained)) == 3
        assert decode.session.statistics().peers == 0


def test_prefill_closing_is_a_fence(context: Context, runtime_dir: Path) -> None:
    with ranks.receiving(context) as receiving, ExitStack() as stack:
        sending = stack.enter_context(ranks.sending(context, runtime_dir))
        prefill, decode = Prefill(sending, sends=False), Decode(receiving)
        prefill.expect(3, ranks.tokens_of(3))
        decode.open(3, ranks.peer_at(sending.endpoint), (1, 2))
        run(lambda: got(prefill, Handshaken), prefill, decode)
        stack.close()
        run(lambda: got(decode, Drained), decode)
        assert "is gone" in got(decode, HandoffFailed)[0].message
        assert decode.session.statistics().peers == 0


def test_a_restarted_prefill_is_a_new_peer(context: Context, runtime_dir: Path) -> None:
    with ranks.receiving(context) as receiving:
        decode = Decode(receiving)
        for incarnation in ("p1", "p2"):
            with ranks.sending(context, runtime_dir, incarnation) as sending:
                prefill = Prefill(sending)
                prefill.expect(3, ranks.tokens_of(3))
                decode.open(3, ranks.peer_at(sending.endpoint, incarnation), (1, 2))
                run(lambda: got(decode, Arrived), prefill, decode)
                decode.events.clear()
        run(lambda: decode.session.statistics().peers == 0, decode)


def test_decodes_death_fails_its_rooms_and_unmaps_its_memory(context: Context, runtime_dir: Path) -> None:
    with ranks.sending(context, runtime_dir) as sending, ExitStack() as stack:
        receiving = stack.enter_context(ranks.receiving(context))
        prefill, decode = Prefill(sending, sends=False), Decode(receiving)
        prefill.expect(3, ranks.tokens_of(3))
        decode.open(3, ranks.peer_at(sending.endpoint), (1, 2))
        run(lambda: got(prefill, Handshaken), prefill, decode)
        assert _mapped_twice()
        stack.close()
        run(lambda: got(prefill, SendFailed), prefill)
        assert got(prefill, SendFailed)[0].code == "decode_failed"
        assert "d rank 0.0.0 (incarnation d1)" in got(prefill, SendFailed)[0].message
        assert prefill.session.statistics().peers == 0


def _mapped_twice() -> bool:
    return Path("/proc/self/maps").read_text().count("pdcore-kv") >= 2


class DoubtfulSender(ShmSender):
    """Reports that it does not know, and lands the bytes when a test says so."""

    late: ClassVar[list[Callable[[], None]]] = []

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        self.late.append(partial(super().write, token, ops, seq))
        raise TransferTimeout("no answer in time", in_doubt=True)


class DoubtfulEngine(ShmEngine):
    """``shm`` whose writes are all in doubt."""

    def sender(self, source: Buffer, runtime_dir: Path) -> DoubtfulSender:
        return DoubtfulSender(on_host(source), runtime_dir)


def test_a_write_in_doubt_lands_in_quarantined_blocks_and_only_the_fence_frees_them(
    context: Context, runtime_dir: Path
) -> None:
    with ranks.receiving(context) as receiving, ExitStack() as stack:
        sending = stack.enter_context(ranks.sending(context, runtime_dir, engine=DoubtfulEngine()))
        prefill, decode = Prefill(sending), Decode(receiving)
        prefill.expect(3, ranks.tokens_of(3))
        decode.open(3, ranks.peer_at(sending.endpoint), (1, 2))
        run(lambda: has(decode, HandoffFailed) and has(prefill, SendFailed), prefill, decode)
        assert decode.session.statistics().in_doubt == 1
        DoubtfulSender.late.pop()()
        assert decode.block(1) == {4}
        for _ in range(20):
            prefill.turn()
            decode.turn()
        assert not has(decode, Drained)
        assert not has(prefill, WriteEnded), "the source may still be read"
        assert decode.session.statistics().slots_used == 1
        stack.close()
        run(lambda: has(decode, Drained), decode)
        assert decode.session.statistics().slots_used == 0


def open_descriptors() -> int:
    """Of this process, without what earlier tests have let go of but not yet closed."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_hundreds_of_hand_offs_leave_no_descriptor_behind(pair: Pair) -> None:
    before = 0
    for room in range(1, 101):
        pair.hand_off(room, (room % 16 * 2, room % 16 * 2 + 1))
        pair.until_arrived(room)
        if room == 20:
            before = open_descriptors()
    assert open_descriptors() <= before
    pair.until(lambda: len(got(pair.prefill, Sent)) == 100)
    pair.assert_idle()


def test_an_idle_session_wakes_for_nothing(context: Context) -> None:
    with ranks.receiving(context) as receiving:
        assert receiving.next_wake() == float("inf")
        assert not select.select([fd for fd in receiving.pollables() if isinstance(fd, int)], [], [], 0)[0]
