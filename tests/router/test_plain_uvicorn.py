"""The application under uvicorn's own protocol class, which has none of our extensions: the same answers, more slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pdcore.http_head import BoundedHead
from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, MARK, FakeEngine, Flood, Hang, event

pytestmark = pytest.mark.integration

BODY = {"prompt": "hi"}
SOON_S = 3.0


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(protocol=BoundedHead) as fleet:
        yield fleet
        await fleet.settled()


async def test_whole_answers_and_streams_are_served(fleet: Fleet) -> None:
    events = [event(letter) for letter in "abc"] + [event("d", "stop"), DONE]
    whole, stream = fake.answer(200, COMPLETION, MARK), fake.stream(*events)
    async with FakeEngine([fake.accepted()]) as prefill, FakeEngine([whole, stream, whole]) as decode:
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        assert (await fleet.post(BODY)).json() == COMPLETION
        assert (await fleet.post({**BODY, "stream": True})).content == b"".join(events)
        assert (await fleet.post(BODY)).json() == COMPLETION


async def test_a_client_that_leaves_ends_both_legs(fleet: Fleet) -> None:
    async with FakeEngine([(Hang(),)]) as prefill, FakeEngine([(Hang(),)]) as decode:
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        asking = asyncio.ensure_future(fleet.post(BODY))
        await eventually(lambda: prefill.open_now and decode.open_now, SOON_S, "both legs are open")
        asking.cancel()
        await eventually(lambda: not (prefill.open_now or decode.open_now), SOON_S, "both have ended")
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_client_that_does_not_read_holds_the_engine_back(fleet: Fleet) -> None:
    part = event("x" * 1000)
    flood = Flood(b"%x\r\n%b\r\n" % (len(part), part), 100_000)
    async with FakeEngine([fake.accepted()]) as prefill, FakeEngine([(fake.stream_head(), flood)]) as decode:
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        async with fleet.client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
            assert answer.status_code == 200
            looks: list[int] = []

            def stands_still() -> bool:
                looks.append(decode.flooded)
                return len(looks) > 20 and looks[-1] == looks[-20] > 0

            await eventually(stands_still, SOON_S, "nothing flows any more")
            assert decode.flooded < 24 << 20
