"""Prefill first: what it answers reaches one decode after another until one takes it, and nothing is done twice."""

from __future__ import annotations

import pytest

from tests.router.conformance.faults import instead, saying
from tests.router.conformance.rig import error_of, rig
from tests.support import fake_engines as fake
from tests.support.fake_engines import Script

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("params", [None, {}, "x", [1]])
async def test_a_prefill_that_says_nothing_of_its_kv_has_failed_and_decode_recomputes_nothing(
    params: object,
) -> None:
    def without(good: Script) -> Script:
        return fake.answer(200, {"id": "p", "choices": [], "kv_transfer_params": params})

    async with rig("nixl") as one:
        one["p0"].faults = [without]
        answer = await one.ask()
        assert (answer.status_code, error_of(answer)["code"]) == (502, "prefill_failed")
        assert one.asked == ["p0"]
        assert await one.fleet.metric("pdcore_router_legs_total", leg="prefill", outcome="garbage") == 1
        await one.invariants()
        await one.is_served()


async def test_a_decode_that_is_gone_leaves_the_hand_off_to_another_one() -> None:
    async with rig("nixl", decodes=2) as one:
        await one["d0"].refuse()
        for _ in range(2):
            await one.is_served()
        assert sorted(one.asked) == ["d1", "d1", "p0", "p0"]
        await one.invariants()


async def test_a_hand_off_that_no_decode_takes_ends_as_the_last_one_said() -> None:
    async with rig("nixl", decodes=2) as one:
        one["d0"].faults, one["d1"].faults = [saying(503)], [saying(429)]
        answer = await one.ask()
        assert answer.status_code in (429, 503)
        assert sorted(one.asked) == ["d0", "d1", "p0"]
        await one.invariants()
        await one.is_served()


async def test_decode_is_asked_only_when_prefill_has_answered() -> None:
    async with rig("nixl") as one:
        one["p0"].faults = [saying(500)]
        assert (await one.ask()).status_code == 502
        assert one.asked == ["p0"]
        assert await one.fleet.metric("pdcore_router_legs_total", leg="decode") == 0
        one["p0"].faults = [instead(fake.Reset())]
        assert (await one.ask(stream=True)).status_code == 502
        assert one["d0"].seen == []
        await one.invariants()
