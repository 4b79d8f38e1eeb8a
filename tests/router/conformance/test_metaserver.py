"""Decode calls the router back: once is enough, twice is once, and nobody else is heard."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.router.conformance.engines import LayerwiseDecode
from tests.router.conformance.rig import Rig, error_of, rig
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import Do, Hang, Script

pytestmark = pytest.mark.integration


@pytest.fixture
async def one() -> AsyncIterator[Rig]:
    async with rig("ascend-layerwise") as made:
        yield made


def decode(one: Rig) -> LayerwiseDecode:
    engine = one["d0"]
    assert isinstance(engine, LayerwiseDecode)
    return engine


async def test_a_decode_that_is_not_sure_calls_again_and_prefill_is_asked_once(one: Rig) -> None:
    decode(one).times = 2
    await one.is_served()
    assert sorted(one.asked) == ["d0", "p0"]
    assert decode(one).heard == [200, 200]
    await one.invariants()


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b"null", b"{}"])
async def test_a_call_that_nobody_can_read_is_decodes_failure(one: Rig, said: bytes) -> None:
    decode(one).calls = [said]
    answer = await one.ask()
    assert (answer.status_code, error_of(answer)["code"]) == (502, "decode_failed")
    assert one["p0"].seen == []
    await one.invariants()
    await one.is_served()


async def test_a_decode_that_never_calls_back_meets_the_budget_of_a_first_byte() -> None:
    async with rig("ascend-layerwise", first_byte_timeout_s=0.5) as one:
        decode(one).faults = [lambda good: (fake.stream_head(mark=False), Hang())]
        answer = await one.ask(stream=True)
        assert (answer.status_code, error_of(answer)["code"]) == (504, "deadline_exceeded")
        assert "did not call the router back: the first byte budget of 0.5 s" in error_of(answer)["message"]
        assert one["p0"].seen == []
        await one.invariants()
        await one.is_served()


async def test_a_decode_that_needs_no_prefill_answers_without_calling(one: Rig) -> None:
    def without_the_call(good: Script) -> Script:
        return tuple(step for step in good if not isinstance(step, Do | Hang))

    for stream in (False, True):
        decode(one).faults = [without_the_call]
        await one.is_served(stream=stream)
        await one.invariants()
    assert one["p0"].seen == []
    await one.is_served()


async def test_an_address_is_dead_when_its_attempt_has_ended_and_no_other_was_alive(one: Rig) -> None:
    await one.is_served()
    url = one["d0"].seen[0].json["kv_transfer_params"]["metaserver"]
    guessed = url.rpartition("/")[0] + "/guessed"
    public = one.fleet.url + "/metaserver/" + url.rpartition("/")[2]
    async with httpx.AsyncClient(trust_env=False, verify=False) as outsider:
        for target in (url, guessed, public):
            assert (await outsider.post(target, json={"request_id": "x"})).status_code == 404
        assert (await outsider.get(url)).status_code == 404
    assert not url.startswith(one.fleet.url)


async def test_a_call_while_the_client_leaves_starts_no_prefill(one: Rig) -> None:
    decode(one).faults = [lambda good: (Hang(), *good)]
    with pytest.raises(httpx.ReadTimeout):
        await one.fleet.client.post("/v1/completions", json={"prompt": "hi"}, timeout=0.3)
    await one.invariants()
    assert one["p0"].seen == []
    await eventually(lambda: decode(one).left, 3, "decode saw the client leave")
    await one.is_served()
