from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec
import pytest
import zmq

from pdcore.clock import SystemClock
from pdcore.engine.handoffs import NoHandoffs
from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.loop import Decider, RankLoop
from pdcore.engine.messages import Abort, Failed, Stats, Step, Stop, ToLeader, ToRank
from pdcore.engine.model.progress import Progress
from pdcore.engine.reporting import Beats
from pdcore.engine.sampled import Sampled
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.scheduler.request import Request
from pdcore.engine.scheduler.unified import UnifiedScheduler
from pdcore.engine.sides import NoSide
from pdcore.engine.step_link import StepLeader
from pdcore.topology.keys import RankPosition
from tests.engine.scheduler.simulation import groups, limits, next_token, start

pytestmark = pytest.mark.unit


class Arithmetic:
    """A model whose answers depend on the position alone."""

    def run(self, batch: Sequence[Compute], requests: Sequence[Request], progress: Progress) -> Sampled:
        assert [r.request_id for r in requests] == [item.request_id for item in batch]
        return Sampled({item.request_id: next_token(item) for item in batch if item.samples}, {})


class Leader:
    """The other end of the dispatch socket, in the same process."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind("inproc://dispatch")

    def send(self, message: ToRank) -> None:
        self.socket.send_multipart([b"0.0.0", msgspec.msgpack.encode(message)])

    def received(self) -> list[ToLeader]:
        messages = []
        while self.socket.poll(20):
            messages.append(msgspec.msgpack.decode(self.socket.recv_multipart()[1], type=ToLeader))
        return messages


class Bench:
    """A loop with a cheap model, and its leader."""

    def __init__(self, leader: Leader, loop: RankLoop, blocks: BlockGroups, beats: int) -> None:
        self.leader = leader
        self.loop = loop
        self.blocks = blocks
        self.beats = beats

    def turn_until_idle(self) -> None:
        self.loop.turn()
        while self.loop.turn():
            pass


@pytest.fixture
def bench() -> Iterator[Bench]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    leader = Leader(context)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    blocks = groups(64)
    scheduler = UnifiedScheduler(limits(), blocks)
    with (
        LeaderLink(context, "inproc://dispatch", b"0.0.0") as link,
        StepLeader(context, "inproc://nobody", ()) as group,
    ):
        loop = RankLoop(
            RankPosition(0, 0, 0),
            Decider(scheduler=scheduler, blocks=blocks, handoffs=NoHandoffs(scheduler)),
            side=NoSide(),
            group=group,
            model=Arithmetic(),
            leader=link,
            beats=Beats(writer),
            clock=SystemClock(),
        )
        yield Bench(leader, loop, blocks, reader)
    leader.socket.close()
    context.term()
    os.close(reader)
    os.close(writer)


def test_a_request_comes_back_token_by_token(bench: Bench) -> None:
    bench.loop.turn()
    bench.leader.send(start("a", 5, max_tokens=3))
    bench.turn_until_idle()
    outputs = [o for m in bench.leader.received() if isinstance(m, Step) for o in m.outputs]
    assert [o.token_ids for o in outputs] == [(1005,), (1006,), (1007,)]
    assert [o.finish_reason for o in outputs] == [None, None, "length"]


def test_what_cannot_run_is_answered_with_the_reason(bench: Bench) -> None:
    bench.leader.send(start("a", 300))
    bench.turn_until_idle()
    (failed,) = [m for m in bench.leader.received() if isinstance(m, Failed)]
    assert (failed.request_id, failed.code) == ("a", "context_length_exceeded")


def test_the_last_gauges_of_a_busy_time_say_that_nothing_is_held(bench: Bench) -> None:
    for name in "abc":
        bench.leader.send(start(name, 9, max_tokens=5))
    bench.turn_until_idle()
    bench.loop.turn()
    stats = [m for m in bench.leader.received() if isinstance(m, Stats)][-1]
    assert (stats.kv_blocks_used, stats.running, stats.prealloc) == (0, 0, 0)
    assert (stats.output_tokens, stats.prefill_tokens) == (15, 27)
    assert bench.blocks.free_blocks == bench.blocks.total


def test_an_abort_ends_a_request_silently(bench: Bench) -> None:
    bench.leader.send(start("a", 5, max_tokens=1000))
    bench.loop.turn()
    bench.leader.send(Abort(request_id="a"))
    bench.leader.send(Abort(request_id="never heard of"))
    bench.turn_until_idle()
    assert not [m for m in bench.leader.received() if isinstance(m, Failed)]
    assert bench.blocks.free_blocks == bench.blocks.total


def test_garbage_from_the_leader_is_skipped(bench: Bench) -> None:
    bench.leader.socket.send_multipart([b"0.0.0", b"\xc1garbage"])
    bench.leader.send(start("a", 5, max_tokens=1))
    bench.turn_until_idle()
    assert [m for m in bench.leader.received() if isinstance(m, Step)]


def test_every_turn_beats_but_not_more_often_than_needed(bench: Bench) -> None:
    for _ in range(5):
        bench.loop.turn()
    assert os.read(bench.beats, 100) == b"\0"


def test_stop_ends_the_loop(bench: Bench) -> None:
    bench.leader.send(Stop())
    bench.loop.run()
