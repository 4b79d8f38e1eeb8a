"""A DP leader and its other ranks over real sockets: steps in sequence, reports back, garbage that breaks nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from pdcore.clock import SystemClock
from pdcore.engine import curve, step_link
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.step_link import GroupBroken, Report, StepFollower, StepLeader, StepOrders
from pdcore.engine.transfer.orders import Fail, Order, Sent, SideEvent
from pdcore.topology.keys import RankPosition
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.integration

ONE, TWO = RankPosition(0, 0, 1), RankPosition(0, 1, 0)
ORDER = Fail(room=7, code="cancelled", message="nobody wants it")
ITEM = Compute(request_id="a", token_ids=(1, 2), start=0, block_tables=((3,),), samples=True)
CLOCK = SystemClock()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def context(stack: ExitStack) -> zmq.Context[zmq.Socket[bytes]]:
    return stack.enter_context(zmq.Context())


def step(follower: StepFollower) -> StepOrders:
    got = eventually_now(follower.receive, 10, "a step")
    assert got is not None
    return got


def reports(leader: StepLeader) -> list[tuple[RankPosition, SideEvent]]:
    return eventually_now(lambda: list(leader.receive()), 10, "a report")


def pair(
    stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]], directory: Path
) -> tuple[StepLeader, StepFollower]:
    leader = stack.enter_context(StepLeader(context, f"ipc://{directory}/step.sock", [ONE]))
    follower = stack.enter_context(StepFollower(context, leader.address, str(ONE).encode()))
    leader.join(10, CLOCK)
    return leader, follower


def test_every_rank_gets_every_step_in_sequence(
    stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    leader = stack.enter_context(StepLeader(context, "tcp://127.0.0.1:*", [ONE, TWO]))
    followers = [
        stack.enter_context(StepFollower(context, leader.address, str(rank).encode())) for rank in (ONE, TWO)
    ]
    leader.join(10, CLOCK)
    leader.broadcast([ORDER], [ITEM])
    leader.broadcast(stop=True)
    for follower in followers:
        first = step(follower)
        assert (first.number, first.orders, first.batch, first.stop) == (1, (ORDER,), (ITEM,), False)
        assert (step(follower).stop, follower.receive()) == (True, None)
    followers[1].report([Sent(room=7), Sent(room=8)])
    assert reports(leader) == [(TWO, Sent(room=7)), (TWO, Sent(room=8))]


def test_a_group_of_one_has_no_link(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with StepLeader(context, "not an address", ()) as leader:
        leader.join(0, CLOCK)
        leader.broadcast([ORDER], [ITEM])
        assert (list(leader.receive()), tuple(leader.pollables())) == ([], ())


def test_a_rank_that_does_not_join_in_time_is_named(
    context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    with (
        StepLeader(context, f"ipc://{tmp_path}/step.sock", [ONE, TWO]) as leader,
        StepFollower(context, leader.address, str(ONE).encode()),
        pytest.raises(GroupBroken, match=r"not joined within 0.2 s: 0\.1\.0"),
    ):
        leader.join(0.2, CLOCK)


def test_a_step_that_is_missing_breaks_the_group(
    stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/step.sock"
    leader = stack.enter_context(context.socket(zmq.ROUTER))
    leader.bind(address)
    follower = stack.enter_context(StepFollower(context, address, b"0.0.1"))
    assert msgspec.msgpack.decode(leader.recv_multipart()[1], type=Report) == Report(number=0)
    for number in (1, 3):
        leader.send_multipart([b"0.0.1", msgspec.msgpack.encode(StepOrders(number=number))])
    assert step(follower).number == 1
    with pytest.raises(GroupBroken, match="step 3 came after step 1"):
        step(follower)


@pytest.mark.parametrize("garbage", [b"", b"\xc1", msgspec.msgpack.encode(StepOrders(number=1)), b"x" * 5000])
def test_garbage_from_the_dp_leader_ends_the_rank(
    garbage: bytes, stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """Whoever cannot read a step would compute something else than the others."""
    leader, follower = pair(stack, context, tmp_path)
    assert leader._socket is not None
    if garbage == msgspec.msgpack.encode(StepOrders(number=1)):
        leader.broadcast()  # a replay of a step that was done
        step(follower)
    leader._socket.send_multipart([b"0.0.1", garbage])
    with pytest.raises(GroupBroken):
        step(follower)


def test_garbage_from_others_is_counted_and_harms_nobody(
    stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    leader, follower = pair(stack, context, tmp_path)
    stranger = stack.enter_context(context.socket(zmq.DEALER))
    stranger.setsockopt(zmq.IDENTITY, b"0.0.9")
    stranger.connect(leader.address)
    report = msgspec.msgpack.encode(Report(number=0, events=(Sent(room=7),)))
    for frames in ([b""], [b"\xc1garbage"], [report[:-1]], [report, report], [report]):
        stranger.send_multipart(frames)
    follower.socket.send(b"\xc1")
    eventually_now(lambda: list(leader.receive()) == [] and leader.garbled == 6, 10, "counted")
    follower.report([Sent(room=8)])
    assert reports(leader) == [(ONE, Sent(room=8))]


def test_a_rank_that_takes_nothing_ends_the_group(
    stack: ExitStack,
    context: zmq.Context[zmq.Socket[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_link, "MOST_UNREAD", 4)
    leader, _ = pair(stack, context, tmp_path)
    orders: list[Order] = [Fail(room=1, code="internal", message="x" * 100_000)]

    def broadcast_on() -> None:
        for _ in range(1000):
            leader.broadcast(orders)

    with pytest.raises(GroupBroken, match=r"rank 0\.0\.1 takes no step"):
        broadcast_on()


def test_with_a_secret_only_those_who_know_it_are_heard(
    stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    secrets = [zmq.curve_keypair()[1].decode() for _ in range(2)]
    leader = stack.enter_context(StepLeader(context, "tcp://127.0.0.1:*", [ONE], secret=secrets[0]))
    for secret in (None, secrets[1]):
        stack.enter_context(StepFollower(context, leader.address, str(ONE).encode(), secret=secret))
    with pytest.raises(GroupBroken, match="not joined"):
        leader.join(0.5, CLOCK)
    knows = stack.enter_context(StepFollower(context, leader.address, str(ONE).encode(), secret=secrets[0]))
    leader.join(10, CLOCK)
    leader.broadcast([ORDER])
    assert step(knows).orders == (ORDER,)


def test_curve_without_a_secret_changes_nothing(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.DEALER) as socket:
        curve.connecting(socket, None)
        curve.listening(socket, None)
        assert socket.getsockopt(zmq.MECHANISM) == zmq.NULL
