"""Clients leave at random points: every count is 0 afterwards, and neither descriptors nor memory have grown."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.router.conformance.rig import PAIRED, Rig, rig

AT_ONCE: Final = 32
WHOLE_S: Final = 30.0
GROWN_KIB: Final = 20 << 10


async def left_after(url: str, seconds: float, *, stream: bool) -> bool:
    """Ask, and leave after ``seconds``; whether the answer had ended by then."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = b'{"prompt":"hi","stream":%s}' % (b"true" if stream else b"false")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(seconds):
            await reader.read()
        return True
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()


async def whole_s(one: Rig) -> float:
    """How long as many as are sent at once take on this machine to be served."""
    began = time.monotonic()
    ended = await asyncio.gather(
        *(left_after(one.fleet.url, WHOLE_S, stream=n % 2 == 0) for n in range(AT_ONCE))
    )
    assert all(ended)
    return time.monotonic() - began


async def many_leave(one: Rig, count: int, seed: int) -> int:
    """``count`` requests whose clients leave at seeded points; how many had their answer by then."""
    chance, longest_s = random.Random(seed), 1.5 * await whole_s(one)
    points = [(chance.uniform(0, longest_s), chance.random() < 0.5) for _ in range(count)]
    answered = 0
    while points:
        some, points = points[:AT_ONCE], points[AT_ONCE:]
        ended = await asyncio.gather(
            *(left_after(one.fleet.url, seconds, stream=stream) for seconds, stream in some)
        )
        answered += sum(ended)
        for engine in one.engines.values():
            engine.seen.clear()
    return answered


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.integration
@pytest.mark.parametrize("protocol", PAIRED)
async def test_nothing_is_left_of_requests_whose_clients_left(protocol: str) -> None:
    async with rig(protocol) as one:
        await one.is_served()
        answered = await many_leave(one, 32, seed=5)
        assert answered < 32
        await one.invariants()
        await one.is_served()
        await one.fleet.settled()


@pytest.mark.cluster
@pytest.mark.parametrize("protocol", PAIRED)
async def test_ten_thousand_clients_leave_and_nothing_has_grown(protocol: str) -> None:
    async with rig(protocol) as one:
        await many_leave(one, 500, seed=1)
        await one.invariants()
        fds, rss = descriptors(), resident_kib()
        answered = await many_leave(one, 10_000, seed=2)
        assert 0 < answered < 10_000
        await one.invariants()
        await one.fleet.settled()
        assert descriptors() <= fds + AT_ONCE
        assert resident_kib() <= rss + GROWN_KIB, f"grew by {resident_kib() - rss} KiB"
        await one.is_served()
