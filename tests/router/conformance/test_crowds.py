"""Many at once meet the same fault: each has its answer soon, and the pair is free for the next one."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.conformance.faults import Leg, instead
from tests.router.conformance.leaving import Connection, connected, crowd
from tests.router.conformance.rig import PAIRED, Rig, rig
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import Hang, Reset

pytestmark = pytest.mark.integration

FEW, MANY = 50, 200
FIRST: dict[str, Leg] = {"ascend-layerwise": "decode"}
"""Whom a protocol asks first or among the first; prefill unless named."""
SOON_S = 20.0
"""For all of them, on a busy machine; how soon one is told is shown one by one elsewhere."""
PATIENT = {"first_byte_timeout_s": 60, "request_timeout_s": 60, "frozen_after_s": 60}


async def everybody_leaves(protocol: str, count: int) -> None:
    """Engines hold every request and say nothing; then every client goes in one moment."""
    async with rig(protocol, max_in_flight=count, **PATIENT) as one:
        for engine in one.engines.values():
            engine.faults = [instead(Hang())] * count
        holder = one["d0" if FIRST.get(protocol) == "decode" else "p0"]
        async with crowd(one.fleet.url, count):
            await eventually(lambda: holder.open_now == count, SOON_S, "all are held")
        await eventually(
            lambda: not any(engine.open_now for engine in one.engines.values()),
            SOON_S,
            "every leg ended",
        )
        for engine in one.engines.values():
            engine.faults = []
        await one.invariants()
        assert await one.fleet.metric("pdcore_router_requests_total", outcome="cancelled") == count
        assert await one.fleet.metric("pdcore_router_breakers_open") == 0, (
            "a client's leaving is nobody's fault"
        )
        await one.is_served()
        await one.fleet.settled()


async def test_a_crowd_that_leaves_before_the_first_token_leaves_nothing_behind() -> None:
    await everybody_leaves("bootstrap", FEW)


@pytest.mark.cluster
@pytest.mark.parametrize("protocol", PAIRED)
async def test_hundreds_that_leave_leave_nothing_behind_in_any_protocol(protocol: str) -> None:
    await everybody_leaves(protocol, MANY)


async def status_of(connection: Connection) -> int:
    """The status of the answer that ends with its connection."""
    async with asyncio.timeout(SOON_S):
        answer = await connection[0].read()
    return int(answer.split(b" ", 2)[1])


async def one_side_breaks(one: Rig, broken: Leg) -> None:
    """``broken`` resets every request while the other side hangs."""
    other = "d0" if broken == "prefill" else "p0"
    one[f"{broken[0]}0"].faults = [instead(Reset())] * FEW
    one[other].faults = [instead(Hang())] * FEW
    async with crowd(one.fleet.url, FEW) as clients:
        assert await asyncio.gather(*(status_of(client) for client in clients)) == [502] * FEW
        await eventually(lambda: one[other].open_now == 0, SOON_S, "the other legs ended")
    for engine in one.engines.values():
        engine.faults = []
    await one.invariants()


@pytest.mark.parametrize("broken", ["prefill", "decode"])
async def test_a_crowd_whose_one_leg_breaks_is_told_at_once_while_the_other_would_wait(broken: Leg) -> None:
    async with rig("bootstrap", max_in_flight=FEW, **PATIENT) as one:
        await one_side_breaks(one, broken)
        await one.is_served()
        await one.fleet.settled()


async def test_decodes_answer_is_passed_on_while_prefill_has_not_answered_yet() -> None:
    async with rig("bootstrap") as one:
        one["p0"].faults = [lambda good: (*good[:2], Hang(), *good[2:])]
        await one.is_served()
        assert await one.fleet.metric("pdcore_router_legs_in_flight", leg="prefill") == 1
        one["p0"].release.set()
        await one.invariants()
        await one.fleet.settled()


@pytest.mark.parametrize("head", [204, 304])
async def test_a_status_without_a_body_is_no_answer(head: int) -> None:
    async with rig("bootstrap") as one:
        for leg in ("prefill", "decode"):
            one[f"{leg[0]}0"].faults = [
                lambda good: (*(step for step in good if isinstance(step, fake.Do)), fake.head(head, {}))
            ]
            one["d0" if leg == "prefill" else "p0"].faults = [instead(Hang())]
            answer = await one.ask()
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, f"{leg}_failed")
            await one.invariants()
        await one.is_served()


async def test_silent_connections_by_the_hundred_keep_nobody_from_being_served() -> None:
    async with rig("unified", **PATIENT) as one:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group, asyncio.timeout(SOON_S):
            ends = asyncio.Event()

            async def say_nothing(begun: bytes) -> None:
                async with connected(one.fleet.url) as (_, writer):
                    writer.write(begun)
                    await ends.wait()

            for number in range(FEW):
                group.create_task(say_nothing(b"POST / HTTP/1.1\r\nx: " if number % 2 else b""))
            for _ in range(3):
                await one.is_served(stream=True)
            assert await one.fleet.metric("pdcore_router_in_flight") == 0
            ends.set()
        assert loop.time() - began < SOON_S
        await one.invariants()
        await one.fleet.settled()
