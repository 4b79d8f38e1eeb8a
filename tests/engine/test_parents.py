"""The line between a leader and its follower parents, over real sockets: who joins, what each is told, who is lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import zmq.asyncio

from pdcore.clock import SystemClock
from pdcore.engine import parents
from pdcore.engine.parents import Beat, Ended, FollowerParents, LeaderLine, ParentLost
from pdcore.topology.keys import RankPosition
from tests.support.eventually import eventually
from tests.support.fake_rank import READY

pytestmark = pytest.mark.integration

CLOCK = SystemClock()
ADDRESS = "tcp://127.0.0.1:*"
RANK = RankPosition(0, 0, 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parents, "BEAT_S", 0.05)


def leader(*nodes: int, secret: str | None = None) -> FollowerParents:
    return FollowerParents(ADDRESS, nodes, CLOCK, silence_s=1.0, secret=secret)


def follower(address: str, node: int = 1, secret: str | None = None) -> LeaderLine:
    return LeaderLine(address, node, CLOCK, silence_s=1.0, secret=secret)


async def test_a_machine_joins_is_told_what_to_register_and_that_it_is_over() -> None:
    async with (
        leader(1) as ours,
        follower(ours.address) as line,
        asyncio.timeout(20),
        asyncio.TaskGroup() as group,
    ):
        assert ours.missing == (1,)
        watching, beating = group.create_task(ours.watch()), group.create_task(line.beat())
        ending = group.create_task(line.wait_end())
        await eventually(lambda: not ours.missing, 10, "joined")
        ours.register({0: {RankPosition(0, 0, 0): READY}, 1: {RANK: READY}})
        assert await line.wait_ready() == {"0.0.1": READY}
        line.registered = True
        await ours.wait_registered()
        await ours.end(70, "a rank died")
        end = await ending
        assert (end.status, end.why) == (70, "a rank died")
        watching.cancel()
        beating.cancel()


async def test_a_machine_that_ends_says_why() -> None:
    async with leader(1, 2) as ours, follower(ours.address, 2) as line, asyncio.timeout(20):
        await line.say(Beat(registered=False))
        await line.say(Ended(why="rank 0.0.1 was ended by SIGKILL"))
        assert await ours.watch() == "machine 2: rank 0.0.1 was ended by SIGKILL"
        assert ours.missing == (1,)


async def test_a_machine_that_falls_silent_is_lost_and_so_is_a_leader() -> None:
    async with leader(1) as ours, follower(ours.address) as line, asyncio.timeout(20):
        await line.say(Beat(registered=False))
        assert await ours.watch() == "machine 1 has been silent for 1 s"
        with pytest.raises(ParentLost, match="the leader has been silent for 1 s"):
            await line.wait_end()


async def test_garbage_is_survived_and_strangers_are_not_heard() -> None:
    async with leader(1) as ours, asyncio.timeout(20), asyncio.TaskGroup() as group:
        watching = group.create_task(ours.watch())
        context = zmq.asyncio.Context()
        for identity in (b"node.1", b"node.9", b"x" * 200):
            with context.socket(zmq.DEALER) as stranger:
                stranger.setsockopt(zmq.IDENTITY, identity)
                stranger.connect(ours.address)
                for frames in ([b""], [b"\xc1"], [msgspec.msgpack.encode({"type": "end"})], [b"a", b"b"]):
                    await stranger.send_multipart(frames)
        context.term()
        async with follower(ours.address) as line:
            beating = group.create_task(line.beat())
            await eventually(lambda: not ours.missing, 10, "joined all the same")
            beating.cancel()
        watching.cancel()


async def test_with_a_secret_only_machines_that_know_it_join() -> None:
    secrets = [zmq.curve_keypair()[1].decode() for _ in range(2)]
    async with (
        leader(1, secret=secrets[0]) as ours,
        follower(ours.address, secret=secrets[1]) as wrong,
        asyncio.timeout(20),
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(ours.watch()), group.create_task(wrong.beat())]
        with pytest.raises(ParentLost):
            await wrong.wait_end()
        assert ours.missing == (1,)
        async with follower(ours.address, secret=secrets[0]) as knows:
            tasks.append(group.create_task(knows.beat()))
            await eventually(lambda: not ours.missing, 10, "joined")
            for task in tasks:
                task.cancel()


async def test_without_other_machines_there_is_nothing_to_wait_for() -> None:
    async with leader() as ours:
        assert (ours.address, ours.missing) == ("", ())
        await ours.wait_registered()
        await ours.end(0, "over")
