"""The writers: KV, then slot, then bell; and one result whatever the engine does."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import pytest

from pdcore.clock import SystemClock
from pdcore.engine.transfer import slot as slots
from pdcore.engine.transfer.engine import Linked, Lost
from pdcore.engine.transfer.pair_plan import NOTHING
from pdcore.engine.transfer.plan import WriteOps
from pdcore.engine.transfer.slot import SlotStatus
from pdcore.engine.transfer.writing import WriteJob, Writers, Written
from pdcore.errors import PeerGone, TransferTimeout
from tests.engine.transfer.block_copies import copy_blocks
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.unit

TOKEN = b"t" * 16


class FaultySender:
    """Records what it is asked to do; fails or waits where a test says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.slots: list[slots.Slot] = []
        self.on_write: Callable[[], None] = lambda: None
        self.on_slot: Callable[[], None] = lambda: None
        self.on_ring: Callable[[], bool] = lambda: True
        self.inline = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def endpoint(self) -> dict[str, object]:
        return {}

    def drain(self) -> Sequence[Linked | Lost]:
        return []

    def pollables(self) -> list[int]:
        return []

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        self.calls.append(f"write {len(ops)}")
        self.on_write()

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        record = slots.decode(data)
        if record is None:
            self.calls.append(f"aux at {offset}")
            return
        self.calls.append(f"slot {record.status.name}")
        self.slots.append(record)
        self.on_slot()

    def inline_bytes(self, token: bytes) -> int:
        return self.inline

    def ring(self, token: bytes, seq: int) -> bool:
        self.calls.append("ring")
        return self.on_ring()

    def announce(self, token: bytes) -> None: ...

    def release(self, token: bytes) -> None: ...


@pytest.fixture
def sender() -> FaultySender:
    return FaultySender()


@pytest.fixture
def writers(sender: FaultySender) -> Iterator[Writers]:
    with Writers(sender, SystemClock(), threads=1) as opened:
        yield opened


def job(room: int = 7, deadline: float = 1e12, block_bytes: int = 10) -> WriteJob:
    return WriteJob(
        room=room,
        token=TOKEN,
        seq=room,
        ops=lambda: copy_blocks([1, 5], [3, 9], block_bytes),
        most_bytes=2 * block_bytes,
        slot_offset=640,
        first_token=42,
        kv_len=20,
        deadline=deadline,
    )


def ended(writers: Writers) -> Written:
    assert select.select([writers.fileno()], [], [], 10)[0], "nothing ended"
    [written] = writers.drain()
    return written


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_kv_slot_and_bell_are_three_calls_in_that_order(sender: FaultySender, writers: Writers) -> None:
    writers.start(job())
    assert ended(writers).outcome == "delivered"
    assert sender.calls == ["write 2", "slot DELIVERED", "ring"]
    assert (sender.slots[0].seq, sender.slots[0].room, sender.slots[0].token, sender.slots[0].kv_len) == (
        7,
        7,
        42,
        20,
    )
    assert writers.drain() == []


def parts(room: int = 7) -> tuple[WriteJob, WriteJob]:
    """All copies of a room, ahead of its slot; and that slot."""
    first = job(room)
    first.ahead = True
    last = job(room)
    last.ops, last.most_bytes, last.aux = lambda: NOTHING, 0, (1280, b"logprobs")
    return first, last


def test_what_goes_ahead_has_no_slot_and_leaves_the_loop_to_its_work(
    sender: FaultySender, writers: Writers
) -> None:
    threads: list[int] = []
    sender.inline = 20
    sender.on_write = lambda: threads.append(threading.get_ident())
    first, last = parts()
    writers.start(first)
    assert (ended(writers).outcome, sender.calls) == ("written", ["write 2"])
    assert threads != [threading.get_ident()]
    writers.sign(first, last)
    assert writers.drain() == [], "it had ended"
    writers.start(last)
    assert ended(writers).outcome == "delivered"
    assert sender.calls == ["write 2", "aux at 1280", "slot DELIVERED", "ring"]


def test_what_is_under_way_ahead_can_be_told_to_sign(sender: FaultySender, writers: Writers) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        assert go_on.wait(10)

    sender.on_write = wait
    first, last = parts()
    writers.start(first)
    assert began.wait(10)
    writers.sign(first, last)
    go_on.set()
    assert ended(writers) == Written(first, "delivered")
    assert sender.calls == ["write 2", "aux at 1280", "slot DELIVERED", "ring"]
    assert (sender.slots[0].seq, sender.slots[0].token) == (7, 42)


