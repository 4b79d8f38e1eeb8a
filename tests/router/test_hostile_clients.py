"""Clients that do not speak as they should: each ends with an answer or an end of its own, and the next is served."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Hang, Script, event

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
HANG: Script = (Hang(),)
STARTED: Script = (fake.stream_head(), fake.chunk(event("a")), Hang())
SOON_S = 3.0


@asynccontextmanager
async def pair(prefill: Script, decode: Script) -> AsyncIterator[tuple[Fleet, FakeEngine, FakeEngine]]:
    """A router over one pair, which serves a plain request when the block is over."""
    async with running_fleet() as fleet, FakeEngine([prefill]) as p, FakeEngine([decode]) as d:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        yield fleet, p, d
        p.scripts, d.scripts = [fake.accepted()], [GOOD]
        await eventually(lambda: p.open_now == d.open_now == 0, SOON_S, "both legs ended")
        await fleet.settled()
        assert (await fleet.post({"prompt": "hi"})).status_code == 200


@asynccontextmanager
async def raw(fleet: Fleet) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = fleet.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request(body: bytes, *headers: bytes) -> bytes:
    """The bytes of one request."""
    lines = (b"POST /v1/completions HTTP/1.1", b"host: x", *headers, b"content-length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body))


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one answer."""
    async with asyncio.timeout(SOON_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        body = await reader.readexactly(int(length.split(b":")[1]))
    return int(head.split(b" ")[1]), json.loads(body)


@pytest.mark.parametrize(
    ("prefill", "decode"), [(HANG, HANG), (fake.accepted(), STARTED)], ids=["waiting", "streaming"]
)
async def test_a_client_that_closes_its_sending_half_has_left(prefill: Script, decode: Script) -> None:
    async with pair(prefill, decode) as (fleet, _, d), raw(fleet) as (_, writer):
        writer.write(request(b'{"prompt":"hi","stream":true}'))
        await eventually(lambda: d.open_now, SOON_S)
        writer.write_eof()
        await eventually(lambda: d.open_now == 0, SOON_S, "the leg ended")


class Malice:
    """What would leave a mark if anybody ever unpickled it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


async def test_pickles_are_never_read_neither_as_requests_nor_as_bodies(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    payload = pickle.dumps(Malice(mark))
    async with pair(fake.accepted(), GOOD) as (fleet, p, _):
        async with raw(fleet) as (reader, writer):
            writer.write(payload)
            async with asyncio.timeout(SOON_S):
                assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        answer = await fleet.post(payload, headers={"content-type": "application/python-pickle"})
        assert answer.status_code == 400
        assert not p.seen
    assert not mark.exists()


@pytest.mark.parametrize(
    "headers",
    [
        (b"x-request-id: a b",),
        (b"x-request-id: ",),
        (b"x-request-id: \xc3\xbc",),
        (b"x-request-id: " + b"a" * 10_000,),
        (b"x-request-id: a", b"x-request-id: a"),
    ],
)
async def test_an_unusable_request_id_is_400_and_not_repeated(headers: tuple[bytes, ...]) -> None:
    async with pair(fake.accepted(), GOOD) as (fleet, p, _), raw(fleet) as (reader, writer):
        writer.write(request(b'{"prompt":"hi"}', *headers))
        status, document = await answered(reader)
        assert (status, document["error"]["param"]) == (400, "x-request-id")
        assert document["error"]["request_id"].startswith("req-")
        assert not p.seen


async def test_a_client_that_asks_first_is_told_to_go_on_and_one_too_large_is_not_read() -> None:
    async with pair(fake.accepted(), GOOD) as (fleet, _, d):
        async with raw(fleet) as (reader, writer):
            body = b'{"prompt":"hi"}'
            writer.write(request(body, b"expect: 100-continue").removesuffix(body))
            async with asyncio.timeout(SOON_S):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await answered(reader))[0] == 200
        assert len(d.seen) == 1
        async with raw(fleet) as (reader, writer):
            head = request(b"", b"x: y").replace(b"content-length: 0", b"content-length: 99999999999")
            writer.write(head)
            assert (await answered(reader))[0] == 413


async def test_a_request_for_a_million_answers_is_refused_at_once_in_little_memory() -> None:
    async with pair(fake.accepted(), GOOD) as (fleet, p, _):
        before, began = psutil.Process().memory_info().rss, time.monotonic()
        bodies: list[dict[str, Any]] = [{"prompt": "a", "n": 1_000_000}, {"prompt": ["a"] * 200_000}]
        for body in (*bodies, {"prompt": ["a"] * 1024, "n": 128}):
            assert (await fleet.post(body)).status_code == 400
        assert time.monotonic() - began < SOON_S
        assert psutil.Process().memory_info().rss - before < 64 << 20
        assert not p.seen


async def test_hop_by_hop_headers_cross_in_neither_direction_and_head_has_no_body() -> None:
    hops = {"connection": "x-foo, keep-alive", "x-foo": "1", "keep-alive": "timeout=9", "upgrade": "h2c"}
    async with pair(fake.accepted(), fake.answer(200, COMPLETION, {**MARK, **hops})) as (fleet, p, d):
        sent = {"te": "trailers", "proxy-authorization": "Basic x", "x-foo": "1", "connection": "x-foo"}
        answer = await fleet.post({"prompt": "hi"}, headers=sent)
        assert answer.status_code == 200
        assert not {"x-foo", "keep-alive", "upgrade"} & set(answer.headers)
        for seen in (*p.seen, *d.seen):
            assert not {"te", "proxy-authorization", "x-foo"} & set(seen.headers)
            assert seen.headers["host"] in {f"127.0.0.1:{p.port}", f"127.0.0.1:{d.port}"}
        head = await fleet.client.head("/health")
        assert (head.status_code, head.content) == (200, b"")
