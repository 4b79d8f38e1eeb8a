"""What a client gets when all goes well, and what the engines were asked."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from pdcore.errors import StoreUnavailable
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Absent, Committed, Condition, Delete, Put, Write
from tests.router.fleet import MODEL, SPACE, Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, MARK, FakeEngine, event

pytestmark = pytest.mark.integration

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "capital of France?"}]}


class Pair:
    """A router with one prefill and one decode that both do well unless told otherwise."""

    def __init__(self, fleet: Fleet, prefill: FakeEngine, decode: FakeEngine) -> None:
        self.fleet = fleet
        self.prefill = prefill
        self.decode = decode


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with (
        running_fleet() as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([fake.answer(200, COMPLETION, MARK)]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        yield Pair(fleet, prefill, decode)
        await fleet.settled()


async def test_both_legs_carry_the_same_room_and_the_incarnations_and_nothing_of_the_clients_headers(
    pair: Pair,
) -> None:
    sent = {
        "authorization": "Bearer s",
        "x-pdcore-remaining-ms": "1",
        "x-request-id": "me",
        "traceparent": "00",
    }
    answer = await pair.fleet.post({"prompt": "hi", "unknown": {"a": [1.5]}}, headers=sent)
    assert answer.status_code == 200
    assert answer.json() == COMPLETION
    assert answer.headers["x-request-id"] == "me"
    assert answer.headers["x-pdcore-pair"] == "p,d"
    assert int(answer.headers["x-pdcore-revision"]) == pair.fleet.follower.topology.revision
    (asked,), (told,) = pair.prefill.seen, pair.decode.seen
    assert asked.body == told.body
    body = asked.json
    assert 1 <= body.pop("bootstrap_room") < 2**63
    assert body == {
        **{"prompt": "hi", "unknown": {"a": [1.5]}, "model": MODEL},
        **{"bootstrap_host": "127.0.0.1", "bootstrap_port": 18800, "disagg_prefill_dp_rank": 0},
    }
    for leg in (asked, told):
        assert leg.path == "/v1/completions"
        assert (
            leg.headers["x-pdcore-prefill-incarnation"] == leg.headers["x-pdcore-decode-incarnation"] == "i1"
        )
        assert 0 < int(leg.headers["x-pdcore-remaining-ms"]) <= 20_000
        assert int(leg.headers["x-pdcore-remaining-ms"]) > 10_000
        assert (leg.headers["x-request-id"], leg.headers["traceparent"]) == ("me", "00")
        assert "authorization" not in leg.headers


async def test_a_stream_arrives_event_by_event_bytes_untouched(pair: Pair) -> None:
    first, second = event("Par"), b'data:  {"odd" :1.10}\r\n\r\n'
    script = (
        fake.stream_head(),
        fake.chunk(b": ping\n\n" + first),
        fake.Hang(),
        fake.chunk(second + event("", "stop")),
    )
    pair.decode.scripts = [(*script, fake.chunk(DONE), fake.END)]
    async with pair.fleet.client.stream(
        "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
    ) as answer:
        parts = answer.aiter_raw()
        got = await anext(parts)
        assert got == b": ping\n\n"
        while not got.endswith(first):
            got += await anext(parts)
        pair.decode.release.set()
        async for part in parts:
            got += part
    assert got == b": ping\n\n" + first + second + event("", "stop") + DONE
    assert answer.headers["content-type"] == "text/event-stream"


async def test_the_openai_sdk_reads_a_stream_and_a_completion(pair: Pair) -> None:
    async with AsyncOpenAI(base_url=pair.fleet.url + "/v1", api_key="k", max_retries=0) as sdk:
        pair.decode.scripts = [fake.stream(event("Pa"), event("ris", "stop"), DONE)]
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["Pa", "ris"]
        assert [model.id async for model in sdk.models.list()] == [MODEL]


@pytest.mark.parametrize(
    "tail",
    [(DONE, DONE), (DONE, event("after")), (), (DONE, b": ping\n\n")],
    ids=["twice", "after", "none", "ping"],
)
async def test_done_comes_exactly_once_and_last(pair: Pair, tail: tuple[bytes, ...]) -> None:
    pair.decode.scripts = [fake.stream(event("a"), event("b", "stop"), *tail)]
    answer = await pair.fleet.post({"prompt": "hi", "stream": True})
    assert answer.content == event("a") + event("b", "stop") + DONE


async def test_the_connection_serves_again_after_a_stream(pair: Pair) -> None:
    pair.decode.scripts = [fake.stream(event("b", "stop"), DONE)]
    for _ in range(3):
        assert (await pair.fleet.post({"prompt": "hi", "stream": True})).status_code == 200
        await pair.fleet.settled()
    assert pair.decode.connections == 1


async def test_an_engine_that_compresses_anyway_is_read_and_answered_plain(pair: Pair) -> None:
    body = gzip.compress(json.dumps(COMPLETION).encode())
    extra = {"content-encoding": "gzip", "connection": "x-foo", "x-foo": "1"}
    pair.decode.scripts = [fake.answer(200, body, {**MARK, **extra})]
    answer = await pair.fleet.post({"prompt": "hi"})
    assert answer.json() == COMPLETION
    assert not {"content-encoding", "x-foo"} & set(answer.headers)
    assert int(answer.headers["content-length"]) == len(answer.content)
    pair.decode.scripts = [
        (
            fake.head(200, {**fake.CHUNKED, **MARK, "content-encoding": "gzip"}),
            fake.chunk(gzip.compress(event("a", "stop") + DONE)),
            fake.END,
        )
    ]
    assert (await pair.fleet.post({"prompt": "hi", "stream": True})).content == event("a", "stop") + DONE


async def test_a_clients_room_is_echoed_and_never_reaches_an_engine(pair: Pair) -> None:
    answer = {"request_id": "r", "bootstrap_room": 5, "output": "x", "finish_reason": "stop"}
    pair.decode.scripts = [
        fake.answer(200, answer, MARK),
        fake.stream(b"data: " + json.dumps(answer).encode() + b"\n\n", DONE),
    ]
    plain = await pair.fleet.post({"prompt": "hi", "bootstrap_room": 77}, "/generate")
    assert plain.json() == {**answer, "bootstrap_room": 77}
    assert plain.headers["x-pdcore-room"] == "77"
    streamed = await pair.fleet.post({"prompt": "hi", "bootstrap_room": 77, "stream": True}, "/generate")
    assert b'"bootstrap_room":77' in streamed.content
    assert all(seen.json["bootstrap_room"] != 77 for seen in (*pair.prefill.seen, *pair.decode.seen))
    assert not (await pair.fleet.store.list(SPACE.side + "client_rooms/")).entries


async def test_without_a_clients_room_generate_shows_the_legs_own(pair: Pair) -> None:
    pair.decode.scripts = [fake.answer(200, {"bootstrap_room": 5, "output": "x"}, MARK)]
    answer = await pair.fleet.post({"prompt": "hi"}, "/generate")
    assert answer.json()["bootstrap_room"] == 5
    assert "x-pdcore-room" not in answer.headers


async def test_a_room_in_use_is_409_here_and_across_routers(pair: Pair) -> None:
    pair.decode.scripts = [(fake.Hang(), *fake.answer(200, COMPLETION, MARK))]
    body = {"prompt": "hi", "bootstrap_room": 9}
    first = asyncio.ensure_future(pair.fleet.post(body))
    await eventually(lambda: pair.decode.open_now, 3)
    second = await pair.fleet.post(body)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "room_in_use")
    pair.decode.release.set()
    assert (await first).status_code == 200
    theirs = f"{SPACE.side}client_rooms/10"
    await pair.fleet.store.commit((), (Put(theirs, b"another router"),))
    assert (await pair.fleet.post({"prompt": "hi", "bootstrap_room": 10})).status_code == 409
    await pair.fleet.store.commit((), (Delete(theirs),))
    assert (await pair.fleet.post(body)).status_code == 200


class AwayForClaims(MemoryStore):
    """A store that cannot take a claim."""

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        if any(isinstance(one, Absent) and "client_rooms" in one.key for one in conditions):
            raise StoreUnavailable("away")
        return await super().commit(conditions, writes)


async def test_while_the_store_is_away_rooms_are_not_claimed_but_served_and_counted() -> None:
    async with (
        running_fleet(store=AwayForClaims()) as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([fake.answer(200, COMPLETION, MARK)]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        assert (await fleet.post({"prompt": "hi", "bootstrap_room": 9})).status_code == 200
        assert await fleet.metric("pdcore_router_unclaimed_rooms_total") == 1


async def test_one_request_id_for_many_requests_mixes_nothing(pair: Pair) -> None:
    answers = await asyncio.gather(
        *(pair.fleet.post({"prompt": f"{n}"}, headers={"x-request-id": "same"}) for n in range(20))
    )
    assert {answer.status_code for answer in answers} == {200}
    rooms = [seen.json["bootstrap_room"] for seen in pair.decode.seen]
    assert len(set(rooms)) == 20
    by_room = {seen.json["bootstrap_room"]: seen.body for seen in pair.prefill.seen}
    assert all(by_room[seen.json["bootstrap_room"]] == seen.body for seen in pair.decode.seen)


async def test_a_unified_instance_serves_alone_with_one_leg() -> None:
    async with running_fleet() as fleet, FakeEngine([fake.answer(200, COMPLETION)]) as unified:
        await fleet.add("u", "unified", unified)
        answer = await fleet.post(CHAT, "/v1/chat/completions")
        assert (answer.status_code, answer.headers["x-pdcore-pair"]) == (200, "u")
        (seen,) = unified.seen
        assert seen.json == CHAT
        assert (await fleet.client.get("/ready")).status_code == 200
        await fleet.settled()


async def test_readiness_latches_until_the_drain_and_says_why_before() -> None:
    async with (
        running_fleet() as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([fake.answer(200, COMPLETION, MARK)]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        made = await fleet.add("starting", "decode", decode, state="starting")
        early = await fleet.client.get("/ready")
        assert early.status_code == 503
        assert "state is starting" in early.text
        await fleet.add("d", "decode", decode)
        assert (await fleet.client.get("/ready")).status_code == 200
        for instance_id, gone in (("d", made), ("p", made)):
            await fleet.remove(instance_id, gone)
        assert (await fleet.client.get("/ready")).status_code == 200
        assert (await fleet.post({"prompt": "hi"})).status_code == 503
        await fleet.lifecycle.drain(0)
        assert (await fleet.client.get("/ready")).json()["reasons"] == ["the router is draining"]
        assert (await fleet.post({"prompt": "hi"})).status_code == 503


async def test_the_views_show_the_fleet(pair: Pair) -> None:
    await pair.fleet.add("odd", "decode", pair.decode, state="draining", models=("other",))
    shown = (await pair.fleet.client.get("/pdcore/topology")).json()
    assert shown["revision"] == pair.fleet.follower.topology.revision
    assert shown["instances"]["odd"]["draining"] is True
    assert shown["instances"]["p"]["ready"] is True
    assert shown["view_age_seconds"] < 5
    models = (await pair.fleet.client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["other", MODEL]
    assert (await pair.fleet.client.get("/health")).json()["status"] == "ok"
    ambiguous = await pair.fleet.post({"prompt": "hi"})
    assert (ambiguous.status_code, ambiguous.json()["error"]["param"]) == (400, "model")
    assert await pair.fleet.metric("pdcore_router_view_revision") == shown["revision"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/generate", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ],
)
async def test_other_routes_answer_in_the_public_form(
    pair: Pair, method: str, path: str, status: int, code: str
) -> None:
    answer = await pair.fleet.client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
