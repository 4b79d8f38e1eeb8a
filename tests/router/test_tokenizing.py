"""What is neither prefill nor decode: one instance answers, and what it does not know is its own 404."""

from __future__ import annotations

import pytest

from tests.router.fleet import MODEL, running_fleet
from tests.support import fake_engines as fake
from tests.support.fake_engines import FakeEngine, Reset

pytestmark = pytest.mark.integration

TOKENS = {"count": 2, "max_model_len": 512, "tokens": [1, 2]}


async def test_one_leg_is_asked_whatever_the_fleet_is_made_of() -> None:
    async with running_fleet() as fleet, FakeEngine([fake.accepted()]) as p, FakeEngine([]) as d:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        d.scripts = [fake.answer(200, TOKENS)]
        body = {"prompt": "hi", "add_special_tokens": False, "unknown": 1.50}
        answer = await fleet.post(body, "/tokenize")
        assert (answer.status_code, answer.json()) == (200, TOKENS)
        assert answer.headers["x-pdcore-pair"] == "d"
        (seen,) = d.seen
        assert (seen.path, seen.json) == ("/tokenize", {**body, "model": MODEL})
        assert "x-pdcore-prefill-incarnation" not in seen.headers
        d.scripts = [fake.answer(200, {"prompt": "hi"})]
        assert (await fleet.post({"tokens": [1, 2]}, "/detokenize")).json() == {"prompt": "hi"}
        assert not p.seen
        await fleet.settled()


async def test_what_an_engine_does_not_know_passes_through_and_what_breaks_is_502() -> None:
    async with running_fleet() as fleet, FakeEngine([]) as u:
        await fleet.add("u", "unified", u)
        unknown = {"error": {"message": "POST /tokenize: Not Found", "code": "not_found"}}
        u.scripts = [fake.answer(404, unknown)]
        answer = await fleet.post({"prompt": "hi"}, "/tokenize")
        assert (answer.status_code, answer.json()) == (404, unknown)
        u.scripts = [fake.answer(400, unknown)]
        assert (await fleet.post({"tokens": [1]}, "/detokenize")).status_code == 400
        u.scripts = [(Reset(),)]
        assert (await fleet.post({"prompt": "hi"}, "/tokenize")).status_code == 502
        assert await fleet.metric("pdcore_router_requests_total", endpoint="tokenize") == 2
        await fleet.settled()


async def test_without_an_instance_it_is_503_and_a_bad_request_never_leaves() -> None:
    async with running_fleet() as fleet:
        assert (await fleet.post({"prompt": "hi"}, "/tokenize")).status_code == 503
        assert (await fleet.post({}, "/tokenize")).status_code == 400
