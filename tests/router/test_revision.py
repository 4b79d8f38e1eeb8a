"""``/pdcore/revision``: waits, bounded in time and number, and refuses what is no revision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pdcore.registry.store import Put
from pdcore.router.revision import MAX_WAITING
from tests.router.fleet import SPACE, Fleet, running_fleet
from tests.support.eventually import eventually

pytestmark = pytest.mark.integration
PATH = "/pdcore/revision"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet() as running:
        yield running


async def test_it_answers_at_once_what_is_known(fleet: Fleet) -> None:
    answer = await fleet.client.get(PATH)
    assert answer.status_code == 200
    said = answer.json()
    assert said["revision"] == fleet.follower.revision > 0
    assert said["store_id"] == fleet.follower.topology.store_id
    assert said["view_age_seconds"] >= 0


async def test_it_waits_for_what_is_about_to_be_written(fleet: Fleet) -> None:
    wanted = fleet.follower.revision + 1
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(fleet.client.get(PATH, params={"at_least": wanted, "timeout_s": 20}))
        await eventually(lambda: fleet.follower._heard is not None, 1)
        await fleet.store.commit((), (Put(SPACE.view + "routers/x", b"1"),))
    assert asking.result().status_code == 200
    assert asking.result().json()["revision"] >= wanted


async def test_what_does_not_come_in_time_is_504_naming_where_it_is(fleet: Fleet) -> None:
    answer = await fleet.client.get(PATH, params={"at_least": 10**6, "timeout_s": 0.1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert f"at revision {fleet.follower.revision}, not 1000000" in answer.text


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"at_least": "x"}, "at_least"),
        ({"at_least": "-1"}, "at_least"),
        ({"at_least": ""}, "at_least"),
        ({"at_least": "1.5"}, "at_least"),
        ({"at_least": str(1 << 63)}, "at_least"),
        ({"at_least": "9" * 4000}, "at_least"),
        ({"at_least": "²"}, "at_least"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"timeout_s": "-1"}, "timeout_s"),
        ({"timeout_s": "61"}, "timeout_s"),
        ({"timeout_s": "nan"}, "timeout_s"),
        ({"timeout_s": "inf"}, "timeout_s"),
    ],
)
async def test_bad_input_is_400_naming_the_parameter(
    fleet: Fleet, params: dict[str, str], param: str
) -> None:
    answer = await fleet.client.get(PATH, params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_only_so_many_may_wait(fleet: Fleet) -> None:
    far = {"at_least": 10**6, "timeout_s": 2}
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(fleet.client.get(PATH, params=far)) for _ in range(MAX_WAITING + 8)]
    answers = [one.result() for one in asked]
    statuses = [one.status_code for one in answers]
    assert statuses.count(504) == MAX_WAITING
    assert statuses.count(429) == 8
    assert {one.headers.get("retry-after") for one in answers if one.status_code == 429} == {"1"}
    assert (await fleet.client.get(PATH)).status_code == 200
