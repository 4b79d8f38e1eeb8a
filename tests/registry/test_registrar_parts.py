"""The registrar's smaller parts: beats, leases, frames, statuses, the probe's parser, what /proc says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys

import msgspec
import pytest

from pdcore.registry import machine
from pdcore.registry.beats import Beats
from pdcore.registry.channel import Channel
from pdcore.registry.lease import LONGEST_RETRY_S, HeldLease, retry_after_s
from pdcore.registry.memory import MemoryStore
from pdcore.registry.probe import Health, answering_incarnation, parse_answer
from pdcore.registry.processes import Processes
from pdcore.registry.registrar import call_timeout_s
from pdcore.registry.registrar_messages import (
    Leave,
    Malformed,
    Start,
    Status,
    Want,
    Watch,
    decode_from_parent,
    decode_status,
    encode,
)
from tests.support.eventually import eventually, eventually_now
from tests.support.faulty_store import ManualClock
from tests.support.processes import free_port
from tests.support.registrations import rank_process, spec
from tests.support.tcp_server import TcpServer

pytestmark = pytest.mark.unit


def test_silence_is_counted_from_the_last_beat() -> None:
    beats = Beats(limit_s=4)
    beats.heard("0.0.0", 10.0)
    assert beats.next_silence(10.0) == 14.0
    assert beats.silent(14.0) == frozenset()
    assert beats.silent(14.1) == {"0.0.0"}
    assert beats.next_silence(14.1) is None
    beats.heard("0.0.0", 20.0)
    assert beats.silent(20.0) == frozenset()


def test_one_that_never_beat_is_never_silent_and_one_forgotten_neither() -> None:
    beats = Beats(limit_s=4)
    beats.seen("1.0.0", 0.0)
    beats.heard("0.0.0", 0.0)
    beats.forget("0.0.0")
    assert beats.silent(100.0) == frozenset()


def test_retries_wait_longer_up_to_a_bound_and_never_all_at_once() -> None:
    waits = [retry_after_s(failures, 0.0) for failures in range(1, 2000)]
    assert waits[0] < waits[1] < waits[2]
    assert max(retry_after_s(failures, 1.0) for failures in range(1, 2000)) == LONGEST_RETRY_S
    assert retry_after_s(3, 0.0) < retry_after_s(3, 0.9)


@pytest.mark.parametrize(
    ("timeout", "ttl", "expected"), [(3, 60, 3), (3, 12, 2), (3, 1, 0.5), (0.2, 60, 0.2)]
)
def test_a_call_leaves_time_for_another_before_the_lease_ends(
    timeout: float, ttl: int, expected: float
) -> None:
    assert call_timeout_s(timeout, ttl) == expected


async def test_a_lease_is_due_after_a_third_and_replaced_when_gone() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    lease = HeldLease(store, 9, clock=clock, jitter=lambda: 1.0)
    assert not lease.is_due(clock.now())
    first = await lease.ensure()
    assert await lease.ensure() == first
    assert lease.due == pytest.approx(1003.0)
    assert lease.expires == pytest.approx(1009.0)
    clock.time = 1003.5
    assert lease.is_due(clock.now())
    assert await lease.renew()
    assert lease.expires == pytest.approx(1012.5)
    await store.revoke(first)
    assert not await lease.renew()
    assert lease.id is None
    assert await lease.ensure() != first


async def test_frames_arrive_whole_in_order_with_their_descriptors() -> None:
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    large = b"x" * (3 << 20)
    with Channel(ours) as sending, Channel(theirs) as receiving:

        async def send() -> None:
            await sending.send(b"first")
            await sending.send(b"second", write_end)
            await sending.send(large)
            await sending.send(b"", read_end, write_end)

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            frames = [await receiving.receive() for _ in range(4)]
        assert [None if frame is None else frame.data for frame in frames] == [
            b"first",
            b"second",
            large,
            b"",
        ]
        descriptors = [() if frame is None else frame.descriptors for frame in frames]
        assert [len(each) for each in descriptors] == [0, 1, 0, 2]
        os.write(descriptors[1][0], b"through")
        assert os.read(read_end, 100) == b"through"
        assert not os.get_inheritable(descriptors[1][0])
        for descriptor in (*(fd for each in descriptors for fd in each), read_end, write_end):
            os.close(descriptor)


async def test_a_closed_channel_reads_as_its_end_and_refuses_to_send() -> None:
    ours, theirs = socket.socketpair()
    with Channel(ours) as channel:
        theirs.close()
        assert await channel.receive() is None
        with pytest.raises(ConnectionError):
            await channel.send(b"anybody?")


@pytest.mark.parametrize(
    "header", [b"\xff\xff\xff\xff\x00", b"\x00\x00\x00\x00\xff", b"\x00\x00\x00\x00\x01"]
)
async def test_a_frame_that_breaks_its_promise_is_malformed(header: bytes) -> None:
    ours, theirs = socket.socketpair()
    with Channel(ours) as channel, theirs:
        theirs.sendall(header)
        with pytest.raises(Malformed):
            await channel.receive()


@pytest.mark.parametrize(
    "message",
    [
        Start(spec=spec("etcd://a", "i"), parent_pid=1, claimed=True, predecessor="p"),
        Watch(member="0.0.0", what="beats"),
        Want(version=1, instance=None, ranks={"0.0.0": "{}", "1.0.0": None}),
        Leave(reason="drained", timeout_s=1.0),
    ],
)
def test_messages_survive_the_wire(message: Start | Watch | Want | Leave) -> None:
    assert decode_from_parent(encode(message)) == message
    status = msgspec.structs.replace(Status(), claimed=True, withdrawn=("0.0.0",))
    assert decode_status(encode(status)) == status


@pytest.mark.parametrize("frame", [b"", b"\xff", b"[]", b'{"type":"leave","reason":"bored","timeout_s":1}'])
def test_what_the_schema_does_not_allow_is_malformed(frame: bytes) -> None:
    with pytest.raises(Malformed):
        decode_from_parent(frame)
    with pytest.raises(Malformed):
        decode_status(frame)


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (b'HTTP/1.1 200 OK\r\nA: b\r\n\r\n{"status":"ok","incarnation":"x"}', Health(200, "x", "ok")),
        (b'HTTP/1.1 503 No\r\n\r\n{"incarnation":"x"}', Health(503, "x")),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", Health(200, None)),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff[1]", Health(200, None)),
        (b'HTTP/1.1 200 OK\r\n\r\n{"incarnation":5}', Health(200, None)),
    ],
)
def test_an_answer_is_its_status_and_the_incarnation_it_names(answer: bytes, health: Health) -> None:
    assert parse_answer(answer) == health


@pytest.mark.parametrize("answer", [b"SSH-2.0\r\n\r\n", b"", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 ok\r\n\r\n{}"])
def test_what_is_not_http_is_no_answer(answer: bytes) -> None:
    with pytest.raises(ValueError, match="not HTTP"):
        parse_answer(answer)


@pytest.mark.parametrize("length", [None, "right", "too long"])
async def test_the_probe_asks_health_and_is_answered_or_gives_up(length: str | None) -> None:
    body = b'{"incarnation":"x"}'
    asked: list[bytes] = []
    done = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        head = b"HTTP/1.1 200 OK\r\n"
        if length is not None:
            head += b"Content-Length: %d\r\n" % (len(body) if length == "right" else 100)
        writer.write(head + b"\r\n" + body)
        if length is not None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
        done.set()

    async with TcpServer(answer) as server:
        patience_s = 0.2 if length == "too long" else 10
        found = await answering_incarnation(f"http://{server.endpoint}", patience_s)
        await done.wait()
    assert found == (None if length == "too long" else "x")
    assert asked[0].startswith(b"GET /health HTTP/1.0\r\n")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}", "https://127.0.0.1:{port}", "http://", "http://[::"]
)
async def test_the_probe_of_nobody_names_nobody(url: str) -> None:
    assert await answering_incarnation(url.format(port=free_port()), 0.5) is None


def test_a_process_is_named_by_its_start_and_a_zombie_is_gone() -> None:
    assert machine.process_started(os.getpid()) == machine.process_started(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    pidfd = machine.open_pidfd(child.pid)
    eventually_now(lambda: machine.has_exited(pidfd), 5.0, "child exits")
    machine.kill(pidfd)  # no error: it has exited
    assert machine.process_started(child.pid) is None
    child.wait()
    machine.kill(pidfd)
    os.close(pidfd)
    assert machine.process_started(child.pid) is None


def test_a_name_with_parentheses_does_not_confuse_the_start() -> None:
    fields = " ".join(["S", *map(str, range(4, 53))])
    assert machine.parse_started(f"1 (a) b (c)) {fields}") == 22
    assert machine.parse_started("1 (a) Z " + " ".join(map(str, range(4, 53)))) is None
    assert machine.parse_started("nonsense") is None


def test_there_is_one_boot_id() -> None:
    assert len(machine.boot_id()) == 36
    assert machine.boot_id() == machine.boot_id()
    assert machine.machine()


async def test_beats_that_waited_in_the_pipe_count_before_silence_is_judged() -> None:
    clock, calls = ManualClock(), [0]
    read_end, write_end = os.pipe()

    def count() -> None:
        calls[0] += 1

    with Processes(4.0, clock, on_change=count) as processes:
        processes.listen("0.0.0", read_end)
        os.write(write_end, b"." * 1000)
        clock.time += 100
        assert not processes.look()
        assert processes.silent == frozenset()
        clock.time += 100
        assert processes.look()
        assert processes.silent == {"0.0.0"}
        assert calls == [0]
        os.write(write_end, b"..")
        await eventually(lambda: calls == [1], 1.0, "voice heard once")
        assert processes.look()
        assert processes.silent == frozenset()
        os.close(write_end)
        clock.time += 100
        assert not processes.look()  # a pipe without a writer proves nothing


async def test_an_exit_is_told_once() -> None:
    calls = [0]

    def count() -> None:
        calls[0] += 1

    child = rank_process(None)
    with Processes(4.0, ManualClock(), on_change=count) as processes:
        processes.watch("0.0.0", machine.open_pidfd(child.pid))
        assert not processes.has_exited("0.0.0")
        assert processes.kill_ranks() == ("0.0.0",)
        await eventually(lambda: calls == [1], 5.0, "exit told")
        assert processes.exited == {"0.0.0"}
        assert processes.has_exited("0.0.0")
        assert processes.look()
        assert not processes.look()
        assert processes.kill_ranks() == ()
    child.wait()