def test_what_signs_and_is_stopped_writes_no_slot(sender: FaultySender, writers: Writers) -> None:
    first, last = parts()
    sender.on_write = lambda: writers.stop(first)
    writers.sign(first, last)
    writers.start(first)
    assert (ended(writers).outcome, sender.calls) == ("failed", ["write 2"])


def test_a_large_transfer_is_several_calls(sender: FaultySender, writers: Writers) -> None:
    writers.start(job(block_bytes=60 << 20))
    assert ended(writers).outcome == "delivered"
    assert sender.calls == ["write 1", "write 1", "slot DELIVERED", "ring"]


def test_a_small_job_is_written_before_start_returns(sender: FaultySender, writers: Writers) -> None:
    sender.inline = 20
    writers.start(job())
    assert sender.calls == ["write 2", "slot DELIVERED", "ring"]
    assert ended(writers).outcome == "delivered"


def test_what_a_turn_writes_inline_is_bounded(sender: FaultySender, writers: Writers) -> None:
    writing_thread: list[int] = []
    sender.inline = 8 << 20
    sender.on_write = lambda: writing_thread.append(threading.get_ident())
    for room in (1, 2, 3):
        writers.start(job(room=room, block_bytes=2 << 20))
    eventually_now(lambda: len(writing_thread) == 3, 10, "three jobs written")
    assert [thread == threading.get_ident() for thread in writing_thread] == [True, True, False]
    eventually_now(lambda: sender.calls.count("ring") == 3, 10, "three bells")
    writers.drain()
    writers.start(job(room=4, block_bytes=2 << 20))
    assert writing_thread[3] == threading.get_ident()


def test_asking_between_two_turns_what_ended_lets_no_more_be_written_inline(
    sender: FaultySender, writers: Writers
) -> None:
    sender.inline = 8 << 20
    for room in (1, 2):
        writers.start(job(room=room, block_bytes=2 << 20))
    assert [written.job.room for written in writers.ended()] == [1, 2]
    threads: list[int] = []
    sender.on_write = lambda: threads.append(threading.get_ident())
    writers.start(job(room=3, block_bytes=2 << 20))
    assert ended(writers).job.room == 3
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_failed_kv_write_says_so_in_the_slot(
    sender: FaultySender, writers: Writers, in_doubt: bool
) -> None:
    sender.on_write = raising(TransferTimeout("slow", in_doubt=in_doubt))
    writers.start(job())
    written = ended(writers)
    assert (written.outcome, written.message) == ("in_doubt" if in_doubt else "failed", "slow")
    assert sender.slots[0].status is (SlotStatus.IN_DOUBT if in_doubt else SlotStatus.FAILED)
    assert (sender.slots[0].token, sender.slots[0].kv_len) == (0, 0)


@pytest.mark.parametrize("kv_in_doubt", [False, True])
@pytest.mark.parametrize("slot_in_doubt", [False, True])
def test_doubt_about_either_write_is_doubt(
    sender: FaultySender, writers: Writers, kv_in_doubt: bool, slot_in_doubt: bool
) -> None:
    sender.on_write = raising(TransferTimeout("kv", in_doubt=kv_in_doubt))
    sender.on_slot = raising(TransferTimeout("slot", in_doubt=slot_in_doubt))
    writers.start(job())
    assert ended(writers).outcome == ("in_doubt" if kv_in_doubt or slot_in_doubt else "failed")


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_failed_slot_write_is_no_delivery(sender: FaultySender, writers: Writers, in_doubt: bool) -> None:
    sender.on_slot = raising(TransferTimeout("slot", in_doubt=in_doubt))
    writers.start(job())
    assert ended(writers).outcome == ("in_doubt" if in_doubt else "failed")
    assert sender.calls == ["write 2", "slot DELIVERED"]


def test_a_dead_peer_found_by_the_bell_is_a_failure(sender: FaultySender, writers: Writers) -> None:
    def hung_up() -> bool:
        raise PeerGone("hung up", in_doubt=False)

    sender.on_ring = hung_up
    writers.start(job())
    assert (ended(writers).outcome, sender.calls[-1]) == ("failed", "ring")


