"""Whoever leaves, both legs end within a second: the client in each phase, and the router."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
import pytest

from tests.router.conformance.engines import EVENTS, Fault, MooncakePrefill
from tests.router.conformance.faults import after_an_event, after_the_head, instead, of_leg
from tests.router.conformance.leaving import asking, connected
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


async def stands_still(one: Rig, phase: Phase) -> asyncio.Task[httpx.Response]:
    """A request that has got to ``phase``, to be ended by the caller."""
    one[phase.engine].faults = [phase.fault]
    before = len(one[phase.engine].seen)
    waiting = asyncio.ensure_future(one.ask(stream=phase.stream))
    await eventually(lambda: len(one[phase.engine].seen) > before, 3, phase.name)
    return waiting


@pytest.mark.parametrize("protocol", PAIRED)
async def test_a_client_that_leaves_ends_both_legs_in_every_phase(protocol: str) -> None:
    async with rig(protocol) as one:
        for phase in PHASES:
            waiting = await stands_still(one, phase)
            waiting.cancel()
            await asyncio.wait((waiting,))
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


REQUEST = asking(stream=True)
UPLOADS = {
    "nothing yet": (b"", False),
    "half a head": (REQUEST[:40], False),
    "the head": (REQUEST.partition(b"{")[0], True),
    "half a body": (REQUEST[:-5], True),
}
"""What has come when the client leaves, and whether it is a request by then."""


async def test_a_client_that_leaves_during_its_upload_never_had_a_leg() -> None:
    async with rig("bootstrap") as one:
        lifecycle = one.fleet.lifecycle
        for name, (sent, is_request) in UPLOADS.items():
            async with connected(one.fleet.url) as (_, writer):
                writer.write(sent)
                await writer.drain()
                if is_request:
                    await eventually(lambda: lifecycle.requests, GONE_WITHIN_S, f"{name}: it has begun")
            await eventually(lambda: not lifecycle.requests, GONE_WITHIN_S, f"{name}: it has ended")
            await one.invariants()
        assert one.asked == []
        assert await one.fleet.metric("pdcore_router_requests_total", outcome="cancelled") == 2
        await one.is_served(stream=True)
        await one.fleet.settled()


async def test_a_client_that_leaves_while_prefill_is_asked_who_it_is_never_had_a_leg() -> None:
    async with rig("mooncake") as one:
        prefill = one["p0"]
        assert isinstance(prefill, MooncakePrefill)
        prefill.query_faults = [(Hang(),)]
        leaving = asyncio.ensure_future(one.ask())
        await eventually(lambda: prefill.queries, 3, "it is asked")
        leaving.cancel()
        await asyncio.wait((leaving,))
        await eventually(lambda: prefill.open_now == 0, GONE_WITHIN_S, "the question ended")
        assert one.asked == []
        await one.invariants()
        await one.is_served()
        await one.fleet.settled()


async def a_router_stops(protocol: str, phase: Phase) -> None:
    """In ``phase`` of a request: it says so, and both legs end."""
    async with rig(protocol) as one:
        waiting = await stands_still(one, phase)
        assert not await one.fleet.lifecycle.drain(0)
        answer = await waiting
        error = error_of(answer)
        assert (error["code"], "stopping" in error["message"]) == ("backend_unavailable", True)
        assert answer.status_code == 503 or (phase.stream and answer.content.startswith(EVENTS[0]))
        await one.invariants()


@pytest.mark.parametrize(("protocol", "phase"), list(zip(PAIRED, PHASES, strict=False)))
async def test_a_router_that_stops_ends_both_legs_and_says_so(protocol: str, phase: Phase) -> None:
    await a_router_stops(protocol, phase)


@pytest.mark.cluster
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
@pytest.mark.parametrize("protocol", PAIRED)
async def test_a_router_that_stops_in_any_phase_ends_both_legs_and_says_so(
    protocol: str, phase: Phase
) -> None:
    await a_router_stops(protocol, phase)


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
