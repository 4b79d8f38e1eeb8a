"""Clients leave at random points: every count is 0 afterwards, and neither descriptors nor memory have grown."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.router.conformance.leaving import asking, connected
from tests.router.conformance.rig import PAIRED, Rig, rig
from tests.support.eventually import eventually

AT_ONCE: Final = 32
FEW: Final = 12
WHOLE_S: Final = 30.0
GROWN_KIB: Final = 4 << 10
REST_S: Final = 10.0
COUNTS: Final = {name: 10 if name == "bootstrap" else 2 for name in PAIRED}
SPARE_FDS: Final = 4
"""What the test's own client keeps."""


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


async def whole_s(one: Rig, count: int) -> float:
    """How long ``count`` of them at once take on this machine to be served."""
    began = time.monotonic()
    ended = await asyncio.gather(
        *(left_after(one.fleet.url, WHOLE_S, stream=n % 2 == 0) for n in range(count))
    )
    assert all(ended)
    return time.monotonic() - began


async def many_leave(one: Rig, count: int, seed: int) -> int:
    """``count`` requests whose clients leave at seeded points; how many had their answer by then."""
    chance, longest_s = random.Random(seed), 1.5 * await whole_s(one, min(count, AT_ONCE))
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


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.integration
@pytest.mark.parametrize("protocol", PAIRED)
async def test_nothing_is_left_of_requests_whose_clients_left(protocol: str) -> None:
    async with rig(protocol) as one:
        await one.is_served()
        answered = await many_leave(one, FEW, seed=5)
        assert answered < FEW
        await one.invariants()
        await one.is_served()
        await one.fleet.settled()


@pytest.mark.cluster
@pytest.mark.parametrize(("protocol", "thousands"), COUNTS.items())
async def test_thousands_of_clients_leave_and_nothing_has_grown(protocol: str, thousands: int) -> None:
    async with rig(protocol) as one:
        fds = descriptors()
        await many_leave(one, 1000, seed=-1)
        rss = await at_rest(one, fds)
        answered = 0
        for part in range(thousands):
            answered += await many_leave(one, 1000, seed=part)
            now = await at_rest(one, fds)
            print(
                f"{protocol}: {1000 * (part + 1)} left, {answered} with an answer, {now - rss} KiB more of {rss}"
            )
        assert 0 < answered < 1000 * thousands
        assert now <= rss + GROWN_KIB, f"grew by {now - rss} KiB"
        await one.is_served()
        await one.fleet.settled()


async def at_rest(one: Rig, fds: int) -> int:
    """KiB of this process, in which router, engines and clients live, when nothing is left and no connection is kept.

    What engines remember of their requests is dropped before.
    """
    await one.invariants()
    await one.fleet.settled()
    for engine in one.engines.values():
        engine.plane.found.clear()
    await eventually(lambda: descriptors() <= fds + SPARE_FDS, REST_S, f"no more than {fds} descriptors")
    gc.collect()
    return resident_kib()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