def test_a_bell_that_would_block_is_left_to_the_session(sender: FaultySender, writers: Writers) -> None:
    sender.on_ring = lambda: False
    writers.start(job())
    written = ended(writers)
    assert (written.outcome, written.unrung) == ("delivered", True)


def test_an_engine_that_breaks_leaves_doubt(sender: FaultySender, writers: Writers) -> None:
    sender.on_write = raising(MemoryError("broken"))
    writers.start(job())
    written = ended(writers)
    assert written.outcome == "in_doubt"
    assert "broken" in written.message


def test_a_deadline_is_checked_before_each_write(sender: FaultySender, writers: Writers) -> None:
    writers.start(job(deadline=0.0))
    assert (ended(writers).outcome, sender.calls) == ("failed", [])


def test_a_job_stopped_in_its_kv_writes_no_slot(sender: FaultySender, writers: Writers) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go_on.wait(10)

    sender.on_write = wait
    running, queued = job(1), job(2)
    writers.start(running)
    writers.start(queued)
    assert inside.wait(10)
    writers.stop(queued)
    assert (ended(writers).job, sender.calls) == (queued, ["write 2"])
    writers.stop(running)
    assert writers.drain() == []
    go_on.set()
    written = ended(writers)
    assert (written.job, written.outcome, sender.calls) == (running, "failed", ["write 2"])


def test_an_aux_record_is_written_between_kv_and_slot_and_the_slot_speaks_of_it(
    sender: FaultySender, writers: Writers
) -> None:
    with_aux = job()
    with_aux.aux = (1000, b"aux record")
    writers.start(with_aux)
    assert ended(writers).outcome == "delivered"
    assert sender.calls == ["write 2", "aux at 1000", "slot DELIVERED", "ring"]
    assert sender.slots[0].has_aux


def test_a_part_that_goes_ahead_leaves_the_slot_alone(sender: FaultySender, writers: Writers) -> None:
    part = job()
    part.ahead = True
    writers.start(part)
    assert (ended(writers).outcome, sender.calls) == ("written", ["write 2"])


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_part_that_fails_says_so_in_the_slot(
    sender: FaultySender, writers: Writers, in_doubt: bool
) -> None:
    part = job()
    part.ahead = True
    sender.on_write = raising(TransferTimeout("slow", in_doubt=in_doubt))
    writers.start(part)
    assert ended(writers).outcome == ("in_doubt" if in_doubt else "failed")
    assert sender.slots[0].status is (SlotStatus.IN_DOUBT if in_doubt else SlotStatus.FAILED)


def test_a_probe_is_its_record_alone(sender: FaultySender, writers: Writers) -> None:
    writers.start(WriteJob(room=0, token=TOKEN, seq=9, slot_offset=64, deadline=1e12))
    assert ended(writers).outcome == "delivered"
    assert sender.calls == ["slot DELIVERED", "ring"]
    assert not sender.slots[0].has_aux


def test_a_link_without_inline_writes_is_never_written_by_the_loop(
    sender: FaultySender, writers: Writers
) -> None:
    """Not even an empty part: its slot may wait for the peer."""
    wrote_in: list[int] = []

    def note() -> None:
        wrote_in.append(threading.get_ident())

    sender.on_slot = note
    writers.start(WriteJob(room=0, token=TOKEN, seq=9, slot_offset=64, deadline=1e12))
    ended(writers)
    assert wrote_in != [threading.get_ident()]


def test_one_peer_that_stands_still_does_not_hold_up_the_others(sender: FaultySender) -> None:
    stuck, go_on = TOKEN, threading.Event()
    others = [bytes([number]) * 16 for number in range(8)]

    class Stuck(FaultySender):
        def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
            if token == stuck:
                go_on.wait(20)
            super().write(token, ops, seq)

    with Writers(Stuck(), SystemClock(), threads=2) as writers:
        jobs = [job(room) for room in range(1, 20)]
        for one in jobs:
            writers.start(one)
        for number, token in enumerate(others):
            one = job(100 + number)
            one.token = token
            writers.start(one)
        done: list[Written] = []

        def have_ended(count: int) -> bool:
            done.extend(writers.drain())
            return len(done) == count

        try:
            eventually_now(lambda: have_ended(len(others)), 10, "the others are served")
            assert {written.job.token for written in done} == set(others)
        finally:
            for one in jobs:
                writers.stop(one)
            go_on.set()
        eventually_now(lambda: have_ended(27), 10, "all end")
