"""Whoever leaves, both legs end within a second: the client in each phase, and the router."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.router.conformance.engines import EVENTS, Fault
from tests.router.conformance.faults import after_an_event, after_the_head, instead, of_leg
from tests.router.conformance.rig import PAIRED, Rig, error_of, rig
from tests.support.eventually import eventually
from tests.support.fake_engines import Hang

pytestmark = pytest.mark.integration

GONE_WITHIN_S = 1.0


@dataclass(frozen=True)
class Phase:
    """Where a request stands still: what ``engine`` does, and whether the client streams."""

    name: str
    engine: str
    fault: Fault
    stream: bool


PHASES = (
    Phase("prefill computes", "p0", instead(Hang()), False),
    Phase("prefill answers", "p0", of_leg("prefill", after_the_head(Hang())), True),
    Phase("decode waits", "d0", instead(Hang()), True),
    Phase("decode computes", "d0", after_the_head(Hang()), False),
    Phase("decode streams", "d0", after_an_event(Hang()), True),
)


async def stands_still(one: Rig, phase: Phase) -> asyncio.Task[object]:
    """A request that has got to ``phase``, to be ended by the caller."""
    one[phase.engine].faults = [phase.fault]
    before = len(one[phase.engine].seen)
    asking: asyncio.Task[object] = asyncio.ensure_future(one.ask(stream=phase.stream))
    await eventually(lambda: len(one[phase.engine].seen) > before, 3, phase.name)
    return asking


@pytest.mark.parametrize("protocol", PAIRED)
async def test_a_client_that_leaves_ends_both_legs_in_every_phase(protocol: str) -> None:
    async with rig(protocol) as one:
        for phase in PHASES:
            asking = await stands_still(one, phase)
            asking.cancel()
            await asyncio.wait((asking,))
            await eventually(
                lambda: not any(engine.open_now for engine in one.engines.values()),
                GONE_WITHIN_S,
                f"{protocol}: both legs ended while {phase.name}",
            )
            await one.invariants()
        await one.is_served()
        cancelled = await one.fleet.metric("pdcore_router_requests_total", outcome="cancelled")
        assert cancelled == len(PHASES)
        await one.fleet.settled()


@pytest.mark.parametrize("protocol", PAIRED)
async def test_a_router_that_stops_ends_both_legs_and_says_so(protocol: str) -> None:
    async with rig(protocol) as one:
        one["p0"].faults = [instead(Hang())]
        asking = asyncio.ensure_future(one.ask())
        await eventually(lambda: one["p0"].seen, 3, "prefill is asked")
        assert not await one.fleet.lifecycle.drain(0)
        answer = await asking
        assert (answer.status_code, error_of(answer)["code"]) == (503, "backend_unavailable")
        assert "stopping" in error_of(answer)["message"]
        await one.invariants()


@pytest.mark.parametrize("protocol", ["bootstrap", "nixl"])
async def test_a_router_that_stops_ends_a_stream_with_an_event(protocol: str) -> None:
    async with rig(protocol) as one:
        one["d0"].faults = [after_an_event(Hang())]
        async with one.fleet.client.stream(
            "POST", "/v1/completions", json={"prompt": "hi", "stream": True}
        ) as answer:
            parts = answer.aiter_raw()
            got = await anext(parts)
            assert not await one.fleet.lifecycle.drain(0)
            async for part in parts:
                got += part
        assert got.startswith(EVENTS[0])
        assert b"stopping" in got
        assert b"[DONE]" not in got
        await one.invariants()
