"""Breakers at work: who fails what it is given is picked last, tried now and then, and taken back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from pdcore.config.policies import policy_names
from pdcore.router.breaker import FEWEST, PAUSE_S
from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Hang, Script

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
BAD: Script = fake.answer(500, {"error": {"message": "a kernel failed"}})
BLAMES: Script = fake.answer(502, {"error": {"message": "no KV came", "code": "prefill_failed"}})
BODY = {"prompt": "hi"}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(policy=policy_names("round_robin")) as fleet:
        yield fleet
        await fleet.settled()


async def broken(fleet: Fleet, of: FakeEngine) -> None:
    """Send requests until ``of`` has failed often enough."""
    for _ in range(8 * FEWEST):
        if fleet.serving.ground.witness.breakers.open_now:
            return
        await fleet.post(BODY)
    raise AssertionError(f"no breaker opened after {len(of.seen)} failures")


async def test_who_fails_is_left_alone_tried_again_and_taken_back(fleet: Fleet) -> None:
    async with FakeEngine([fake.accepted()]) as p, FakeEngine([BAD]) as bad, FakeEngine([GOOD]) as good:
        for name, role, engine in (("p", "prefill", p), ("d0", "decode", bad), ("d1", "decode", good)):
            await fleet.add(name, role, engine)  # type: ignore[arg-type]
        began = time.monotonic()
        await broken(fleet, bad)
        assert await fleet.metric("pdcore_router_breakers_open") == 1
        asked = len(bad.seen)
        answers = [(await fleet.post(BODY)).status_code for _ in range(5)]
        tried = len(bad.seen) - asked
        assert sorted(answers) == [200] * (5 - tried) + [502] * tried
        assert tried <= (time.monotonic() - began) / PAUSE_S, "once in a pause at most"
        asked = len(bad.seen)
        bad.scripts = [GOOD]

        async def is_tried() -> bool:
            return (await fleet.post(BODY)).status_code == 200 and len(bad.seen) > asked

        await eventually(is_tried, 5, "one request tries it")
        assert await fleet.metric("pdcore_router_breakers_open") == 0


async def test_who_is_the_only_one_is_used_whatever_it_failed(fleet: Fleet) -> None:
    async with FakeEngine([fake.accepted()]) as p, FakeEngine([BAD]) as only:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", only)
        await broken(fleet, only)
        assert (await fleet.post(BODY)).status_code == 502, "asked, not refused"
        only.scripts = [GOOD]
        assert (await fleet.post(BODY)).status_code == 200


class Receiving(FakeEngine):
    """A decode to which no KV comes from the prefill with bootstrap port 1."""

    def script(self) -> Script:
        return BLAMES if self.seen[-1].json["bootstrap_port"] == 1 else GOOD


async def test_a_prefill_that_every_decode_blames_is_left_alone_and_no_decode(fleet: Fleet) -> None:
    async with (
        FakeEngine([(Hang(),)]) as p0,
        FakeEngine([fake.accepted()]) as p1,
        Receiving([GOOD]) as d0,
        Receiving([GOOD]) as d1,
    ):
        await fleet.add("p0", "prefill", p0, bootstrap_host="127.0.0.1", bootstrap_port=1)
        await fleet.add("p1", "prefill", p1, bootstrap_host="127.0.0.1", bootstrap_port=2)
        await fleet.add("d0", "decode", d0)
        await fleet.add("d1", "decode", d1)
        await broken(fleet, p0)
        out = fleet.serving.ground.witness.breakers.out(fleet.serving.ground.clock.now())
        assert [name for name, _ in out] == ["p0"]
        for _ in range(4):
            answer = await fleet.post(BODY)
            assert answer.headers["x-pdcore-pair"].startswith("p1,")
