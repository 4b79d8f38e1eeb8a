"""Suspects on real sockets: keys that vanish cost no request, engines that are gone or frozen cost one at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pdcore.registry.overlay import cache
from pdcore.registry.store import Put
from pdcore.topology import codec, keys
from pdcore.topology.records import DepartureRecord, InstanceRecord
from pdcore.topology.topology import Stored, build
from tests.router.fleet import MODEL, SPACE, Fleet, entries, lose, record, register, running_fleet
from tests.router.test_process import Process
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Hang, Script
from tests.support.processes import free_port

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
BUSY: Script = fake.answer(429, {"error": {"message": "full", "code": "rate_limited"}})
OTHER: Script = fake.answer(200, {"status": "ok", "incarnation": "i2"})
FAILED: Script = fake.answer(503, {"status": "failed", "incarnation": "i1"})
BODY = {"model": MODEL, "prompt": "hi"}
WITHIN_S = 10.0


@dataclass
class Pair:
    """A router with one prefill and one decode."""

    fleet: Fleet
    p: FakeEngine
    d: FakeEngine
    made: dict[str, InstanceRecord]

    async def lose(self, name: str) -> None:
        await lose(self.fleet.store, name, self.made[name])
        await self.fleet.follower.wait_until(lambda view: name not in view.instances, WITHIN_S)

    async def shown(self) -> dict[str, dict[str, object]]:
        """The suspects as the router shows them."""
        found: dict[str, dict[str, object]] = (await self.fleet.client.get("/pdcore/topology")).json()[
            "suspects"
        ]
        return found

    async def standing(self, name: str, standing: str) -> None:
        async def stands() -> bool:
            return (await self.shown()).get(name, {}).get("standing") == standing

        await eventually(stands, WITHIN_S, f"{name} is {standing}")

    async def forgotten(self, name: str) -> None:
        async def is_forgotten() -> bool:
            return name not in await self.shown()

        await eventually(is_forgotten, WITHIN_S, f"{name} is no suspect")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with running_fleet() as fleet, FakeEngine([fake.accepted()]) as p, FakeEngine([GOOD]) as d:
        made = {"p": await fleet.add("p", "prefill", p), "d": await fleet.add("d", "decode", d)}
        yield Pair(fleet, p, d, made)
        for engine in (p, d):
            engine.release.set()
        await fleet.settled()


async def test_a_store_that_loses_every_key_costs_no_request(pair: Pair) -> None:
    for name in ("p", "d"):
        await pair.lose(name)
        assert (await pair.fleet.post(BODY)).status_code == 200
    for name in ("p", "d"):
        await pair.standing(name, "kept")
    answer = await pair.fleet.post(BODY)
    assert (answer.status_code, answer.headers["x-pdcore-pair"]) == (200, "p,d")
    assert (await pair.fleet.client.get("/v1/models")).json()["data"][0]["id"] == MODEL
    assert await pair.fleet.metric("pdcore_router_suspects") == 2
    assert await pair.fleet.metric("pdcore_router_probes", outcome="answered") >= 2
    for name in ("p", "d"):
        await register(pair.fleet.store, name, pair.made[name])
        await pair.forgotten(name)
    assert (await pair.fleet.post(BODY)).status_code == 200


@pytest.mark.parametrize("health", [OTHER, FAILED])
async def test_a_suspect_that_somebody_else_answers_for_is_gone(pair: Pair, health: Script) -> None:
    pair.d.health = health
    await pair.lose("d")
    await pair.forgotten("d")
    answer = await pair.fleet.post(BODY)
    assert answer.status_code == 503
    assert "no decode instance is ready" in answer.text


async def test_a_suspect_that_refuses_connections_is_gone_and_one_that_is_silent_too(pair: Pair) -> None:
    await pair.d.refuse()
    await pair.lose("d")
    await pair.forgotten("d")
    pair.p.health = (Hang(),)
    await pair.lose("p")
    await pair.standing("p", "gone")
    assert (await pair.fleet.post(BODY)).status_code == 503


async def test_a_departure_is_final(pair: Pair) -> None:
    await pair.lose("d")
    await pair.standing("d", "kept")
    said = DepartureRecord(incarnation="i1", reason="died", by="test")
    await pair.fleet.store.commit((), (Put(SPACE.view + keys.departure("d"), codec.encode(said)),))
    await pair.forgotten("d")
    assert (await pair.fleet.post(BODY)).status_code == 503


async def test_suspects_are_picked_only_when_nothing_confirmed_has_room(pair: Pair) -> None:
    async with FakeEngine([GOOD]) as other:
        await pair.fleet.add("d2", "decode", other)
        await pair.lose("d")
        for _ in range(4):
            assert (await pair.fleet.post(BODY)).headers["x-pdcore-pair"] == "p,d2"
        other.scripts = [BUSY]
        assert (await pair.fleet.post(BODY)).headers["x-pdcore-pair"] == "p,d"


async def test_an_engine_that_refuses_a_request_is_not_picked_again_until_it_answers(pair: Pair) -> None:
    async with FakeEngine([GOOD]) as other:
        await pair.fleet.add("d2", "decode", other)
        await pair.d.refuse()
        for _ in range(3):
            assert (await pair.fleet.post(BODY)).status_code == 200
        await pair.standing("d", "gone")
        assert (await pair.shown())["d"]["listed"] is True
        before = await pair.fleet.metric("pdcore_router_retries_total")
        for _ in range(4):
            assert (await pair.fleet.post(BODY)).headers["x-pdcore-pair"] == "p,d2"
        assert await pair.fleet.metric("pdcore_router_retries_total") == before
        assert await pair.fleet.metric("pdcore_router_instances_gone") == 1
        pair.d.release.clear()
        async with pair.d:
            await pair.forgotten("d")
            other.scripts = [BUSY]
            assert (await pair.fleet.post(BODY)).headers["x-pdcore-pair"] == "p,d"


@pytest.mark.parametrize(("who", "code"), [("p", "prefill_failed"), ("d", "decode_failed")])
async def test_a_frozen_engine_fails_its_requests_long_before_their_deadline(
    pair: Pair, who: str, code: str
) -> None:
    frozen = {"p": pair.p, "d": pair.d}[who]
    other = {"p": pair.d, "d": pair.p}[who]
    frozen.scripts, frozen.health, other.scripts = [(Hang(),)], (Hang(),), [(Hang(),)]
    began = time.monotonic()
    answer = await pair.fleet.post(BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, code)
    assert time.monotonic() - began < 8, "its budget is 10 s"
    assert await pair.fleet.metric("pdcore_router_legs_total", outcome="frozen") == 1
    refused = await pair.fleet.post(BODY)
    assert refused.status_code == 503
    assert "does not answer" in refused.text
    frozen.health = FakeEngine([GOOD]).health
    frozen.release.set()
    await pair.forgotten(who)


async def test_an_engine_that_only_works_long_is_asked_and_left_alone(pair: Pair) -> None:
    pair.d.scripts = [(Hang(), *GOOD)]
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(pair.fleet.post(BODY))
        await eventually(lambda: pair.d.probes >= 2, WITHIN_S, "asked twice")
        assert await pair.shown() == {}
        pair.d.release.set()
    assert asking.result().status_code == 200


@pytest.mark.cluster
async def test_a_router_that_starts_while_the_store_is_away_serves_from_its_cached_view(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state" / "view.json"
    async with FakeEngine([fake.accepted()]) as p, FakeEngine([GOOD]) as d, FakeEngine([GOOD]) as gone:
        found = {**entries("p", record("prefill", p.url)), **entries("d", record("decode", d.url))}
        found |= entries("d2", record("decode", gone.url))
        await gone.refuse()
        listed = {key: Stored(codec.encode(one), 5) for key, one in found.items()}
        cache.write(file, build(listed, 5), SPACE.cluster)
        store = f"etcd://127.0.0.1:{free_port()}"
        with Process(tmp_path, store, "--store-timeout-s", "0.5", "--view-cache", str(file)) as process:
            await process.wait_status("/ready", 200)
            async with httpx.AsyncClient(trust_env=False, timeout=20, verify=False) as client:
                for _ in range(3):
                    answer = await client.post(process.url + "/v1/completions", json=BODY)
                    assert (answer.status_code, answer.headers["x-pdcore-pair"]) == (200, "p,d")
                shown = (await client.get(process.url + "/pdcore/topology")).json()
        assert (shown["synced"], shown["view_age_seconds"]) == (False, None)
        assert {name: one["cause"] for name, one in shown["suspects"].items()} == {
            "p": "cached",
            "d": "cached",
        }
