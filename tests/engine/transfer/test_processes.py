"""A prefill rank in its own process is stopped, continued and killed in every phase of a hand-off.

Every block of decode's pool holds a canary. After each story no block but those of rooms that arrived may have changed
except while it was quarantined for the very seq that wrote it, and blocks, slots and rooms are all free again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcore.engine.transfer.memory import on_host
from pdcore.engine.transfer.orders import Arrived, Drained, HandoffFailed
from pdcore.engine.transfer.sending import Endpoint
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import CANARY, DECODE_BLOCKS, Context, Decode, ShiftedClock, got, has, run
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class Child:
    """The other process: its lines, its signals."""

    def __init__(self, runtime_dir: Path, *gates: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.transfer.prefill_process", str(runtime_dir), *gates],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._text = ""
        rank_ip, rank_port, transfer = json.loads(
            eventually_now(self._first_line, 30, "the child's endpoint")
        )
        self.peer = ranks.peer_at(Endpoint(rank_ip, rank_port, transfer))

    def said(self, text: str) -> bool:
        assert self.process.stdout is not None
        self._text += (self.process.stdout.read() or b"").decode()
        return text in self._text

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel says it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        eventually_now(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", 5, "the stop")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _first_line(self) -> str:
        self.said("")
        assert self.process.poll() is None, "the child died"
        return self._text.partition("\n")[0] if "\n" in self._text else ""


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def decode(context: Context, clock: ShiftedClock) -> Iterator[Decode]:
    with ranks.receiving(context, clock=clock) as session:
        yield Decode(session, clock)


@pytest.fixture
def children(runtime_dir: Path) -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.close()


def start(children: list[Child], runtime_dir: Path, *gates: str) -> Child:
    children.append(Child(runtime_dir, *gates))
    return children[-1]


def assert_free(decode: Decode) -> None:
    s = decode.session.statistics()
    assert (s.slots_used, s.handoffs, s.rooms, s.quarantined, s.in_doubt) == (0, 0, 0, 0, 0)


def changed(decode: Decode) -> set[int]:
    return {block for block in range(DECODE_BLOCKS) if decode.block(block) != {CANARY}}


def link(decode: Decode, child: Child, room: int = 1) -> None:
    """One whole hand-off into blocks 30 and 31, which are then wiped: the pair knows each other."""
    child.tell(f"expect {room}")
    decode.open(room, child.peer, (30, 31))
    child.tell("go")
    run(lambda: has(decode, Arrived) and child.said(f"Sent(room={room})"), decode)
    decode.events.clear()
    size = ranks.LAYOUT.block_bytes
    on_host(decode.session.region_buffer)[30 * size :] = bytes([CANARY]) * (2 * size)


def test_two_processes_hand_kv_over(decode: Decode, children: list[Child], runtime_dir: Path) -> None:
    child = start(children, runtime_dir)
    child.tell("expect 3")
    seq = decode.open(3, child.peer, (9, 4))
    run(lambda: has(decode, Arrived), decode)
    assert decode.events == [Arrived(handoff=seq, first_token=3, kv_len=8)]
    assert (decode.block(9), decode.block(4), changed(decode)) == ({4}, {5}, {9, 4})
    assert_free(decode)


def test_stopped_before_hello(
    decode: Decode, clock: ShiftedClock, children: list[Child], runtime_dir: Path
) -> None:
    """Nothing was asked, so nothing needs draining, however long the peer sleeps."""
    child = start(children, runtime_dir)
    child.stop()
    gone = decode.open(3, child.peer, (1, 2))
    late = decode.open(7, child.peer, (3, 4))
    decode.abort(gone)
    clock.shift_s += 100
    run(lambda: len(got(decode, Drained)) == 2, decode)
    assert got(decode, HandoffFailed)[0].handoff == late
    child.go_on()
    child.tell("expect 11")
    decode.open(11, child.peer, (1, 2))
    run(lambda: has(decode, Arrived), decode)
    assert changed(decode) == {1, 2}
    assert_free(decode)


@pytest.mark.parametrize("end", ["continued", "killed"])
def test_an_abort_while_the_handshake_is_queued_at_a_stopped_prefill(
    decode: Decode, children: list[Child], runtime_dir: Path, end: str
) -> None:
    child = start(children, runtime_dir)
    link(decode, child)
    child.tell("expect 3")
    run(lambda: True, decode)
    child.stop()
    seq = decode.open(3, child.peer, (1, 2))
    decode.turn()
    decode.abort(seq)
    for _ in range(20):
        decode.turn()
    assert decode.events == []
    assert decode.session.statistics().quarantined == 1
    child.go_on() if end == "continued" else child.kill()
    run(lambda: got(decode, Drained) == [Drained(handoff=seq)], decode, within_s=5)
    assert changed(decode) <= {1, 2}  # continued, it may have finished before it read the abort
    assert_free(decode)


@pytest.mark.parametrize(
    ("phase", "end"),
    [
        ("hold", "continued"),
        ("ahead", "continued"),
        ("ahead", "killed"),
        ("kv", "continued"),
        ("slot", "continued"),
        ("kv", "killed"),
    ],
)
def test_stopped_and_timed_out_in_every_later_phase(
    decode: Decode, clock: ShiftedClock, children: list[Child], runtime_dir: Path, phase: str, end: str
) -> None:
    """The request times out, others run on another prefill, the memory waits for the drain or the fence."""
    child = start(children, runtime_dir, phase)
    child.tell("expect 3")
    reached = "Handshaken" if phase == "hold" else f"gate {phase}"
    seq = decode.open(3, child.peer, (9, 4))
    run(lambda: child.said(reached), decode)
    child.stop()
    clock.shift_s += 100
    run(lambda: has(decode, HandoffFailed), decode)
    [failed] = got(decode, HandoffFailed)
    assert (failed.handoff, failed.code) == (seq, "deadline_exceeded")
    assert decode.session.statistics().quarantined == 1
    before = changed(decode)
    assert before == {"hold": set(), "ahead": {9}, "kv": {9}, "slot": {9, 4}}[phase]
    for _ in range(20):
        decode.turn()
    assert not has(decode, Drained), "no deadline frees memory"
    if end == "continued":
        child.go_on()
        child.tell("go")
    else:
        child.kill()
    run(lambda: has(decode, Drained), decode, within_s=5)
    assert got(decode, Drained) == [Drained(handoff=seq)]
    assert not has(decode, Arrived)
    assert changed(decode) <= {9, 4}
    if end == "killed":
        assert changed(decode) == before
    assert_free(decode)
    after = changed(decode)
    for _ in range(20):
        decode.turn()
    assert changed(decode) == after, "something landed after the drain"


@pytest.mark.parametrize("phase", ["hold", "ahead", "kv", "slot"])
def test_killed_in_every_phase_fails_the_room_and_frees_at_once(
    decode: Decode, children: list[Child], runtime_dir: Path, phase: str
) -> None:
    child = start(children, runtime_dir, phase)
    child.tell("expect 3")
    seq = decode.open(3, child.peer, (9, 4))
    run(lambda: child.said("Handshaken" if phase == "hold" else f"gate {phase}"), decode)
    child.kill()
    run(lambda: has(decode, Drained), decode, within_s=2)
    [failed] = got(decode, HandoffFailed)
    assert (failed.handoff, failed.code) == (seq, "prefill_failed")
    assert "prefill p rank 0.0.0 (incarnation p1) is gone" in failed.message
    assert_free(decode)


def test_an_abort_in_the_middle_of_a_write_waits_for_it(
    decode: Decode, children: list[Child], runtime_dir: Path
) -> None:
    child = start(children, runtime_dir, "kv")
    child.tell("expect 3")
    seq = decode.open(3, child.peer, (9, 4))
    run(lambda: child.said("gate kv"), decode)
    decode.abort(seq)
    run(lambda: child.said("SendFailed(room=3, code='cancelled'"), decode)
    for _ in range(20):
        decode.turn()
    assert decode.events == []
    assert not child.said("WriteEnded")
    child.tell("go")
    run(lambda: has(decode, Drained), decode)
    eventually_now(lambda: child.said("WriteEnded(room=3)"), 5)
    assert not child.said("Sent(room=3)")
    assert changed(decode) == {9, 4}
    assert_free(decode)


def test_a_slot_finished_before_death_counts(
    decode: Decode, children: list[Child], runtime_dir: Path
) -> None:
    child = start(children, runtime_dir, "slot")
    child.tell("expect 3")
    decode.open(3, child.peer, (9, 4))
    run(lambda: child.said("gate slot"), decode)
    child.tell("go")
    eventually_now(lambda: child.said("Sent(room=3)"), 10)
    child.kill()
    child.process.wait(10)
    run(lambda: has(decode, Arrived), decode)
    run(lambda: decode.session.statistics().peers == 0, decode)
    assert not has(decode, HandoffFailed)
    assert_free(decode)
