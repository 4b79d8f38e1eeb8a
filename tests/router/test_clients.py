"""Clients that leave, read slowly or come in crowds: everything of theirs ends with them, and nobody else's does."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, MARK, FakeEngine, Flood, Hang, Script, event

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
HANG: Script = (Hang(),)
STARTED: Script = (fake.stream_head(), fake.chunk(event("a")), Hang())
BODY = b'{"prompt":"hi","stream":%s}'


@asynccontextmanager
async def connected(
    fleet: Fleet, stream: bool, *, receive_buffer: int | None = None
) -> AsyncIterator[asyncio.StreamWriter]:
    """A raw client that has sent one request and has read nothing."""
    host, port = fleet.url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setblocking(False)
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    _, writer = await asyncio.open_connection(sock=raw, limit=1024)
    body = BODY % (b"true" if stream else b"false")
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    )
    await writer.drain()
    try:
        yield writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def pair(
    prefill: Script, decode: Script, **changes: Any
) -> AsyncIterator[tuple[Fleet, FakeEngine, FakeEngine]]:
    async with running_fleet(**changes) as fleet, FakeEngine([prefill]) as p, FakeEngine([decode]) as d:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        yield fleet, p, d
        p.scripts, d.scripts = [fake.accepted()], [GOOD]
        await eventually(lambda: p.open_now == d.open_now == 0, 3, "both legs ended")
        await fleet.settled()
        assert (await fleet.post({"prompt": "hi"})).status_code == 200
        await fleet.settled()


@pytest.mark.parametrize(
    ("prefill", "decode", "stream"),
    [
        (HANG, HANG, False),
        (HANG, HANG, True),
        (fake.accepted(), STARTED, True),
        (HANG, STARTED, True),
        (fake.accepted(), (fake.head(200, {"content-length": "9", **MARK}), Hang()), False),
    ],
    ids=["waiting", "waiting for a stream", "streaming", "streaming before prefill ended", "after the mark"],
)
async def test_a_client_that_leaves_takes_both_legs_along_within_a_second(
    prefill: Script, decode: Script, stream: bool
) -> None:
    async with pair(prefill, decode) as (fleet, p, d):
        async with connected(fleet, stream):
            await eventually(lambda: d.open_now and (p.open_now or prefill is not HANG), 2)
        began = time.monotonic()
        await eventually(lambda: p.open_now == d.open_now == 0, 1, "both legs ended")
        assert time.monotonic() - began < 1
        await eventually(lambda: _outcome(fleet, "cancelled"), 3, "counted")


async def _outcome(fleet: Fleet, outcome: str) -> bool:
    return await fleet.metric("pdcore_router_requests_total", outcome=outcome) > 0


async def test_cancelled_at_any_moment_nothing_leaks() -> None:
    chance = random.Random(7)
    script: Script = (fake.stream_head(), *(fake.chunk(event(str(n))) for n in range(5)), Hang())
    async with pair(fake.accepted(), script) as (fleet, _, d):

        async def one(delay_s: float) -> None:
            async with connected(fleet, True):
                await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=delay_s)

        for _ in range(5):
            await asyncio.gather(*(one(chance.uniform(0, 0.05)) for _ in range(20)))
        await eventually(lambda: d.open_now == 0, 2, "every leg ended")


async def test_a_client_that_leaves_during_its_upload_is_only_counted() -> None:
    async with pair(HANG, HANG) as (fleet, p, _):
        host, port = fleet.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        await eventually(lambda: fleet.lifecycle.requests == 1, 2)
        writer.transport.abort()
        await eventually(lambda: fleet.lifecycle.requests == 0, 3)
        assert not p.seen


async def test_a_client_that_does_not_finish_its_upload_is_told_so() -> None:
    async with pair(HANG, HANG, idle_timeout_s=0.2) as (fleet, p, _):
        host, port = fleet.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf")
        async with asyncio.timeout(3):
            told = await reader.readuntil(b"}}")
        assert told.startswith(b"HTTP/1.1 504 ")
        assert b"did not arrive within 0.2 s" in told
        writer.transport.abort()
        assert not p.seen


async def test_a_client_that_reads_nothing_holds_the_engine_back_and_ends_by_the_budget() -> None:
    part = b"%x\r\n%s\r\n" % (len(event("x" * 60_000)), event("x" * 60_000))
    flood: Script = (fake.stream_head(), Flood(part, 3000), Hang())  # 180 MB if nobody held it back
    async with pair(fake.accepted(), flood, idle_timeout_s=1.0) as (fleet, _, d):
        process = psutil.Process()
        before = process.memory_info().rss
        async with connected(fleet, True, receive_buffer=4096):
            await eventually(lambda: d.flooded > 1 << 20, 3, "something flows")
            await eventually(lambda: d.open_now == 0, 4, "the write budget ends it")
        assert d.flooded < 40 << 20
        assert process.memory_info().rss - before < 60 << 20
        await eventually(lambda: _outcome(fleet, "cancelled"), 3, "counted")


async def test_a_slow_reader_does_not_slow_another_stream() -> None:
    part = b"%x\r\n%s\r\n" % (len(event("x" * 60_000)), event("x" * 60_000))
    async with pair(fake.accepted(), GOOD, idle_timeout_s=10) as (fleet, _, d):
        d.scripts = [
            (fake.stream_head(), Flood(part, 3000), Hang()),
            fake.stream(event("a"), event("b", "stop"), DONE),
        ]
        async with connected(fleet, True, receive_buffer=4096):
            await eventually(lambda: d.flooded > 1 << 20, 3)
            for _ in range(3):
                began = time.monotonic()
                answer = await fleet.post({"prompt": "hi", "stream": True})
                assert answer.content.endswith(DONE)
                assert time.monotonic() - began < 2


async def test_one_request_too_many_is_429_and_the_gauge_reads_what_is_in_flight() -> None:
    async with pair(HANG, STARTED, max_in_flight=2) as (fleet, _, d):
        async with connected(fleet, True), connected(fleet, True):
            await eventually(lambda: d.open_now == 2, 2)
            assert await fleet.metric("pdcore_router_in_flight") == 2
            assert fleet.serving.ledger.in_flight("d") == 2
            answer = await fleet.post({"prompt": "hi"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited")
            assert "retry-after" in answer.headers
        await eventually(lambda: d.open_now == 0, 3)


async def test_a_drain_lets_streams_finish_and_refuses_new_requests() -> None:
    script = (
        fake.stream_head(),
        fake.chunk(event("a")),
        Hang(),
        fake.chunk(event("b", "stop") + DONE),
        fake.END,
    )
    async with running_fleet() as fleet, FakeEngine([fake.accepted()]) as p, FakeEngine([script]) as d:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        streams = [asyncio.ensure_future(fleet.post({"prompt": "hi", "stream": True})) for _ in range(8)]
        await eventually(lambda: d.open_now == 8, 3)
        draining = asyncio.ensure_future(fleet.lifecycle.drain(5))
        await eventually(lambda: fleet.lifecycle.draining, 1)
        assert (await fleet.client.get("/ready")).status_code == 503
        assert (await fleet.post({"prompt": "hi"})).status_code == 503
        d.release.set()
        assert {(await one).content for one in streams} == {event("a") + event("b", "stop") + DONE}
        assert await draining is True
        await fleet.settled()


async def test_what_outlasts_the_drain_ends_with_an_error_and_both_legs_are_aborted() -> None:
    async with running_fleet() as fleet, FakeEngine([HANG]) as p, FakeEngine([STARTED, HANG]) as d:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        streaming = asyncio.ensure_future(fleet.post({"prompt": "hi", "stream": True}))
        await eventually(lambda: d.open_now == 1, 2)
        waiting = asyncio.ensure_future(fleet.post({"prompt": "hi"}))
        await eventually(lambda: d.open_now == 2, 2)
        assert await fleet.lifecycle.drain(0.1) is False
        content = (await streaming).content
        assert content.startswith(event("a"))
        assert b"the router is stopping" in content
        assert b"[DONE]" not in content
        assert (await waiting).status_code == 503
        await eventually(lambda: p.open_now == d.open_now == 0, 3, "both legs aborted")
        await fleet.settled()
