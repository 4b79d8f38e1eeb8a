"""What Mooncake's bootstrap server says is asked once per incarnation, and believed as long as requests go well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.router.conformance.engines import MooncakePrefill
from tests.router.conformance.faults import saying
from tests.router.conformance.rig import Rig, error_of, rig
from tests.router.fleet import record
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import Fin, Reset, Script, Send

pytestmark = pytest.mark.integration


@pytest.fixture
async def one() -> AsyncIterator[Rig]:
    async with rig("mooncake") as made:
        yield made


def prefill(one: Rig) -> MooncakePrefill:
    engine = one["p0"]
    assert isinstance(engine, MooncakePrefill)
    return engine


async def test_a_burst_asks_once_and_another_incarnation_is_asked_again(one: Rig) -> None:
    await asyncio.gather(*(one.is_served() for _ in range(8)))
    assert prefill(one).queries == 1
    await one.restarts("p0", "i2")
    await one.is_served()
    await one.is_served()
    assert prefill(one).queries == 2
    told = one["d0"].seen[-1].json["kv_transfer_params"]
    assert told["remote_engine_id"] == "p0-i2"
    await one.invariants()


async def test_what_was_learned_goes_with_the_instance(one: Rig) -> None:
    await one.is_served()
    assert len(one.fleet.serving.contacts.learned) == 1
    await one.fleet.remove("p0", record("prefill", one["p0"].url))
    learned = one.fleet.serving.contacts.learned
    await eventually(lambda: len(learned) == 0, 3, "what was learned is forgotten")


BROKEN: dict[str, Script] = {
    "500": fake.answer(500, {}),
    "404": fake.answer(404, {}),
    "a redirect": (fake.head(307, {"location": "http://127.0.0.1:9/", "content-length": "0"}),),
    "nobody is there yet": fake.answer(200, {}),
    "no json": fake.answer(200, b"{"),
    "something else": fake.answer(200, {"0": {"name": "x"}}),
    "reset": (Reset(),),
    "fin": (Fin(),),
    "no http": (Send(b"\x00\r\n\r\n"), Fin()),
}


async def test_without_its_answer_no_leg_is_sent_and_the_next_request_asks_again(one: Rig) -> None:
    for number, (name, script) in enumerate(BROKEN.items()):
        prefill(one).query_faults = [script]
        answer = await one.ask()
        assert (answer.status_code, error_of(answer)["code"]) == (503, "backend_unavailable"), name
        assert sorted(one.asked) == sorted(["p0", "d0"] * number), name
        await one.invariants()
        prefill(one).query_faults = []
        await one.is_served()
        one.fleet.serving.contacts.learned.doubt("p0")
    await one.fleet.settled()


async def test_silence_of_the_server_ends_within_the_budget_of_a_connection() -> None:
    async with rig("mooncake", connect_timeout_s=0.5) as one:
        prefill(one).query_faults = [(fake.Hang(),)]
        answer = await one.ask()
        assert (answer.status_code, error_of(answer)["code"]) == (503, "backend_unavailable")
        assert "0.5 s" in error_of(answer)["message"]
        await one.invariants()
        await one.is_served()


async def test_another_prefill_serves_when_one_does_not_say_who_it_is() -> None:
    async with rig("mooncake", prefills=2) as one:
        faults = [fake.answer(500, {})]
        both = [engine for engine in one.engines.values() if isinstance(engine, MooncakePrefill)]
        for engine in both:
            engine.query_faults = faults
        await one.is_served()
        assert [engine.queries for engine in both] == [1, 1]
        await one.invariants()


async def test_after_a_failed_request_the_engine_is_asked_anew(one: Rig) -> None:
    await one.is_served()
    one["d0"].faults = [saying(500)]
    assert (await one.ask()).status_code == 502
    await one.is_served()
    assert prefill(one).queries == 2
