"""Each fault of each leg of each protocol: the contract's answer at once, the other leg ended, nothing left behind.

Every case is tried at every protocol in the long run; in the short one each protocol has its share of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.router.conformance.engines import EVENTS
from tests.router.conformance.faults import BODY, EVENT, FAILED, HEAD, SILENT, Case, Leg, of_leg
from tests.router.conformance.rig import PAIRED, SOON_S, Rig, error_of, rig

pytestmark = pytest.mark.integration

BUDGETS: dict[str, Any] = {"first_byte_timeout_s": 0.6, "request_timeout_s": 1.2, "idle_timeout_s": 0.6}


async def meets(one: Rig, leg: Leg, case: Case, *, stream: bool) -> httpx.Response:
    """Let ``case`` happen, check what the client gets, and that afterwards all is as before."""
    engine, where = one[f"{leg[0]}0"], f"{one.protocol} {leg} {case.name}, stream {stream}"
    before = len(engine.seen)
    engine.faults = [of_leg(leg, case.fault)]
    began = time.monotonic()
    answer = await one.ask(stream=stream)
    assert time.monotonic() - began < SOON_S, where
    assert answer.status_code == case.status, (where, answer.text)
    assert len(engine.seen) == before + 1, where
    if case.code is None:
        assert error_of(answer)["message"] == "too long", where
    else:
        error = error_of(answer)
        assert error["code"] == (f"{leg}_failed" if case.code == FAILED else case.code), (where, error)
        assert error["request_id"] == answer.headers["x-request-id"]
    await one.invariants()
    await one.is_served(stream=stream)
    return answer


LEGS: tuple[Leg, ...] = ("prefill", "decode")


def share(protocol: str, leg: Leg, cases: Sequence[Case]) -> Sequence[Case]:
    """A quarter of ``cases``: over all protocols each case has its turn at each leg."""
    return cases[(PAIRED.index(protocol) + (leg == "decode")) % len(PAIRED) :: len(PAIRED)]


async def all_are_met(one: Rig, leg: Leg, head: Sequence[Case], body: Sequence[Case]) -> None:
    for number, case in enumerate(head):
        await meets(one, leg, case, stream=number % 2 == 0)
    for case in body:
        await meets(one, leg, case, stream=False)
    await one.fleet.settled()


@pytest.mark.parametrize("protocol", PAIRED)
async def test_a_fault_before_our_first_byte_is_a_status_of_its_leg(protocol: str) -> None:
    async with rig(protocol) as one:
        for leg in LEGS:
            await all_are_met(one, leg, share(protocol, leg, HEAD), share(protocol, leg, BODY))


@pytest.mark.cluster
@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("protocol", PAIRED)
async def test_every_fault_before_our_first_byte_is_a_status_of_its_leg(protocol: str, leg: Leg) -> None:
    async with rig(protocol) as one:
        await all_are_met(one, leg, HEAD, BODY)


@pytest.mark.parametrize("protocol", PAIRED)
async def test_a_fault_within_a_stream_is_its_last_event(protocol: str) -> None:
    async with rig(protocol) as one:
        for case in share(protocol, "decode", EVENT):
            one["d0"].faults = [case.fault]
            answer = await one.ask(stream=True)
            assert answer.status_code == 200
            assert answer.content.startswith(EVENTS[0])
            rest = answer.content.removeprefix(EVENTS[0])
            assert rest.count(b"\n\n") == 1, (case.name, rest)
            assert error_of(answer)["code"] == "decode_failed", case.name
            await one.invariants()
            await one.is_served(stream=True)
        await one.fleet.settled()


@pytest.mark.parametrize("protocol", PAIRED)
async def test_silence_ends_by_a_budget_that_is_named(protocol: str) -> None:
    async with rig(protocol, **BUDGETS) as one:
        for leg in LEGS:
            for case in SILENT:
                one[f"{leg[0]}0"].faults = [of_leg(leg, case.fault)]
                answer = await one.ask()
                assert (answer.status_code, error_of(answer)["code"]) == (504, "deadline_exceeded")
                assert "budget of" in error_of(answer)["message"]
                await one.invariants()
        await one.is_served()


@pytest.mark.parametrize("protocol", PAIRED)
async def test_an_engine_that_is_gone_is_503_until_it_is_back(protocol: str) -> None:
    async with rig(protocol) as one:
        await one.is_served()
        for name in ("p0", "d0"):
            await one[name].refuse()
            for _ in range(2):
                answer = await one.ask()
                assert (answer.status_code, error_of(answer)["code"]) == (503, "backend_unavailable")
                await one.invariants()
            await one.restarts(name, "i2")
            await one.is_served()
        await one.fleet.settled()
