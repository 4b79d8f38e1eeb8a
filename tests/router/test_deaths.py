"""An instance that dies takes no request along: each is tried once more, and what kills twice is not tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest

from pdcore.config.policies import policy_names
from pdcore.router.witness import KNOWN_WITHIN_S
from tests.router.fleet import Fleet, running_fleet, withdraw
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Fin, Hang, Script, event

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
HANG: Script = (Hang(), *GOOD)
MARKED: Script = (fake.head(200, {**MARK, "content-type": "application/json", "content-length": "9"}), Hang())
HALF: Script = (fake.stream_head(), fake.chunk(event("a")), Hang())
BUSY: Script = fake.answer(429, {"error": {"message": "full", "code": "rate_limited"}})
LOST_A_RANK: Script = fake.answer(503, {"status": "failed", "incarnation": "i1"})
BODY = {"prompt": "kills", "seed": 7}


def says(code: str) -> Script:
    return fake.answer(502, {"error": {"message": "a rank is gone", "code": code}})


@dataclass
class Nine:
    """Three prefills and three decodes. The first request goes to p0 and d0."""

    fleet: Fleet
    engines: dict[str, FakeEngine]

    def __getitem__(self, name: str) -> FakeEngine:
        return self.engines[name]

    def all(self, role: str, script: Script) -> None:
        for name, engine in self.engines.items():
            if name[0] == role:
                engine.scripts = [script]

    async def holder(self, role: str, *, not_in: tuple[str, ...] = ()) -> str:
        """Who of a role is working on a request."""

        def find() -> str | None:
            working = (name for name, one in self.engines.items() if name[0] == role and one.open_now)
            return next((name for name in working if name not in not_in), None)

        found = await eventually(find, 3, f"some {role} holds a request")
        assert found is not None
        return found

    async def die(self, role: str, times: int) -> httpx.Response:
        """Send BODY; whoever of ``role`` holds it dies, so many times over. Then everybody else goes on."""
        dead: tuple[str, ...] = ()
        for engine in self.engines.values():
            engine.release.clear()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self.fleet.post(BODY))
            for _ in range(times):
                name = await self.holder(role, not_in=dead)
                dead = (*dead, name)
                await self[name].refuse()
            for name, engine in self.engines.items():
                if name not in dead:
                    engine.release.set()
        return asking.result()

    def asked(self, role: str) -> int:
        return sum(len(one.seen) for name, one in self.engines.items() if name[0] == role)


@pytest.fixture
async def nine() -> AsyncIterator[Nine]:
    engines = {f"p{n}": FakeEngine([fake.accepted()]) for n in range(3)}
    engines |= {f"d{n}": FakeEngine([GOOD]) for n in range(3)}
    turns = policy_names("round_robin")
    async with running_fleet(policy=turns) as fleet, AsyncExitStack() as stack:
        for name, engine in engines.items():
            await stack.enter_async_context(engine)
            await fleet.add(name, "prefill" if name[0] == "p" else "decode", engine)
        yield Nine(fleet, engines)
        for engine in engines.values():
            engine.release.set()
        await fleet.settled()


@pytest.mark.parametrize("script", [HANG, MARKED], ids=["before the KV", "after the KV"])
async def test_a_request_whose_decode_dies_is_tried_again_with_fresh_rooms(
    nine: Nine, script: Script
) -> None:
    nine["d0"].scripts = [script]
    answer = await nine.die("d", 1)
    assert answer.status_code == 200
    assert answer.headers["x-pdcore-pair"].split(",")[1] != "d0"
    rooms = {seen.json["bootstrap_room"] for name in ("d0", "d1", "d2") for seen in nine[name].seen}
    assert len(rooms) == nine.asked("d") == 2
    assert await nine.fleet.metric("pdcore_router_retries_total", reason="retry_if_died") == 1


async def test_a_request_whose_prefill_dies_is_tried_again(nine: Nine) -> None:
    nine["p0"].scripts, nine["d0"].scripts = [HANG], [HANG, GOOD]
    answer = await nine.die("p", 1)
    assert answer.status_code == 200
    assert not answer.headers["x-pdcore-pair"].startswith("p0")


async def test_a_leader_that_says_that_it_lost_a_rank_dies(nine: Nine) -> None:
    nine["d0"].scripts, nine["d0"].health = [says("decode_failed")], LOST_A_RANK
    answer = await nine.fleet.post(BODY)
    assert answer.status_code == 200
    assert nine.asked("d") == 2


async def test_a_decode_that_blames_a_dead_prefill_is_believed(nine: Nine) -> None:
    nine["p0"].scripts, nine["p0"].health = [HANG], LOST_A_RANK
    nine["d0"].scripts = [says("prefill_failed"), GOOD]
    answer = await nine.fleet.post(BODY)
    assert answer.status_code == 200
    assert not answer.headers["x-pdcore-pair"].startswith("p0")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ((Fin(),), "decode_failed"),
        (says("decode_failed"), "decode_failed"),
        (says("prefill_failed"), "prefill_failed"),
        (fake.answer(500, {"error": {"message": "?"}}), "decode_failed"),
        ((fake.head(200, MARK), Fin()), "decode_failed"),
    ],
    ids=["closes", "blames itself", "blames prefill", "500", "closes after the KV"],
)
async def test_who_fails_and_lives_fails_the_request_at_once(nine: Nine, script: Script, code: str) -> None:
    nine.all("d", script)
    nine.all("p", HANG)
    async with asyncio.timeout(KNOWN_WITHIN_S):
        answer = await nine.fleet.post(BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, code)
    assert nine.asked("d") == 1


async def test_who_is_silent_about_it_is_waited_for_until_the_keyspace_says_that_it_went(nine: Nine) -> None:
    nine["d0"].scripts, nine["d0"].health = [(Fin(),)], HANG
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(nine.fleet.post(BODY))
        await eventually(lambda: nine["d0"].probes, 3, "it is asked")
        made = nine.fleet.follower.topology.instances["d0"].record
        await withdraw(nine.fleet.store, "d0", made)
    assert asking.result().status_code == 200


async def test_a_request_that_two_instances_died_of_is_refused_for_a_minute_and_no_other(nine: Nine) -> None:
    nine.all("d", HANG)
    answer = await nine.die("d", 2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "decode_failed")
    nine.all("d", GOOD)
    asked = nine.asked("d")
    refused = await nine.fleet.post({"seed": 7, "prompt": "kills"})
    assert refused.status_code == 502
    assert "two instances died while they held this request" in refused.text
    assert 55 <= int(refused.headers["retry-after"]) <= 60
    assert nine.asked("d") == asked, "the third one never saw it"
    assert (await nine.fleet.post({**BODY, "seed": 8})).status_code == 200
    assert await nine.fleet.metric("pdcore_router_requests_poisoned") == 1


async def test_an_answer_says_that_it_was_not_the_request(nine: Nine) -> None:
    nine.all("d", HANG)
    for _ in range(2):
        assert (await nine.die("d", 1)).status_code == 200
    assert (await nine.fleet.post(BODY)).status_code == 200


async def test_after_the_first_byte_nothing_is_tried_again_and_the_death_counts(nine: Nine) -> None:
    nine.all("d", HALF)
    for _ in range(2):
        async with nine.fleet.client.stream(
            "POST", "/v1/completions", json={**BODY, "stream": True}
        ) as answer:
            parts = answer.aiter_bytes()
            await anext(parts)
            await nine[answer.headers["x-pdcore-pair"].split(",")[1]].refuse()
            rest = b"".join([part async for part in parts])
        assert b'"error"' in rest
        assert b"[DONE]" not in rest
    assert nine.asked("d") == 2

    async def refused() -> bool:
        asked = await nine.fleet.post({**BODY, "stream": True})
        return "two instances died" in asked.text

    nine.all("d", fake.answer(429, {"error": {"message": "full", "code": "rate_limited"}}))
    await eventually(refused, 3, "the request is known to kill")


async def test_a_hand_off_that_waits_is_given_to_another_decode_when_the_first_one_fails() -> None:
    keeps = fake.answer(200, {"choices": [], "kv_transfer_params": {"remote_engine_id": "e"}})
    bad = fake.answer(500, {"error": {"message": "a kernel failed"}})
    async with (
        running_fleet() as fleet,
        FakeEngine([keeps]) as p,
        FakeEngine([bad, GOOD]) as d0,
        FakeEngine([bad]) as d1,
        FakeEngine([bad]) as d2,
    ):
        await fleet.add("p", "prefill", p, protocol="nixl")
        for name, engine in (("d0", d0), ("d1", d1), ("d2", d2)):
            await fleet.add(name, "decode", engine, protocol="nixl")
        answer = await fleet.post(BODY)
        assert (answer.status_code, len(d0.seen), len(d1.seen), len(d2.seen)) == (502, 1, 1, 0), "once"
        answer = await fleet.post(BODY)
        assert answer.headers["x-pdcore-pair"] == "p,d0"
        assert d0.seen[1].json["kv_transfer_params"] == d2.seen[0].json["kv_transfer_params"]
        assert len(p.seen) == 2, "what prefill did is not done twice"
        await fleet.settled()


async def test_without_budget_nothing_is_tried_again(nine: Nine) -> None:
    witness, clock = nine.fleet.serving.ground.witness, nine.fleet.serving.ground.clock
    while witness.retries.take(clock.now()):
        pass
    nine.all("d", BUSY)
    nine.all("p", HANG)
    assert (await nine.fleet.post(BODY)).status_code == 429
    assert nine.asked("d") == 1
    assert await nine.fleet.metric("pdcore_router_retries_denied") == 2, "ours above, and the request's"


async def test_everybody_at_a_lost_instance_gets_the_second_chance_whatever_the_traffic(nine: Nine) -> None:
    nine.all("d", HANG)
    for name in ("d1", "d2"):
        await nine.fleet.remove(name, nine.fleet.follower.topology.instances[name].record)
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(nine.fleet.post({**BODY, "seed": n})) for n in range(40)]
        await eventually(lambda: nine["d0"].open_now == 40, 5, "all are held")
        for name in ("d1", "d2"):
            nine[name].scripts = [GOOD]
            await nine.fleet.add(f"{name}-again", "decode", nine[name])
        await nine["d0"].refuse()
    assert [one.result().status_code for one in asking] == [200] * 40
