"""``/pdcore/history``: what a router remembers of its own views."""

from __future__ import annotations

import time

import pytest

from pdcore.registry.ring import read_remembered
from pdcore.registry.store import Put
from tests.router.fleet import SPACE, running_fleet

pytestmark = pytest.mark.integration


async def test_it_tells_the_view_of_a_time_and_since_when_it_knows() -> None:
    async with running_fleet() as fleet:
        written = await fleet.store.commit((), (Put(SPACE.view + "routers/r0", b"{}"),))
        await fleet.follower.wait_for(written.revision, 5)
        now_ms = round(time.time() * 1000) + 1000
        answer = await fleet.client.get("/pdcore/history", params={"at_ms": now_ms})
        read = read_remembered(answer.content)
        assert read.topology == fleet.follower.topology
        assert read.oldest_ms is not None
        answer = await fleet.client.get("/pdcore/history", params={"at_ms": read.oldest_ms - 1})
        unknown = read_remembered(answer.content)
        assert (unknown.time_ms, unknown.oldest_ms) == (None, read.oldest_ms)


@pytest.mark.parametrize("at_ms", ["", "x", "-1", "1.5", "9" * 17, "٣"])
async def test_a_time_that_is_none_is_a_400_that_names_it(at_ms: str) -> None:
    async with running_fleet() as fleet:
        answer = await fleet.client.get("/pdcore/history", params={"at_ms": at_ms})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "at_ms"
