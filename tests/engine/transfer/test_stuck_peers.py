"""Peers that take writes and never finish them, that never read, that never answer: nobody else waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
import zmq

from pdcore.engine.transfer import wire
from pdcore.engine.transfer.memory import Region, on_host
from pdcore.engine.transfer.orders import Arrived, Drained, HandoffFailed, Handshaken
from pdcore.engine.transfer.plan import Buffer, RegionShape, WriteOps
from pdcore.engine.transfer.sending import Endpoint
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.shm_sender import ShmSender
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import Context, Decode, Prefill, got, has, run

pytestmark = pytest.mark.integration

GAP_S = 0.1
MUTE_ROOMS = 150


class StickySender(ShmSender):
    """Writes over links in ``stuck`` wait, like a TCP write to a process that was stopped."""

    def __init__(self, source: memoryview, runtime_dir: Path) -> None:
        super().__init__(source, runtime_dir)
        self.stuck: set[bytes] = set()
        self.released = threading.Event()

    def inline_bytes(self, token: bytes) -> int:
        return 0

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        if token in self.stuck:
            self.released.wait(60)
        super().write(token, ops, seq)


class StickyEngine(ShmEngine):
    """``shm`` whose sender a test can reach."""

    made: StickySender

    def sender(self, source: Buffer, runtime_dir: Path) -> StickySender:
        made = StickySender(on_host(source), runtime_dir)
        object.__setattr__(self, "made", made)
        return made


class Gaps:
    """The longest turn of the ranks it watches, in seconds of the clock on the wall."""

    def __init__(self) -> None:
        self.longest = 0.0

    def watch(self, rank: Prefill | Decode) -> None:
        """Measure every turn of ``rank`` from now on."""
        turn = rank.turn

        def timed() -> None:
            began = time.perf_counter()
            turn()
            self.longest = max(self.longest, time.perf_counter() - began)

        rank.turn = timed  # type: ignore[method-assign]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _beside_a_stuck_decode(stack: ExitStack, context: Context, runtime_dir: Path) -> Gaps:
    """Twenty writes into a decode rank that stands still; twenty into another one, which all arrive."""
    engine = StickyEngine()
    prefill = Prefill(stack.enter_context(ranks.sending(context, runtime_dir, engine=engine, threads=2)))
    stuck = Decode(stack.enter_context(ranks.receiving(context, "d1", slots=40)))
    healthy = Decode(stack.enter_context(ranks.receiving(context, "d2", slots=40)))
    stack.callback(engine.made.released.set)
    peer = ranks.peer_at(prefill.session.endpoint)
    prefill.expect(1000, ranks.tokens_of(1000))
    stuck.open(1000, peer, (30, 31))
    run(lambda: has(stuck, Arrived), prefill, stuck)
    [link] = stuck.session._links.values()
    engine.made.stuck.add(link.token)
    gaps = Gaps()
    gaps.watch(prefill)
    for room in range(1, 21):
        prefill.expect(room, ranks.tokens_of(room))
        stuck.open(room, peer, (2 * (room % 14), 2 * (room % 14) + 1))
    run(lambda: len(got(prefill, Handshaken)) == 21, prefill, stuck)
    for room in range(101, 121):
        prefill.expect(room, ranks.tokens_of(room), peer="d2")
        healthy.open(room, peer, (2 * (room % 14), 2 * (room % 14) + 1))
    run(lambda: len(got(healthy, Arrived)) == 20, prefill, healthy)
    assert len(got(stuck, Arrived)) == 1
    run(lambda: prefill.session.statistics().writing == 20, prefill)
    engine.made.released.set()
    run(lambda: len(got(stuck, Arrived)) == 21, prefill, stuck)
    return gaps


def test_a_decode_that_takes_no_bytes_holds_up_no_other(
    stack: ExitStack, context: Context, runtime_dir: Path
) -> None:
    _beside_a_stuck_decode(stack, context, runtime_dir)


def _beside_a_mute_prefill(stack: ExitStack, context: Context, runtime_dir: Path) -> Gaps:
    """One prefill said welcome and never reads again; another one serves."""
    for name in ("mute", "works"):
        (runtime_dir / name).mkdir(mode=0o700)
    linked = stack.enter_context(ranks.sending(context, runtime_dir / "mute"))
    works = Prefill(stack.enter_context(ranks.sending(context, runtime_dir / "works", "p2")))
    mute = stack.enter_context(context.socket(zmq.ROUTER))
    mute.setsockopt(zmq.LINGER, 0)
    mute.setsockopt(zmq.RCVHWM, 1)
    port = mute.bind_to_random_port("tcp://127.0.0.1")
    decode = Decode(stack.enter_context(ranks.receiving(context, slots=MUTE_ROOMS + 8)))
    gaps = Gaps()
    gaps.watch(decode)
    peer = ranks.peer_at(Endpoint("127.0.0.1", port, linked.endpoint.transfer))
    first = decode.open(1, peer, (0, 1))
    decode.turn()
    assert mute.poll(5000)
    route, hello = mute.recv_multipart()
    mute.send_multipart([route, wire.encode(wire.Welcome(token=wire.read_to_prefill(hello).token))])
    handoffs = [first]
    for room in range(2, MUTE_ROOMS):
        handoffs.append(decode.open(room, peer, (0, 1)))
        decode.turn()
    for handoff in handoffs[::2]:
        decode.abort(handoff)
    for room in range(1001, 1021):
        works.expect(room, ranks.tokens_of(room))
        decode.open(room, ranks.peer_at(works.session.endpoint, "p2"), (2, 3))
        run(lambda: len(got(decode, Arrived)) == decode.handoffs - MUTE_ROOMS + 1, works, decode)
    assert not has(decode, HandoffFailed)
    linked.__exit__(None, None, None)  # the fence
    run(lambda: len(got(decode, Drained)) == len(handoffs), works, decode)
    assert len(got(decode, HandoffFailed)) == len(handoffs) - len(handoffs[::2])
    assert decode.session.statistics().slots_used == 0
    return gaps


def test_a_prefill_that_never_reads_holds_up_no_other(
    stack: ExitStack, context: Context, runtime_dir: Path
) -> None:
    _beside_a_mute_prefill(stack, context, runtime_dir)


@pytest.mark.cluster
def test_a_decode_that_never_reads_its_answers_costs_a_bounded_queue(
    stack: ExitStack, context: Context, runtime_dir: Path
) -> None:
    prefill = Prefill(stack.enter_context(ranks.sending(context, runtime_dir)))
    endpoint = prefill.session.endpoint
    shape = RegionShape(ranks.LAYOUT, (1,), 1, 0)
    region = stack.enter_context(Region(shape.nbytes))
    receiver = stack.enter_context(ShmEngine().receiver(region))
    token = b"deaf" * 4
    receiver.connect(endpoint.transfer, token)
    deaf = stack.enter_context(context.socket(zmq.DEALER))
    deaf.setsockopt(zmq.LINGER, 0)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.connect(f"tcp://{endpoint.rank_ip}:{endpoint.rank_port}")
    hello = wire.Hello(
        token=token,
        version=wire.WIRE_VERSION,
        decode=wire.RankIdentity(instance_id="deaf", incarnation="x1"),
        cp_size=1,
        tp_size=1,
        expected_incarnation="p1",
        layout=ranks.LAYOUT,
        blocks=(1,),
        slots=1,
        probes=0,
    )
    deaf.send(wire.encode(hello))
    run(lambda: prefill.session.statistics().peers == 1, prefill)
    seqs = count(1)

    def flooded() -> bool:
        while deaf.poll(0, zmq.POLLOUT):
            seq = next(seqs)
            deaf.send(wire.encode(wire.Abort(token=token, seq=seq, room=seq, code="cancelled")))
        return prefill.session.statistics().dropped > 0

    run(flooded, prefill, within_s=30)
    room = next(seqs)
    prefill.expect(room, ranks.tokens_of(room))
    decode = Decode(stack.enter_context(ranks.receiving(context)))
    decode.open(room, ranks.peer_at(endpoint), (1, 2))
    run(lambda: has(decode, Arrived), prefill, decode)


@pytest.mark.cluster
@pytest.mark.parametrize("beside", [_beside_a_stuck_decode, _beside_a_mute_prefill])
def test_no_turn_takes_a_tenth_of_a_second(
    context: Context, runtime_dir: Path, beside: Callable[[ExitStack, Context, Path], Gaps]
) -> None:
    """The best of three, for this machine runs other things as well."""
    longest = []
    for attempt in range(3):
        own = runtime_dir / str(attempt)
        own.mkdir(mode=0o700)
        with ExitStack() as stack:
            longest.append(beside(stack, context, own).longest)
        if longest[-1] < GAP_S:
            break
    assert min(longest) < GAP_S, longest
