"""Every way to end a hand-off, in every state that the table has, on either side, while another one runs.

The states come from the table, and so does every way into each of them: a new state or event is covered by itself, or
this file says that it does not know how to get there. Where a state holds between two writes as well as during one,
both are tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from pdcore.engine.transfer.memory import on_host
from pdcore.engine.transfer.orders import (
    Arrived,
    Drained,
    HandoffFailed,
    SendFailed,
    Sent,
    WriteEnded,
)
from pdcore.engine.transfer.plan import Buffer, WriteOps
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.shm_sender import ShmSender
from pdcore.engine.transfer.states import (
    DEADLINES,
    TRANSITIONS,
    Deadline,
    TransferEvent,
    TransferState,
    is_final,
)
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import (
    CANARY,
    DECODE_BLOCKS,
    Context,
    Decode,
    Prefill,
    ShiftedClock,
    has,
    run,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOM, OTHER = 3, 6
LONG_S = 900.0
LIVE = [state for state in TransferState if not is_final(state)]


class GatedSender(ShmSender):
    """Its writes wait in a thread until the gate opens."""

    def __init__(self, source: memoryview, runtime_dir: Path, gate: threading.Event) -> None:
        super().__init__(source, runtime_dir)
        self._gate = gate

    def inline_bytes(self, token: bytes) -> int:
        return 0

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        self._gate.wait(30)
        super().write(token, ops, seq)


class GatedEngine(ShmEngine):
    """``shm`` with a gate."""

    gate: threading.Event

    def sender(self, source: Buffer, runtime_dir: Path) -> GatedSender:
        return GatedSender(on_host(source), runtime_dir, self.gate)


def gated() -> GatedEngine:
    engine = GatedEngine()
    object.__setattr__(engine, "gate", threading.Event())
    return engine


class Stage:
    """Prefill ``p1`` whose writes wait at a gate, prefill ``p2`` that works, and the decode rank of both."""

    def __init__(self, stack: ExitStack, context: Context, runtime_dir: Path) -> None:
        self.clock, self.engine = ShiftedClock(), gated()
        self.lives = {"prefill": stack.enter_context(ExitStack()), "decode": stack.enter_context(ExitStack())}
        for name in ("one", "two"):
            (runtime_dir / name).mkdir(mode=0o700)
        self.prefill = Prefill(
            self.lives["prefill"].enter_context(
                ranks.sending(context, runtime_dir / "one", engine=self.engine, clock=self.clock)
            ),
            sends=False,
        )
        self.bystander = Prefill(
            stack.enter_context(ranks.sending(context, runtime_dir / "two", "p2", clock=self.clock))
        )
        self.decode = Decode(
            self.lives["decode"].enter_context(ranks.receiving(context, clock=self.clock)), self.clock
        )
        self.prefill.clock = self.bystander.clock = self.clock
        self.alive = {"prefill", "decode"}
        self.sent = False
        self.whole = False
        stack.callback(self.engine.gate.set)
        self.prefill.expect(ROOM, ranks.tokens_of(ROOM), within_s=LONG_S)
        peer = ranks.peer_at(self.prefill.session.endpoint)
        self.handoff = self.decode.open(ROOM, peer, (1, 2), within_s=LONG_S)

    def turn(self) -> None:
        for name, rank in (("prefill", self.prefill), ("decode", self.decode)):
            if name in self.alive:
                rank.turn()
        self.bystander.turn()

    def until(self, check: Callable[[], object], *, ageing: bool = False) -> None:
        def turned() -> object:
            self.turn()
            return check()

        run(turned, ageing=self.clock if ageing else None)

    def kill(self, side: str) -> None:
        """As if its process had ended: its writes under way end first, for threads cannot be killed."""
        self.alive.discard(side)
        if side == "prefill":
            self.engine.gate.set()
        self.lives[side].close()


# The way into a state: one function per event of the table


def handshaken(stage: Stage) -> None:
    stage.until(lambda: stage.prefill.session.state(ROOM) is TransferState.WAITING_FOR_INPUT)


def begun_ahead(stage: Stage) -> None:
    stage.prefill.send_ahead(ROOM, ranks.tokens_of(ROOM) if stage.whole else ranks.LAYOUT.block_size)
    stage.sent = True


def started(stage: Stage) -> None:
    stage.prefill.send(ROOM, ranks.tokens_of(ROOM), first=not stage.sent)
    stage.sent = True


PERFORM = {
    TransferEvent.HANDSHAKEN: handshaken,
    TransferEvent.BEGUN_AHEAD: begun_ahead,
    TransferEvent.STARTED: started,
}


def between_writes(stage: Stage) -> None:
    """What is under way ends, and nothing else begins."""
    stage.engine.gate.set()
    stage.until(lambda: not stage.prefill.session.statistics().writing)
    stage.engine.gate.clear()


HOLD_BETWEEN_WRITES = {TransferState.SENDING_AHEAD}


def paths_to(wanted: TransferState) -> list[list[TransferEvent]]:
    """Every way through the table to a live state."""
    paths: list[tuple[TransferState, list[TransferEvent]]] = [(TransferState.BOOTSTRAPPING, [])]
    for state, path in paths:
        paths += [
            (after, [*path, event]) for event, after in TRANSITIONS[state].items() if not is_final(after)
        ]
    found = [path for state, path in paths if state is wanted]
    assert found, f"no event leads to {wanted.name}"
    return found


class Way(NamedTuple):
    """How to get into a state; ``between`` two writes, where one would be under way; with the ``whole`` prompt ahead."""

    state: TransferState
    path: list[TransferEvent]
    between: bool = False
    whole: bool = False


def ways() -> Iterator[tuple[str, Way]]:
    """Every way to be in every live state, by name."""
    for state in LIVE:
        for path in paths_to(state):
            yield "-".join([state.name, *(event.name for event in path[1:-1])]), Way(state, path)
            if state in HOLD_BETWEEN_WRITES:
                yield f"{state.name}-between writes", Way(state, path, between=True)
            if TransferEvent.BEGUN_AHEAD in path:
                yield f"{state.name}-all ahead", Way(state, path, whole=True)


WAYS = dict(ways())


# The ends


def abort_by_decode(stage: Stage) -> None:
    stage.decode.abort(stage.handoff)


def abort_by_prefill(stage: Stage) -> None:
    stage.prefill.fail(ROOM)


def _timeout(stage: Stage) -> None:
    stage.clock.shift_s += LONG_S + 1


def _silence_of_prefill(stage: Stage) -> None:
    """Prefill stands still for longer than anybody waits, and goes on."""
    stage.alive.discard("prefill")
    stage.until(lambda: has(stage.decode, HandoffFailed), ageing=True)
    stage.alive.add("prefill")


def _silence_of_decode(stage: Stage) -> None:
    stage.alive.discard("decode")
    if stage.prefill.session.statistics().peers:
        stage.until(lambda: has(stage.prefill, SendFailed), ageing=True)
    else:
        stage.prefill.fail(ROOM, "cancelled", "nobody ever came")
    stage.alive.add("decode")


ENDS: dict[str, Callable[[Stage], None]] = {
    "abort by decode": abort_by_decode,
    "abort by prefill": abort_by_prefill,
    "request deadline": _timeout,
    "silence of prefill": _silence_of_prefill,
    "silence of decode": _silence_of_decode,
    "kill of prefill": lambda stage: stage.kill("prefill"),
    "kill of decode": lambda stage: stage.kill("decode"),
}
BY_DEADLINE = {
    Deadline.REQUEST: {"request deadline"},
    Deadline.SILENCE: {"silence of prefill", "silence of decode"},
}


@pytest.fixture
def stage(context: Context, runtime_dir: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, context, runtime_dir)


def test_every_deadline_of_a_live_state_is_among_the_ends() -> None:
    named = {deadline for state in LIVE for deadline in DEADLINES[state]}
    assert named == set(BY_DEADLINE)
    assert set.union(*BY_DEADLINE.values()) <= set(ENDS)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_every_end_in_every_state(stage: Stage, way: str, end: str) -> None:
    stage.whole = WAYS[way].whole
    for event in WAYS[way].path:
        PERFORM[event](stage)
    if WAYS[way].between:
        between_writes(stage)
    assert stage.prefill.session.state(ROOM) is WAYS[way].state
    ENDS[end](stage)
    others_go_on(stage, end)
    stage.engine.gate.set()
    if stage.prefill.session.state(ROOM) is TransferState.BOOTSTRAPPING:
        stage.clock.shift_s += (
            LONG_S + 1
        )  # nobody has asked for it, so nobody can tell it: its own deadline does
    stage.until(lambda: has_ended(stage))
    for _ in range(20):
        stage.turn()
    stage.until(lambda: has_ended(stage))  # a probe of the idle pair may have been under way
    check_decode(stage, end)
    check_prefill(stage, end)


def others_go_on(stage: Stage, end: str) -> None:
    """A hand-off from the other prefill arrives while this one is being ended."""
    if "decode" not in stage.alive:
        return
    stage.bystander.expect(OTHER, ranks.tokens_of(OTHER))
    stage.decode.open(OTHER, ranks.peer_at(stage.bystander.session.endpoint, "p2"), (9, 4))
    stage.until(lambda: has(stage.decode, Arrived) and has(stage.bystander, Sent))


def has_ended(stage: Stage) -> bool:
    """Nothing is open on either side that lives."""
    held = 0
    if "prefill" in stage.alive:
        p = stage.prefill.session.statistics()
        held += p.rooms + p.stashed + p.writing + p.pinned
    if "decode" in stage.alive:
        held += stage.decode.session.statistics().slots_used
    return not held


def check_decode(stage: Stage, end: str) -> None:
    """The request ended at most once, the memory came back once, and no foreign byte is anywhere."""
    if "decode" not in stage.alive:
        return
    mine = [event for event in stage.decode.events if event.handoff == stage.handoff]
    kinds = [type(event) for event in mine]
    assert kinds.count(Drained) == 1
    assert kinds.count(HandoffFailed) == (end != "abort by decode")
    d = stage.decode.session.statistics()
    assert (d.slots_used, d.handoffs, d.quarantined, d.in_doubt) == (0, 0, 0, 0)
    changed = {block for block in range(DECODE_BLOCKS) if stage.decode.block(block) != {CANARY}}
    assert changed <= {1, 2, 9, 4}
    assert (stage.decode.block(9), stage.decode.block(4)) == ({7}, {8})
    failures = d.failures
    assert sum(failures.request.values()) + sum(failures.transfer.values()) == 1


def check_prefill(stage: Stage, end: str) -> None:
    """The leg ended once, and its source is let go of once if it was ever read."""
    if "prefill" not in stage.alive:
        return
    kinds = [type(event) for event in stage.prefill.events]
    assert kinds.count(WriteEnded) == stage.sent
    assert kinds.count(SendFailed) + kinds.count(Sent) <= 1
    p = stage.prefill.session.statistics()
    assert (p.rooms, p.stashed, p.writing, p.pinned) == (0, 0, 0, 0)
