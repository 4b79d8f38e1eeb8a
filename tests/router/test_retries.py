"""What is tried again: only what was not executed, on another pair or a fresher view, with fresh rooms, boundedly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from pdcore.config.policies import policy_names
from tests.router.fleet import Fleet, record, register, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Hang, Script

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
HANG: Script = (Hang(),)
BUSY: Script = fake.answer(503, {"error": {"message": "full", "code": "backend_unavailable"}})
BACKLOG: Script = fake.answer(503, {"error": {"message": "quarantine", "code": "peer_backlog"}})
STALE: Script = fake.answer(421, {"error": {"message": "other"}}, {"x-pdcore-refused": "stale"})


class TwoByTwo:
    """Two prefills and two decodes. The first request is sent to p0 and d0."""

    def __init__(self, fleet: Fleet, engines: dict[str, FakeEngine]) -> None:
        self.fleet = fleet
        self.engines = engines

    def __getitem__(self, name: str) -> FakeEngine:
        return self.engines[name]

    def rooms(self, name: str) -> list[int]:
        return [seen.json["bootstrap_room"] for seen in self[name].seen]

    async def settled(self) -> None:
        await eventually(lambda: not any(one.open_now for one in self.engines.values()), 3, "all legs ended")
        await self.fleet.settled()


@pytest.fixture
async def four() -> AsyncIterator[TwoByTwo]:
    async with (
        running_fleet(policy=policy_names("round_robin")) as fleet,
        FakeEngine([fake.accepted()]) as p0,
        FakeEngine([fake.accepted()]) as p1,
        FakeEngine([GOOD]) as d0,
        FakeEngine([GOOD]) as d1,
    ):
        engines = {"p0": p0, "p1": p1, "d0": d0, "d1": d1}
        for name, engine in engines.items():
            await fleet.add(name, "prefill" if name[0] == "p" else "decode", engine)
        yield TwoByTwo(fleet, engines)
        for engine in engines.values():
            engine.release.set()


async def test_a_refused_prefill_is_avoided_with_fresh_rooms_and_its_decode_leg_is_cancelled(
    four: TwoByTwo,
) -> None:
    await four["p0"].refuse()
    four["d0"].scripts = [HANG, GOOD]
    answer = await four.fleet.post({"prompt": "hi"})
    assert answer.status_code == 200
    assert answer.headers["x-pdcore-pair"].startswith("p1,")
    rooms = four.rooms("p1") + four.rooms("d0") + four.rooms("d1")
    assert len(set(rooms)) == len(rooms) - 1, "the second pair shares one room, the cancelled leg had its own"
    assert await four.fleet.metric("pdcore_router_retries_total", reason="retry_elsewhere") == 1
    await four.settled()


async def test_a_refused_decode_cancels_the_prefill_leg_and_is_avoided(four: TwoByTwo) -> None:
    await four["d0"].refuse()
    four["p0"].scripts = [HANG]
    answer = await four.fleet.post({"prompt": "hi"})
    assert (answer.status_code, answer.headers["x-pdcore-pair"]) == (200, "p1,d1")
    await four.settled()


@pytest.mark.parametrize("script", [BUSY, fake.answer(429, {}, {"retry-after": "7"})], ids=["503", "429"])
async def test_a_full_engine_is_asked_once_and_another_pair_serves(four: TwoByTwo, script: Script) -> None:
    four["d0"].scripts = [script]
    four["p0"].scripts = [HANG]
    answer = await four.fleet.post({"prompt": "hi"})
    assert answer.headers["x-pdcore-pair"] == "p1,d1"
    assert len(four["d0"].seen) == 1
    await four.settled()


async def test_a_backlog_reported_by_decode_changes_the_prefill(four: TwoByTwo) -> None:
    await four.fleet.remove("d1", record("decode", four["d1"].url))
    four["d0"].scripts, four["p0"].scripts = [BACKLOG, GOOD], [HANG]
    answer = await four.fleet.post({"prompt": "hi"})
    assert (answer.status_code, answer.headers["x-pdcore-pair"]) == (200, "p1,d0")
    await four.settled()


async def test_attempts_are_bounded_and_the_last_refusal_is_told() -> None:
    async with running_fleet(max_attempts=3) as fleet, FakeEngine([HANG]) as prefill:
        decodes = [
            FakeEngine([fake.answer(429, {"error": {"message": "full"}}, {"retry-after": "7"})])
            for _ in range(5)
        ]
        for decode in decodes:
            await decode.__aenter__()
            await fleet.add(f"d{decode.port}", "decode", decode)
        await fleet.add("p", "prefill", prefill)
        answer = await fleet.post({"prompt": "hi"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert "full" in answer.json()["error"]["message"]
        assert sum(len(decode.seen) for decode in decodes) == 3
        assert max(len(decode.seen) for decode in decodes) == 1
        for decode in decodes:
            await decode.refuse()
        answer = await fleet.post({"prompt": "hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")
        await fleet.settled()


@pytest.mark.parametrize("status", [400, 404, 500, 502, 504])
async def test_what_may_have_been_executed_or_is_the_clients_fault_is_not_retried(
    four: TwoByTwo, status: int
) -> None:
    for name in ("d0", "d1"):
        four[name].scripts = [fake.answer(status, {"error": {"message": "no"}})]
    for name in ("p0", "p1"):
        four[name].scripts = [HANG]
    assert (await four.fleet.post({"prompt": "hi"})).status_code in (400, 404, 502, 504)
    assert len(four["d0"].seen) + len(four["d1"].seen) == 1
    await four.settled()


async def test_once_the_kv_has_arrived_nothing_is_retried(four: TwoByTwo) -> None:
    error = {"error": {"message": "full", "code": "peer_backlog"}}
    for name in ("d0", "d1"):
        four[name].scripts = [fake.answer(200, error, MARK)]
    assert (await four.fleet.post({"prompt": "hi"})).status_code == 503
    assert len(four["d0"].seen) + len(four["d1"].seen) == 1
    await four.settled()


async def test_a_stale_pair_is_retried_at_once_on_the_view_that_has_moved() -> None:
    """The instance restarted at the same address; the view learns of it while the request is under way."""
    async with (
        running_fleet() as fleet,
        FakeEngine([(Hang(), *STALE), fake.accepted()]) as prefill,
        FakeEngine([HANG, GOOD]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        asking = asyncio.ensure_future(fleet.post({"prompt": "hi"}))
        await eventually(lambda: prefill.open_now and decode.open_now, 2)
        await register(fleet.store, "p", record("prefill", prefill.url, incarnation="i2"))
        await fleet.sees("p", "i2")
        prefill.release.set()
        answer = await asking
        assert answer.status_code == 200
        assert [seen.headers["x-pdcore-prefill-incarnation"] for seen in prefill.seen] == ["i1", "i2"]
        assert len(set(seen.json["bootstrap_room"] for seen in prefill.seen)) == 2
        assert await fleet.metric("pdcore_router_retries_total", reason="retry_fresh") == 1


async def test_a_stale_pair_waits_for_a_view_that_lags() -> None:
    async with (
        running_fleet() as fleet,
        FakeEngine([STALE, fake.accepted()]) as prefill,
        FakeEngine([HANG, GOOD]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        asking = asyncio.ensure_future(fleet.post({"prompt": "hi"}))
        await eventually(lambda: _retried(fleet), 2)
        await register(fleet.store, "p", record("prefill", prefill.url, incarnation="i2"))
        assert (await asking).status_code == 200
        assert prefill.seen[-1].headers["x-pdcore-prefill-incarnation"] == "i2"


async def _retried(fleet: Fleet) -> bool:
    return await fleet.metric("pdcore_router_retries_total", reason="retry_fresh") == 1


async def test_a_view_that_does_not_move_sends_a_421_elsewhere(four: TwoByTwo) -> None:
    four["p0"].scripts = [STALE]
    four["d0"].scripts = [HANG, GOOD]
    answer = await four.fleet.post({"prompt": "hi"})
    assert answer.status_code == 200
    assert answer.headers["x-pdcore-pair"].startswith("p1,")
    await four.settled()


async def test_a_421_that_stays_is_503_after_bounded_attempts() -> None:
    async with (
        running_fleet(max_attempts=2) as fleet,
        FakeEngine([STALE]) as prefill,
        FakeEngine([HANG]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        answer = await fleet.post({"prompt": "hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")
        assert len(prefill.seen) == 2
        await fleet.settled()


async def test_a_connection_into_the_void_is_503_within_one_connect_budget() -> None:
    async with running_fleet(connect_timeout_s=0.5) as fleet, FakeEngine([HANG]) as prefill:
        await fleet.add("p", "prefill", prefill)
        for n in range(3):
            await register(fleet.store, f"d{n}", record("decode", "http://192.0.2.1:9"))
            await fleet.sees(f"d{n}", "i1")
        began = time.monotonic()
        answer = await fleet.post({"prompt": "hi"})
        assert answer.status_code == 503
        assert time.monotonic() - began < 1.4, "not the sum over retries"
        await fleet.settled()
