"""A DP group of several ranks, each with its loop and a link between them: one decides, all do the same.

Sides answer at times of their own. The books balance, every request ends, and every rank computes the same batches on
the same blocks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from pdcore.clock import SystemClock
from pdcore.engine.consensus import DecodeConsensus, PrefillConsensus
from pdcore.engine.executing import ExecutorLoop
from pdcore.engine.handoffs import DecodeHandoffs, PrefillHandoffs
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.loop import Decider, RankLoop
from pdcore.engine.messages import Abort, Failed, HandedOff, Stats, Step, Stop, ToLeader, ToRank
from pdcore.engine.model.progress import Progress
from pdcore.engine.reporting import Beats
from pdcore.engine.sampled import Sampled
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.request import Request
from pdcore.engine.sides import SideGauges
from pdcore.engine.step_link import StepFollower, StepLeader
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeGroup,
    Drained,
    Expect,
    Fail,
    HandoffFailed,
    Handshaken,
    Open,
    Order,
    PrefillGroup,
    Send,
    SendAhead,
    SendFailed,
    Sent,
    SideEvent,
    WriteEnded,
)
from pdcore.topology.keys import RankPosition
from tests.engine.scheduler.simulation import groups, limits, next_token, start

pytestmark = pytest.mark.integration

GROUP = tuple(RankPosition(0, 0, tp) for tp in range(3))
DECODE = DecodeGroup(instance_id="d0", incarnation="i", dp=0, cp_size=1, tp_size=3)
PREFILL = PrefillGroup(instance_id="p0", incarnation="j", dp=0, dp_size=1, cp_size=1, tp_size=3, ranks=())


class RandomSide:
    """Does what it is ordered, later, and sometimes fails; every order is answered as the session answers it."""

    def __init__(self, seed: int, failures: float) -> None:
        self._dice = random.Random(seed)
        self._failures = failures
        self._later: list[SideEvent] = []
        self._open: set[int] = set()
        self._reading: set[int] = set()
        self.orders: list[Order] = []

    def obey(self, order: Order, now: float) -> None:
        self.orders.append(order)
        fails = self._dice.random() < self._failures
        match order:
            case Expect(room=room) if fails:
                self._later.append(SendFailed(room=room, code="prefill_failed", message="dice"))
            case Expect(room=room):
                self._open.add(room)
                self._later.append(Handshaken(room=room, decode=DECODE))
            case SendAhead(room=room) if room in self._open:
                self._reading.add(room)
                if fails:
                    self._open.discard(room)
                    self._reading.discard(room)
                    lost = SendFailed(room=room, code="prefill_failed", message="dice")
                    self._later += [lost, WriteEnded(room=room)]
            case Send(room=room) if room in self._open:
                last = (
                    SendFailed(room=room, code="prefill_failed", message="dice") if fails else Sent(room=room)
                )
                self._reading.discard(room)
                self._later += [WriteEnded(room=room), last]
            case Send(room=room, first=first) | SendAhead(room=room, first=first):
                if first:
                    self._later.append(WriteEnded(room=room))
            case Fail(room=room):
                self._open.discard(room)
                if room in self._reading:
                    self._reading.discard(room)
                    self._later.append(WriteEnded(room=room))
                self._later = [e for e in self._later if not isinstance(e, Handshaken) or e.room != room]
            case Open(handoff=handoff) if fails:
                failed = HandoffFailed(handoff=handoff, code="prefill_failed", message="dice")
                self._later += [failed, Drained(handoff=handoff)]
            case Open(handoff=handoff, prompt_len=length):
                self._later.append(Arrived(handoff=handoff, first_token=5, kv_len=length))
            case AbortHandoff(handoff=handoff):
                here = [e for e in self._later if isinstance(e, Arrived) and e.handoff == handoff]
                for event in here:
                    self._later.remove(event)
                    self._later.append(Drained(handoff=handoff))

    def poll(self, now: float) -> Sequence[SideEvent]:
        """Some of what has happened; what is about one hand-off stays in order."""
        if not self._later or self._dice.random() < 0.5:
            return ()
        count = self._dice.randint(1, len(self._later))
        told, self._later = self._later[:count], self._later[count:]
        return told

    def pollables(self) -> Sequence[int | zmq.Socket[bytes]]:
        return ()

    def next_wake(self) -> float:
        return 0.0

    def gauges(self) -> SideGauges:
        return SideGauges(slots_total=4, slots_used=len(self._later), rooms=len(self._open))


class Recorder:
    """A model that remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[tuple[Compute, ...]] = []

    def run(self, batch: Sequence[Compute], requests: Sequence[Request], progress: Progress) -> Sampled:
        self.follow(batch, progress)
        return Sampled({item.request_id: next_token(item) for item in batch if item.samples}, {})

    def follow(self, batch: Sequence[Compute], progress: Progress) -> None:
        self.batches.append(tuple(batch))
        progress.stored()
        progress.layers_done()


