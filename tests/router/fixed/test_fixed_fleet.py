"""A router without a store: engines at fixed addresses, asked every second, added and removed while it serves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from pdcore.bearer import Token
from pdcore.config.targets import Target, TargetRole
from pdcore.router.access import Access
from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, FakeEngine, Fin, Hang, Script
from tests.support.processes import free_port

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION)
MODELS: Script = fake.answer(200, {"object": "list", "data": [{"id": "tiny"}]})
NO_HEALTH: Script = fake.answer(404, {"detail": "Not Found"})
WELL: Script = fake.answer(200, {})
BODY = {"prompt": "hi"}
WITHIN_S = 5.0


class Foreign(FakeEngine):
    """An engine that knows nothing of incarnations; ``/v1/models`` is no request either."""

    models: Script = MODELS

    def script(self) -> Script:
        if self.seen[-1].path == "/v1/models":
            self.seen.pop()
            return self.models
        return super().script()


def foreign(script: Script = GOOD, *, health: Script = WELL, port: int = 0) -> Foreign:
    return Foreign([script], health=health, port=port)


def at(role: TargetRole, engine: FakeEngine) -> Target:
    return Target(
        role=role, host="127.0.0.1", port=engine.port, bootstrap_port=8998 if role == "prefill" else None
    )


@asynccontextmanager
async def serving(
    *, prefill: tuple[FakeEngine, ...] = (), decode: tuple[FakeEngine, ...] = (), **changes: Any
) -> AsyncIterator[Fleet]:
    """A router that was told these engines, which run already."""
    async with running_fleet(
        prefill=tuple(at("prefill", one) for one in prefill),
        decode=tuple(at("decode", one) for one in decode),
        **changes,
    ) as fleet:
        yield fleet
        await fleet.settled()


async def up(fleet: Fleet, count: int) -> None:
    """Until so many of its engines are up, and the router's view shows it."""
    await fleet.follower.wait_until(
        lambda view: sum(one.ready for one in view.instances.values()) == count, WITHIN_S
    )


async def workers(fleet: Fleet) -> dict[str, dict[str, object]]:
    """What the router lists, by URL."""
    listed = (await fleet.client.get("/workers")).json()
    assert listed["total"] == len(listed["workers"])
    return {one["url"]: one for one in listed["workers"]}


async def healthy(fleet: Fleet, url: str, is_healthy: bool = True) -> dict[str, object]:
    """Until the router has found ``url`` well, or not; what it lists of it then."""
    fixed, suspects = fleet.serving.fixed, fleet.serving.fleet
    assert fixed is not None

    def is_so() -> bool:
        name = next((name for name, one in fixed.targets.items() if one.url == url), None)
        return name is not None and is_healthy is (
            fixed.standing(name).is_up and name not in suspects.overlay.suspects
        )

    await eventually(is_so, WITHIN_S, f"{url} is {'' if is_healthy else 'not '}healthy")
    found = (await workers(fleet))[url]
    assert found["is_healthy"] is is_healthy
    return found


async def serves(fleet: Fleet, url: str, model: str | None) -> None:
    """Until ``url`` is listed as an engine that serves ``model``."""

    async def is_so() -> bool:
        return (await workers(fleet))[url]["model_id"] == model

    await eventually(is_so, WITHIN_S, f"{url} serves {model}")


