"""Clients leave at random points: every count is 0 afterwards, and neither descriptors nor memory have grown."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.router.conformance.leaving import asking, connected
from tests.router.conformance.rig import PAIRED, Rig, rig

AT_ONCE: Final = 32
WHOLE_S: Final = 30.0
GROWN_KIB: Final = 20 << 10


async def left_after(url: str, seconds: float, *, stream: bool) -> bool:
    """Ask, and leave after ``seconds``; whether the answer had ended by then."""
    async with connected(url) as (reader, writer):
        writer.write(asking(stream=stream))
        try:
            async with asyncio.timeout(seconds):
                await reader.read()
        except TimeoutError:
            return False
        return True


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
async def test_ten_thousand_clients_leave_and_nothing_has_grown(
    protocol: str, record_property: Callable[[str, object], None]
) -> None:
    async with rig(protocol) as one:
        await many_leave(one, 500, seed=1)
        await one.invariants()
        fds, rss = descriptors(), resident_kib()
        answered = 0
        for part in range(10):
            answered += await many_leave(one, 1000, seed=part)
            await one.invariants()
            print(f"{protocol}: {1000 * (part + 1)} left, {answered} of them with an answer, {figures()}")
        assert 0 < answered < 10_000
        await one.fleet.settled()
        record_property("figures", f"{fds} descriptors, {rss} KiB before; {figures()} after")
        assert descriptors() <= fds + AT_ONCE
        assert resident_kib() <= rss + GROWN_KIB, f"grew by {resident_kib() - rss} KiB"
        await one.is_served()


def figures() -> str:
    return f"{descriptors()} descriptors, {resident_kib()} KiB"
