"""Many at once: what one request meets, its neighbours do not, and nothing is left of any of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.conformance.engines import SpeakingEngine
from tests.router.conformance.faults import after_an_event, instead, saying
from tests.router.conformance.rig import PAIRED, rig
from tests.support.fake_engines import Reset, Script, Send

pytestmark = pytest.mark.integration

MANY = 12
SOME = [
    pytest.param(name, marks=pytest.mark.cluster if name in ("mooncake", "ascend-layerwise") else ())
    for name in PAIRED
]
"""Those of two hops and of one in the short run, all of them in the long one."""


def head_first(good: Script) -> Script:
    """As engines do that begin a stream before they have anything to say: the head, then all that comes before it."""
    at = next(at for at, step in enumerate(good) if isinstance(step, Send))
    return (good[at], *good[:at], *good[at + 1 :])


@pytest.mark.parametrize("protocol", SOME)
async def test_every_third_request_fails_and_the_others_are_served(protocol: str) -> None:
    async with rig(protocol) as one:
        one["d0"].faults = [
            fault for _ in range(MANY // 3) for fault in (saying(500), head_first, instead(Reset()))
        ]
        answers = await asyncio.gather(*(one.ask(stream=True) for _ in range(MANY)))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200] * (MANY // 3) + [502] * (2 * MANY // 3)
        await one.invariants()
        await one.is_served()
        await one.fleet.settled()


@pytest.mark.parametrize("protocol", SOME)
async def test_a_stream_whose_head_came_early_is_a_status_as_long_as_no_event_has_come(protocol: str) -> None:
    async with rig(protocol) as one:
        one["d0"].faults = [head_first]
        await one.is_served(stream=True)
        if protocol == "bootstrap":
            return  # its head is the mark that the KV has come
        one["p0"].faults, one["d0"].faults = [saying(500)], [head_first]
        answer = await one.ask(stream=True)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "prefill_failed")
        await one.invariants()
        await one.is_served(stream=True)


@pytest.mark.parametrize("protocol", SOME)
async def test_no_two_requests_share_a_name(protocol: str) -> None:
    async with rig(protocol) as one:
        one["d0"].faults = [after_an_event(Reset())]
        await asyncio.gather(*(one.ask(stream=True) for _ in range(MANY)))
        names = [name_of(one["d0"], at) for at in range(MANY)]
        assert len(set(names)) == MANY
        await one.invariants()


def name_of(engine: SpeakingEngine, at: int) -> object:
    seen = engine.seen[at]
    return seen.json.get("bootstrap_room") or seen.headers["x-request-id"]