class Leader:
    """The other end of every rank's dispatch socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind("inproc://dispatch")
        self.ended: Counter[str] = Counter()
        self.stats: dict[bytes, Stats] = {}

    def send(self, message: ToRank) -> None:
        self.socket.send_multipart([b"0.0.0", msgspec.msgpack.encode(message)])

    def listen(self) -> None:
        while self.socket.poll(0):
            rank, frame = self.socket.recv_multipart()
            message: ToLeader = msgspec.msgpack.decode(frame, type=ToLeader)
            match message:
                case Step(outputs=outputs):
                    self.ended.update(o.request_id for o in outputs if o.finish_reason is not None)
                case HandedOff(request_id=request_id) | Failed(request_id=request_id):
                    self.ended[request_id] += 1
                case Stats():
                    self.stats[rank] = message


class Group:
    """Three ranks of one role in one process."""

    def __init__(self, stack: ExitStack, role: str, directory: Path, *, seed: int, failures: float) -> None:
        context = stack.enter_context(zmq.Context())
        self.leader = Leader(context)
        stack.callback(self.leader.socket.close)
        self.blocks = groups(64)
        self.sides = [RandomSide(seed + tp, failures) for tp in range(3)]
        self.models = [Recorder() for _ in GROUP]
        links = [
            stack.enter_context(LeaderLink(context, "inproc://dispatch", str(rank).encode()))
            for rank in GROUP
        ]
        group = stack.enter_context(StepLeader(context, f"ipc://{directory}/step.sock", GROUP[1:]))
        self.others = [
            ExecutorLoop(
                side=self.sides[tp],
                group=stack.enter_context(StepFollower(context, group.address, str(GROUP[tp]).encode())),
                model=self.models[tp],
                leader=links[tp],
                beats=Beats(None),
                clock=SystemClock(),
            )
            for tp in (1, 2)
        ]
        group.join(10, SystemClock())
        self.decides = RankLoop(
            GROUP[0],
            self._decider(role),
            side=self.sides[0],
            group=group,
            model=self.models[0],
            leader=links[0],
            beats=Beats(None),
            clock=SystemClock(),
        )

    def _decider(self, role: str) -> Decider:
        if role == "prefill":
            prefill = PrefillScheduler(limits(max_prefill_tokens=16), self.blocks, per_chunk=True, early=True)
            handoffs = PrefillHandoffs(prefill, PrefillConsensus(lambda decode: GROUP))
            return Decider(scheduler=prefill, blocks=self.blocks, handoffs=handoffs)
        decode = DecodeScheduler(limits(max_prefill_tokens=16), self.blocks)
        return Decider(
            scheduler=decode,
            blocks=self.blocks,
            handoffs=DecodeHandoffs(decode, DecodeConsensus(GROUP), vocab_size=10_000),
        )

    def turn(self, dice: random.Random) -> None:
        """Everybody in some order, as processes would."""
        turns = [self.decides.turn, *(other.turn for other in self.others)]
        dice.shuffle(turns)
        for turn in turns:
            turn()
        self.leader.listen()


@pytest.mark.parametrize("rounds", [500, pytest.param(10_000, marks=pytest.mark.cluster)])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_ranks_with_times_of_their_own_do_the_same_and_every_request_ends(
    role: str, rounds: int, tmp_path: Path
) -> None:
    dice = random.Random(3)
    with ExitStack() as stack:
        group = Group(stack, role, tmp_path, seed=11, failures=0.05)
        names = []
        for number in range(rounds):
            if number % 5 == 0:
                names.append(f"r{number}")
                prefill = PREFILL if role == "decode" else None
                request = start(
                    names[-1], dice.randint(1, 40), room=number + 1, max_tokens=dice.randint(1, 8)
                )
                group.leader.send(msgspec.structs.replace(request, prefill=prefill))
            if dice.random() < 0.02:
                aborted = dice.choice(names)
                group.leader.send(Abort(request_id=aborted))
                group.leader.ended[aborted] += 1
            group.turn(dice)
        for _ in range(10_000):
            group.turn(dice)
            if set(names) <= group.leader.ended.keys() and group.blocks.free_blocks == group.blocks.total:
                break
        assert set(names) <= group.leader.ended.keys()
        assert group.blocks.free_blocks == group.blocks.total
        group.leader.send(Stop())
        group.decides.run()
        for other in group.others:
            other.run()
        assert group.sides[0].orders == group.sides[1].orders == group.sides[2].orders
        assert group.models[0].batches == group.models[1].batches == group.models[2].batches
        assert len(group.models[0].batches) > 30
        ahead = [order for order in group.sides[0].orders if isinstance(order, SendAhead)]
        for some in (ahead, [order for order in ahead if order.computed == order.kv_len]):
            assert (role == "prefill") == bool(some)
        group.leader.listen()
        assert sum(stats.kv_blocks_total for stats in group.leader.stats.values()) == 64