@pytest.fixture
async def engines() -> AsyncIterator[tuple[Foreign, Foreign, Foreign]]:
    """One that prefills and two that decode."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(foreign()) for _ in range(3)]
        yield made[0], made[1], made[2]
        for one in made:
            one.release.set()


Engines = tuple[Foreign, Foreign, Foreign]


async def test_it_serves_what_it_was_told_with_the_bootstrap_port_it_was_told(engines: Engines) -> None:
    p, d0, d1 = engines
    async with serving(prefill=(p,), decode=(d0, d1)) as fleet:
        await up(fleet, 3)
        answers = [await fleet.post({**BODY, "model": "tiny"}) for _ in range(4)]
        assert [one.status_code for one in answers] == [200] * 4
        assert len(d0.seen) == len(d1.seen) == 2
        legs = [seen.json for seen in (*d0.seen, *d1.seen, *p.seen)]
        assert {(leg["bootstrap_host"], leg["bootstrap_port"]) for leg in legs} == {("127.0.0.1", 8998)}
        assert not any("disagg_prefill_dp_rank" in leg for leg in legs), "how many there are is not known"
        assert (await fleet.client.get("/v1/models")).json()["data"][0]["id"] == "tiny"
        assert (await fleet.post({**BODY, "model": "other"})).status_code == 404


async def test_an_engine_that_says_neither_how_it_is_nor_what_it_serves_serves_anything(
    engines: Engines,
) -> None:
    for one in engines:
        one.health, one.models = NO_HEALTH, NO_HEALTH
    p, d, _ = engines
    async with serving(prefill=(p,), decode=(d,)) as fleet:
        await up(fleet, 2)
        assert (await fleet.post({**BODY, "model": "any"})).status_code == 200
        assert (await fleet.post(BODY)).status_code == 200
        assert d.seen[0].json["model"] == "any"
        assert "model" not in d.seen[1].json, "nothing is made up"
        assert (await fleet.client.get("/v1/models")).json()["data"] == []


async def test_an_engine_that_is_slow_to_say_what_it_serves_is_asked_until_it_does(engines: Engines) -> None:
    p, d, _ = engines
    p.models = d.models = (Hang(),)
    async with serving(prefill=(p,), decode=(d,), probe_timeout_s=0.2) as fleet:
        await up(fleet, 2)
        assert (await fleet.post({**BODY, "model": "other"})).status_code == 200, "anything so far"
        p.models = d.models = MODELS
        for one in (p, d):
            await serves(fleet, one.url, "tiny")
        await fleet.follower.wait_until(
            lambda view: {one.record.models for one in view.instances.values()} == {("tiny",)}, WITHIN_S
        )
        assert (await fleet.post({**BODY, "model": "other"})).status_code == 404


async def test_a_decode_that_dies_idle_is_soon_out_and_costs_no_request(
    engines: Engines,
) -> None:
    p, d0, d1 = engines
    async with serving(prefill=(p,), decode=(d0, d1)) as fleet:
        await up(fleet, 3)
        began = time.monotonic()
        await d0.refuse()
        one = await healthy(fleet, d0.url, False)
        assert time.monotonic() - began < 3
        assert one["reason"] == "it refuses connections"
        assert [(await fleet.post(BODY)).status_code for _ in range(4)] == [200] * 4
        assert await fleet.metric("pdcore_router_retries_total") == 0


async def test_a_decode_that_dies_under_a_request_costs_it_nothing(engines: Engines) -> None:
    p, d0, d1 = engines
    async with serving(prefill=(p,), decode=(d0, d1)) as fleet:
        await up(fleet, 3)
        await d0.refuse()
        assert [(await fleet.post(BODY)).status_code for _ in range(6)] == [200] * 6


async def test_who_comes_back_is_used_again_and_is_somebody_else(engines: Engines) -> None:
    p, d, _ = engines
    async with serving(prefill=(p,), decode=(d,)) as fleet:
        await up(fleet, 2)
        name = f"decode-127.0.0.1-{d.port}"
        before = fleet.follower.topology.instances[name].incarnation
        await d.refuse()
        await healthy(fleet, d.url, False)
        assert (await fleet.post(BODY)).status_code == 503
        async with d:
            await up(fleet, 2)
            assert (await fleet.post(BODY)).status_code == 200
            assert fleet.follower.topology.instances[name].incarnation != before


async def test_a_native_engine_is_known_by_its_own_incarnation(engines: Engines) -> None:
    p, d, _ = engines
    for one in (p, d):
        one.health = fake.answer(200, {"status": "ok", "incarnation": "i1"})
    async with serving(prefill=(p,), decode=(d,)) as fleet:
        await up(fleet, 2)
        assert (await fleet.post(BODY)).status_code == 200
        assert d.seen[0].headers["x-pdcore-decode-incarnation"] == "i1"
        d.health = fake.answer(200, {"status": "ok", "incarnation": "i2"})
        await fleet.sees(f"decode-127.0.0.1-{d.port}", "i2")


async def test_a_native_engine_that_takes_nothing_yet_or_any_more_is_given_nothing(engines: Engines) -> None:
    p, d0, d1 = engines
    for one in engines:
        one.health = fake.answer(200, {"status": "ok", "incarnation": "i1"})
    d0.health = fake.answer(200, {"status": "starting", "incarnation": "i1"})
    async with serving(prefill=(p,), decode=(d0, d1)) as fleet:
        await up(fleet, 2)
        assert (await healthy(fleet, d0.url, False))["reason"] == "it is starting"
        assert [(await fleet.post(BODY)).status_code for _ in range(2)] == [200] * 2
        assert not d0.seen
        d0.health = d1.health
        await up(fleet, 3)
        d1.health = fake.answer(200, {"status": "draining", "incarnation": "i1"})
        await healthy(fleet, d1.url, False)
        asked = len(d1.seen)
        assert [(await fleet.post(BODY)).status_code for _ in range(2)] == [200] * 2
        assert (len(d0.seen), len(d1.seen)) == (2, asked)


async def test_a_silent_engine_is_picked_last_and_not_given_up(engines: Engines) -> None:
    p, d0, d1 = engines
    async with serving(prefill=(p,), decode=(d0, d1), frozen_after_s=60) as fleet:
        await up(fleet, 3)
        d0.health = (Hang(),)
        await healthy(fleet, d0.url, False)
        await eventually(lambda: fleet.serving.fleet.view.suspects, WITHIN_S, "a probe met silence too")
        assert [(await fleet.post(BODY)).status_code for _ in range(4)] == [200] * 4
        assert not d0.seen
        d0.health = WELL
        d0.release.set()
        await healthy(fleet, d0.url)


async def test_what_never_was_there_is_listed_with_the_reason(engines: Engines) -> None:
    p, d, _ = engines
    async with running_fleet(
        prefill=(at("prefill", p),),
        decode=(at("decode", d), Target(role="decode", host="127.0.0.1", port=free_port())),
    ) as fleet:
        await up(fleet, 2)
        listed = await workers(fleet)
        assert sorted(one["is_healthy"] is True for one in listed.values()) == [False, True, True]


async def test_an_engine_is_added_while_it_serves(engines: Engines) -> None:
    p, d0, d1 = engines
    async with serving(prefill=(p,), decode=(d0,)) as fleet:
        await up(fleet, 2)
        added = await fleet.client.post("/workers", json={"url": d1.url, "worker_type": "decode"})
        assert (added.status_code, added.json()["status"]) == (202, "accepted")
        assert added.json()["location"] == f"/workers/{added.json()['worker_id']}"
        await healthy(fleet, d1.url)
        await up(fleet, 3)
        for _ in range(4):
            assert (await fleet.post(BODY)).status_code == 200
        assert d1.seen
        again = await fleet.client.post("/workers", json={"url": d1.url, "worker_type": "decode"})
        assert again.json()["worker_id"] == added.json()["worker_id"]
        assert len(await workers(fleet)) == 3


@pytest.mark.parametrize("by", ["id", "url"])
async def test_an_engine_is_removed_and_what_it_works_on_ends_well(engines: Engines, by: str) -> None:
    p, d0, d1 = engines
    async with serving(prefill=(p,), decode=(d0, d1)) as fleet:
        await up(fleet, 3)
        which = f"decode-127.0.0.1-{d0.port}" if by == "id" else d0.url.replace("/", "%2F")
        removed = await fleet.client.delete(f"/workers/{which}")
        assert removed.status_code == 202
        await fleet.follower.wait_until(lambda view: len(view.instances) == 2, WITHIN_S)
        for _ in range(4):
            assert (await fleet.post(BODY)).status_code == 200
        assert not d0.seen
        assert (await fleet.client.delete(f"/workers/{which}")).status_code == 404


async def test_workers_are_counted_and_shown_one_by_one(engines: Engines) -> None:
    p, d, u = engines
    async with serving(prefill=(p,), decode=(d,)) as fleet:
        await fleet.client.post("/workers", json={"url": u.url})
        listed = (await fleet.client.get("/workers")).json()
        assert listed["stats"] == {"prefill_count": 1, "decode_count": 1, "regular_count": 1}
        await serves(fleet, p.url, "tiny")
        one = await healthy(fleet, p.url)
        assert one == (await fleet.client.get(f"/workers/{one['id']}")).json()
        assert (one["worker_type"], one["load"], one["model_id"]) == ("prefill", 0, "tiny")
        assert one["bootstrap_port"] == 8998
        assert (await fleet.client.get("/workers/nobody")).status_code == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"url": "ftp://a:1"}, "must be HOST[:PORT] or http[s]://HOST[:PORT]"),
        ({"url": "http://169.254.169.254/latest"}, "and nothing more"),
        ({"url": "http://a:1", "worker_type": "encode"}, "worker_type"),
        ({"url": "http://a:1", "bootstrap_port": 1}, "only a prefill worker"),
        ({"url": "http://a:1", "connection_mode": "grpc"}, "connection_mode"),
        ({"url": "http://a:1", "api_key": "k"}, "api_key"),
        ({"worker_type": "decode"}, "url"),
        ([], "no worker"),
    ],
)
async def test_what_cannot_be_added_is_refused(engines: Engines, body: object, says: str) -> None:
    async with serving(prefill=(engines[0],)) as fleet:
        refused = await fleet.client.post("/workers", json=body)
        assert refused.status_code == 400
        assert says in refused.json()["error"]["message"]
        assert len(await workers(fleet)) == 1
        too_long = await fleet.client.post("/workers", content=b"x" * (17 << 10))
        assert too_long.status_code == 413


async def test_beyond_this_machine_only_operators_say_who_gets_prompts(engines: Engines) -> None:
    p, d, other = engines
    elsewhere = "127.1"  # this machine, in a spelling that is not taken for it
    new = {"url": other.url, "worker_type": "decode"}
    async with serving(prefill=(p,), decode=(d,), host=elsewhere) as fleet:
        which = f"/workers/decode-127.0.0.1-{d.port}"
        for refused in (await fleet.client.post("/workers", json=new), await fleet.client.delete(which)):
            assert refused.status_code == 403
            assert "--admin-port" in refused.json()["error"]["message"]
        assert set(await workers(fleet)) == {p.url, d.url}
    token = Token("operators-0123456789")
    access = Access(admin_token=lambda: token)
    async with serving(prefill=(p,), decode=(d,), host=elsewhere, access=access) as fleet:
        assert (await fleet.client.post("/workers", json=new)).status_code == 401
        added = await fleet.client.post("/workers", json=new, headers=token.headers())
        assert added.status_code == 202


async def test_a_router_with_a_store_has_no_workers_to_change() -> None:
    async with running_fleet() as fleet:
        assert (await fleet.client.get("/workers")).status_code == 404
        assert (await fleet.client.post("/workers", json={"url": "http://a:1"})).status_code == 404


async def test_a_small_prompt_goes_to_a_unified_engine_where_there_is_one(engines: Engines) -> None:
    p, d, u = engines
    async with serving(prefill=(p,), decode=(d,), unified_below_tokens=4) as fleet:
        await up(fleet, 2)
        assert (await fleet.post({"prompt": [1, 2, 3]})).status_code == 200
        assert (len(d.seen), len(u.seen)) == (1, 0), "there is none yet"
        await fleet.client.post("/workers", json={"url": u.url, "worker_type": "regular"})
        await up(fleet, 3)
        assert (await fleet.post({"prompt": [1, 2, 3]})).headers["x-pdcore-pair"].startswith("unified-")
        assert (await fleet.post({"prompt": [1, 2, 3, 4]})).headers["x-pdcore-pair"].startswith("prefill-")
        assert not any("bootstrap_room" in seen.json for seen in u.seen)


async def test_an_unreadable_health_is_no_answer(engines: Engines) -> None:
    p, d, _ = engines
    d.health = (fake.Send(b"SSH-2.0-x\r\n\r\n"), Fin())
    async with serving(prefill=(p,), decode=(d,)) as fleet:
        await healthy(fleet, p.url)
        answer = await fleet.post(BODY)
        assert answer.status_code == 503
        assert (await workers(fleet))[d.url]["is_healthy"] is False
