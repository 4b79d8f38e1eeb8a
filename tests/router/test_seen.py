"""What an operator sees of requests: series with closed labels, and one line each that repeats nothing of a client's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, MARK, FakeEngine, Hang, Script, event

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
SECRET = "the-secret-of-a-client"
REFUSED: list[dict[str, Any]] = [
    {"prompt": SECRET, "stop": [SECRET, 1]},
    {"prompt": SECRET, "tools": SECRET},
    {"prompt": SECRET, "n": SECRET},
    {"prompt": SECRET, "model": SECRET},
    {"prompt": SECRET, "sampling_params": SECRET},
    {"prompt": [SECRET, 1]},
    {"text": SECRET},
]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Fleet, FakeEngine, FakeEngine]]:
    async with running_fleet() as fleet, FakeEngine([fake.accepted()]) as p, FakeEngine([GOOD]) as d:
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        yield fleet, p, d


async def test_a_stream_is_timed_and_its_legs_are_counted(pair: tuple[Fleet, FakeEngine, FakeEngine]) -> None:
    fleet, _, d = pair
    last = fake.chunk(event("c", "stop") + DONE)
    d.scripts = [
        (
            fake.stream_head(),
            fake.chunk(b": ping\n\n" + event("a")),
            fake.chunk(event("b")),
            Hang(),
            last,
            fake.END,
        )
    ]
    async with fleet.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
        parts, got = answer.aiter_raw(), b""
        while b'"b"' not in got:
            got += await anext(parts)
        assert await fleet.metric("pdcore_router_in_flight") == 1
        assert await fleet.metric("pdcore_router_answering") == 1
        assert await fleet.metric("pdcore_router_legs_in_flight", leg="decode") == 1
        d.release.set()
        async for part in parts:
            got += part
    assert got.endswith(DONE)
    await fleet.settled()
    assert await fleet.metric("pdcore_router_answering") == 0
    assert await fleet.metric("pdcore_router_requests_total", endpoint="completions", outcome="ok") == 1
    for name in ("ttft", "tpot", "request"):
        assert await fleet.metric(f"pdcore_router_{name}_seconds_count") == 1
        assert 0 < await fleet.metric(f"pdcore_router_{name}_seconds_sum") < 20
    for leg in ("prefill", "decode"):
        assert await fleet.metric("pdcore_router_legs_total", leg=leg, outcome="ok") == 1
    assert await fleet.metric("pdcore_router_view_revision") == fleet.follower.topology.revision


async def test_every_label_is_announced_before_the_first_request() -> None:
    async with running_fleet() as fleet:
        text = (await fleet.client.get("/metrics")).text
    for sample in (
        'pdcore_router_requests_total{endpoint="tokenize",outcome="passed_through"} 0.0',
        'pdcore_router_legs_total{leg="prefill",outcome="frozen"} 0.0',
        'pdcore_router_retries_total{reason="retry_fresh"} 0.0',
        'pdcore_router_refused_total{code="forbidden"} 0.0',
        'pdcore_router_ttft_seconds_bucket{le="+Inf"} 0.0',
        'pdcore_router_tpot_seconds_bucket{le="0.001"} 0.0',
    ):
        assert sample in text


async def test_each_request_is_one_line_that_says_how_it_went(
    pair: tuple[Fleet, FakeEngine, FakeEngine],
) -> None:
    fleet, _, d = pair
    d.scripts = [GOOD, fake.stream(event("a"), event("b", "stop"), DONE)]
    with capture_logs() as lines:
        await fleet.post({"prompt": ["x", "y"], "n": 2}, headers={"x-request-id": "me"})
        await fleet.post({"prompt": "x", "stream": True})
        await fleet.settled()
    whole, streamed = (line for line in lines if line["event"] == "request")
    assert whole["outcome"] == streamed["outcome"] == "ok"
    assert (whole["request_id"], whole["items"], whole["pair"]) == ("me", 4, "p,d")
    assert whole["revision"] == fleet.follower.topology.revision
    assert not {"stream", "ttft", "error", "client"} & set(whole)
    assert (streamed["stream"], streamed["events"], streamed["status"]) == (True, 2, 200)
    assert 0 < streamed["ttft"] <= streamed["seconds"]


async def test_no_line_repeats_what_a_client_or_an_engine_said(
    pair: tuple[Fleet, FakeEngine, FakeEngine],
) -> None:
    fleet, p, d = pair
    said = {"error": {"message": SECRET, "type": "t", "code": "x", "param": SECRET}}
    scripts = [fake.answer(status, said) for status in (400, 500, 503)]
    scripts += [
        fake.answer(200, said, MARK),
        fake.stream(event("a"), b"data: " + json.dumps(said).encode() + b"\n\n"),
    ]
    with capture_logs() as lines:
        for body in REFUSED:
            assert (await fleet.post(body)).status_code in (400, 404)
        for script in scripts:
            d.scripts = [script]
            await fleet.post({"prompt": SECRET, "stream": script is scripts[-1]})
        await eventually(lambda: not fleet.lifecycle.requests, 3, "every request is over")
    assert len([line for line in lines if line["event"] == "request"]) == len(REFUSED) + len(scripts)
    assert SECRET not in str(lines)
    assert p.seen
