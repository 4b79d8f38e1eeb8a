"""The HTTP face of a leader over real sockets: shapes, errors, limits, metrics. A fake rank generates the prompt again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdcore.engine.legs import stale_peer
from pdcore.engine.messages import Abort, Failed, PathFailures, PeerDown, Start
from pdcore.registry import leaders
from pdcore.registry.leaders import LeaderWord
from tests.support.eventually import eventually
from tests.support.fake_rank import echo, silent, stats, step
from tests.support.leader_app import GROUP, LEG, LeaderApp, leader_app

pytestmark = pytest.mark.integration

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
COMPLETION = {"model": "tiny", "prompt": "abcdef", "max_tokens": 4}


@pytest.fixture
async def unified(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "unified", echo) as app:
        yield app


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    """A unified leader whose rank says only what the test makes it say."""
    async with leader_app(tmp_path, "unified", silent, request_timeout_s=5) as app:
        yield app


@pytest.fixture
async def prefill(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "prefill", echo) as app:
        yield app


@pytest.fixture
async def decode(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "decode", silent) as app:
        yield app


def events(response: httpx.Response) -> list[Any]:
    """The documents of a complete event stream; the last one is the string ``[DONE]`` after success."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


async def test_a_chat_is_answered_whole(unified: LeaderApp) -> None:
    response = await unified.client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 200
    answer = response.json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "u:hi", "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert response.headers["content-length"] == str(len(response.content))
    assert response.headers["x-request-id"].startswith("req-")


async def test_a_chat_streams_role_text_reason_usage_done(unified: LeaderApp) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    got = events(await unified.client.post("/v1/chat/completions", json=body))
    assert got.pop() == "[DONE]"
    assert got.pop()["usage"]["completion_tokens"] == 4
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in got) == "u:hi"
    assert [chunk["choices"][0]["finish_reason"] for chunk in got][-1] == "length"
    assert len({chunk["id"] for chunk in got}) == 1


async def test_completions_take_text_or_token_ids(unified: LeaderApp) -> None:
    for prompt in ("abcdef", [97, 98, 99, 100], ["abcd"]):
        answer = await unified.client.post("/v1/completions", json=COMPLETION | {"prompt": prompt})
        assert answer.json()["choices"][0]["text"] == "abcd"


async def test_generate_answers_and_streams_its_own_shape(unified: LeaderApp) -> None:
    body = {"prompt": "abc", "max_tokens": 3, "bootstrap_room": 9}
    answer = await unified.client.post("/generate", json=body, headers={"x-request-id": "mine"})
    assert answer.json() == {
        "request_id": "mine",
        "bootstrap_room": 9,
        "output": "abc",
        "finish_reason": "length",
        "prompt_tokens": 3,
        "completion_tokens": 3,
    }
    got = events(await unified.client.post("/generate", json=body | {"stream": True}))
    assert got.pop() == "[DONE]"
    assert "".join(document["output"] for document in got) == "abc"
    assert (got[-1]["finish_reason"], got[-1]["completion_tokens"]) == ("length", 3)


async def test_what_reaches_the_rank_is_what_was_asked(unified: LeaderApp) -> None:
    body = COMPLETION | {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 11, "stop_token_ids": [77]}
    await unified.client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    start = await unified.rank.wait_for(Start)
    assert (start.sampling.temperature, start.sampling.top_p, start.sampling.top_k) == (0.5, 0.9, 5)
    assert (start.sampling.seed, start.limits.max_tokens) == (11, 4)
    assert (start.limits.stop_token_ids, start.limits.ignore_eos) == ((0, 77), False)
    assert (start.room, start.prefill, start.expected_peer) == (0, None, None)
    assert start.request_id.startswith("mine~")
    assert 29_000 < start.remaining_ms <= 30_000


async def test_ignoring_the_end_token_keeps_the_clients_own(unified: LeaderApp) -> None:
    await unified.client.post("/v1/completions", json=COMPLETION | {"ignore_eos": True})
    await unified.client.post(
        "/v1/completions", json=COMPLETION | {"ignore_eos": True, "stop_token_ids": [7]}
    )
    first, second = await unified.rank.wait_for(Start), await unified.rank.wait_for(Start, 2)
    assert (first.limits.stop_token_ids, first.limits.ignore_eos) == ((), True)
    assert (second.limits.stop_token_ids, second.limits.ignore_eos) == ((7,), False)
    assert first.sampling.seed != second.sampling.seed


async def test_one_request_id_for_many_requests_never_mixes_them(unified: LeaderApp) -> None:
    async def ask(letter: str) -> str:
        body = {"prompt": letter, "max_tokens": 20}
        answer = await unified.client.post("/v1/completions", json=body, headers={"x-request-id": "same"})
        assert answer.headers["x-request-id"] == "same"
        return str(answer.json()["choices"][0]["text"])

    letters = [chr(97 + n % 26) for n in range(50)]
    assert await asyncio.gather(*map(ask, letters)) == [letter * 20 for letter in letters]


async def test_a_bad_request_id_is_replaced(unified: LeaderApp) -> None:
    for given in ("x" * 200, "a b", "\u00e9"):
        answer = await unified.client.post(
            "/v1/completions", json=COMPLETION, headers=[(b"x-request-id", given.encode())]
        )
        assert answer.headers["x-request-id"].startswith("req-"), given


BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"prompt": ""}, 400, "invalid_request", "prompt"),
    ({"prompt": [""]}, 400, "invalid_request", "prompt[0]"),
    ({"prompt": ["a", "x" * 253]}, 400, "context_length_exceeded", "prompt[1]"),
    ({"n": 0}, 400, "invalid_request", "n"),
    ({"n": 65}, 400, "invalid_request", "n"),
    ({"logprobs": "5"}, 400, "invalid_request", "logprobs"),
    ({"min_tokens": 5}, 400, "invalid_request", "min_tokens"),
    ({"prompt": "\u200b"}, 400, "invalid_request", "prompt"),
    ({"max_tokens": "4"}, 400, "invalid_request", "max_tokens"),
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"prompt": "x" * 253}, 400, "context_length_exceeded", "prompt"),
    ({"prompt": "x" * 30_000}, 400, "context_length_exceeded", "prompt"),
    ({"max_tokens": 251}, 400, "context_length_exceeded", "prompt"),
    ({"bootstrap_room": 0}, 400, "invalid_request", "bootstrap_room"),
]


async def test_a_bad_request_touches_no_rank(unified: LeaderApp) -> None:
    for change, status, code, param in BAD:
        for stream in (False, True):
            answer = await unified.client.post(
                "/v1/completions", json=COMPLETION | change | {"stream": stream}
            )
            assert answer.status_code == status, change
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == (code, param), change
            assert error["request_id"] == answer.headers["x-request-id"]
    assert unified.rank.received == []
    for code in {code for _, _, code, _ in BAD}:
        expected = 2 * sum(row[2] == code for row in BAD)
        assert await unified.metric("pdcore_engine_requests_total", outcome=code) == expected


async def test_a_prompt_and_a_budget_that_fill_the_context_exactly_are_served(unified: LeaderApp) -> None:
    body = {"prompt": "x" * 252, "max_tokens": 4, "ignore_eos": True}
    assert (await unified.client.post("/v1/completions", json=body)).status_code == 200
    assert (await unified.client.post("/v1/completions", json={"prompt": "x" * 255})).status_code == 200
    assert (await unified.client.post("/v1/completions", json={"prompt": "x" * 256})).status_code == 400


async def test_a_body_too_large_is_413_announced_or_not(tmp_path: Path) -> None:
    async with leader_app(tmp_path, max_body_bytes=2048) as app:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1000

        for content in (b"x" * 4096, endless()):
            answer = await app.client.post("/v1/completions", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
        assert (await app.client.get("/health")).status_code == 200


async def test_bodies_that_are_no_json_are_400_and_compressed_ones_415(unified: LeaderApp) -> None:
    assert (await unified.client.post("/generate", content=b"{")).status_code == 400
    assert (await unified.client.post("/generate", content=b"")).status_code == 400
    packed = await unified.client.post("/generate", content=b"xx", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415
    large = await unified.client.post("/generate", json=COMPLETION, headers={"x-filler": "x" * (64 << 10)})
    assert large.status_code == 431


async def test_unknown_paths_and_methods_have_the_same_error_body(unified: LeaderApp) -> None:
    missing = await unified.client.get("/nothing", headers={"x-request-id": "r"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert missing.json()["error"]["request_id"] == "r"
    wrong = await unified.client.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_it_says_who_it_is_and_what_it_serves(unified: LeaderApp) -> None:
    health = await unified.client.get("/health")
    assert health.json() == {"status": "ok", "instance_id": "unified-0", "incarnation": "inc"}
    assert (await unified.client.get("/ready")).json() == {"ready": True}
    listed = (await unified.client.get("/v1/models")).json()
    assert [(entry["id"], entry["max_model_len"]) for entry in listed["data"]] == [("tiny", 256)]


async def test_a_stop_string_ends_the_answer_and_the_rank_is_told(scripted: LeaderApp) -> None:
    asked = asyncio.ensure_future(
        scripted.client.post("/v1/completions", json=COMPLETION | {"stop": ["END"], "max_tokens": 100})
    )
    start = await scripted.rank.wait_for(Start)
    await scripted.rank.say(step(start.request_id, [ord(c) for c in "so far EN"], None))
    await scripted.rank.say(step(start.request_id, [ord(c) for c in "D more"], None))
    choice = (await asked).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("so far ", "stop")
    assert (await asked).json()["usage"]["completion_tokens"] == 10
    assert (await scripted.rank.wait_for(Abort)).request_id == start.request_id


async def test_an_end_token_is_counted_and_not_shown(scripted: LeaderApp) -> None:
    asked = asyncio.ensure_future(scripted.client.post("/v1/completions", json=COMPLETION))
    start = await scripted.rank.wait_for(Start)
    await scripted.rank.say(step(start.request_id, [104, 105, 0], "stop"))
    answer = (await asked).json()
    assert answer["choices"][0]["text"] == "hi"
    assert answer["usage"]["completion_tokens"] == 3


async def test_text_is_streamed_when_it_comes(scripted: LeaderApp) -> None:
    request = scripted.client.build_request("POST", "/v1/completions", json=COMPLETION | {"stream": True})
    asked = asyncio.ensure_future(scripted.client.send(request, stream=True))
    start = await scripted.rank.wait_for(Start)
    await scripted.rank.say(step(start.request_id, [97], None))
    lines = (await asked).aiter_lines()
    assert json.loads((await anext(lines))[6:])["choices"][0]["text"] == "a"
    await scripted.rank.say(step(start.request_id, [98], "length"))
    rest = [line async for line in lines if line]
    assert [json.loads(line[6:])["choices"][0]["text"] for line in rest[:-1]] == ["b", ""]
    assert rest[-1] == "data: [DONE]"


async def test_a_failure_before_the_first_token_is_a_status(scripted: LeaderApp) -> None:
    for number, stream in enumerate((False, True), start=1):
        asked = asyncio.ensure_future(
            scripted.client.post("/v1/completions", json=COMPLETION | {"stream": stream})
        )
        start = await scripted.rank.wait_for(Start, number)
        failure = Failed(request_id=start.request_id, code="decode_failed", message="lost")
        await scripted.rank.say(failure)
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["message"]) == (502, "lost")


async def test_a_failure_after_it_is_one_error_event_without_done(scripted: LeaderApp) -> None:
    asked = asyncio.ensure_future(
        scripted.client.post("/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 50})
    )
    start = await scripted.rank.wait_for(Start)
    await scripted.rank.say(step(start.request_id, [97], None))
    await eventually(lambda: scripted.metric("pdcore_engine_time_to_first_token_seconds_count"), 5)
    await scripted.rank.say(Failed(request_id=start.request_id, code="decode_failed", message="lost"))
    got = events(await asked)
    assert got[-1]["error"]["code"] == "decode_failed"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in got[:-1])


async def test_an_expired_budget_is_504_and_aborts(scripted: LeaderApp) -> None:
    headers = {"x-pdcore-remaining-ms": "80"}
    answer = await scripted.client.post("/v1/completions", json=COMPLETION, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert "0.08 s" in answer.json()["error"]["message"]
    await scripted.rank.wait_for(Abort)
    over = await scripted.client.post(
        "/v1/completions", json=COMPLETION, headers={"x-pdcore-remaining-ms": "0"}
    )
    assert over.status_code == 504


async def test_a_client_that_leaves_is_noticed_before_the_first_token(scripted: LeaderApp) -> None:
    for number, stream in enumerate((False, True), start=1):
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{scripted.port}", trust_env=False
        ) as leaving:
            asked = asyncio.ensure_future(
                leaving.post("/v1/completions", json=COMPLETION | {"stream": stream})
            )
            start = await scripted.rank.wait_for(Start, number)
            asked.cancel()
        async with asyncio.timeout(1):
            assert (await scripted.rank.wait_for(Abort, number)).request_id == start.request_id
    await eventually(lambda: scripted.state.in_flight == 0, 1, "nothing in flight")
    assert await scripted.metric("pdcore_engine_requests_total", outcome="cancelled") == 2
    assert scripted.dispatch.statistics().held == 0


async def test_a_client_that_leaves_while_it_sends_is_no_request(scripted: LeaderApp) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", scripted.port)
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await eventually(lambda: scripted.state.in_flight == 1, 5, "the request to begin")
    writer.close()
    await eventually(lambda: scripted.state.in_flight == 0, 1, "the request to end")
    assert await scripted.metric("pdcore_engine_requests_total", outcome="cancelled") == 1
    del reader


async def test_a_broken_rank_message_for_one_request_leaves_others_alone(scripted: LeaderApp) -> None:
    asked = asyncio.ensure_future(scripted.client.post("/v1/completions", json=COMPLETION))
    start = await scripted.rank.wait_for(Start)
    await scripted.rank.say(step(start.request_id, [0x110000], None))
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "chr" not in answer.text
    again = asyncio.ensure_future(scripted.client.post("/v1/completions", json=COMPLETION))
    second = await scripted.rank.wait_for(Start, 2)
    await scripted.rank.say(step(second.request_id, [97], "length"))
    assert (await again).status_code == 200


async def test_metrics_show_the_ranks_figures_and_end_at_zero(unified: LeaderApp) -> None:
    await unified.rank.say(stats(kv_blocks_used=3, kv_blocks_total=9, rooms=2, handoffs_failed=1))
    await eventually(lambda: unified.dispatch.stats, 5, "figures")
    assert await unified.metric("pdcore_engine_kv_blocks_used") == 3
    assert await unified.metric("pdcore_engine_kv_blocks_total") == 9
    assert await unified.metric("pdcore_engine_rooms", rank="0.0.0") == 2
    assert await unified.metric("pdcore_engine_handoffs_failed_total") == 1
    assert await unified.metric("pdcore_engine_view_age_seconds") == 0.5
    await asyncio.gather(*(unified.client.post("/v1/completions", json=COMPLETION) for _ in range(64)))
    assert await unified.metric("pdcore_engine_http_in_flight") == 0
    assert await unified.metric("pdcore_engine_requests_total", endpoint="completions", outcome="ok") == 64


async def test_more_requests_than_it_may_hold_are_429(tmp_path: Path) -> None:
    async with leader_app(tmp_path, max_held=1) as app:
        held = asyncio.ensure_future(app.client.post("/v1/completions", json=COMPLETION))
        start = await app.rank.wait_for(Start)
        refused = await app.client.post("/v1/completions", json=COMPLETION)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        await app.rank.say(step(start.request_id, [97], "length"))
        assert (await held).status_code == 200


# legs


async def test_a_leg_without_a_bootstrap_field_names_it(prefill: LeaderApp, decode: LeaderApp) -> None:
    for app in (prefill, decode):
        for field in LEG:
            body = {key: value for key, value in (COMPLETION | LEG).items() if key != field}
            answer = await app.client.post("/v1/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        assert app.rank.received == []


async def test_a_prefill_leg_is_answered_when_the_kv_is_there(prefill: LeaderApp) -> None:
    headers = {
        "x-request-id": "r1",
        "x-pdcore-prefill-incarnation": "inc",
        "x-pdcore-decode-incarnation": "d1",
    }
    answer = await prefill.client.post(
        "/v1/chat/completions", json=CHAT | LEG | {"stream": True}, headers=headers
    )
    assert answer.json() == {"request_id": "r1", "bootstrap_room": 7, "accepted": True}
    start = await prefill.rank.wait_for(Start)
    assert (start.room, start.expected_peer, start.prefill) == (7, "d1", None)


async def test_a_decode_head_leaves_at_the_first_output_also_without_streaming(decode: LeaderApp) -> None:
    request = decode.client.build_request("POST", "/v1/completions", json=COMPLETION | LEG)
    asked = asyncio.ensure_future(decode.client.send(request, stream=True))
    start = await decode.rank.wait_for(Start)
    assert (start.room, start.prefill) == (7, GROUP)
    await decode.rank.say(step(start.request_id, [97], None))
    response = await asked
    assert (response.status_code, response.headers["x-pdcore-kv"]) == (200, "received")
    await decode.rank.say(step(start.request_id, [98], "length"))
    assert json.loads(await response.aread())["choices"][0]["text"] == "ab"


async def test_a_decode_failure_after_its_head_is_the_error_as_body(decode: LeaderApp) -> None:
    request = decode.client.build_request("POST", "/v1/completions", json=COMPLETION | LEG)
    asked = asyncio.ensure_future(decode.client.send(request, stream=True))
    start = await decode.rank.wait_for(Start)
    await decode.rank.say(step(start.request_id, [97], None))
    response = await asked
    await decode.rank.say(Failed(request_id=start.request_id, code="decode_failed", message="lost"))
    assert json.loads(await response.aread())["error"]["code"] == "decode_failed"


async def test_a_decode_failure_before_its_head_is_a_status(decode: LeaderApp) -> None:
    asked = asyncio.ensure_future(decode.client.post("/v1/completions", json=COMPLETION | LEG))
    start = await decode.rank.wait_for(Start)
    await decode.rank.say(Failed(request_id=start.request_id, code="prefill_failed", message="no KV came"))
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "prefill_failed")
    assert "x-pdcore-kv" not in answer.headers


async def test_a_room_that_is_open_is_409_and_the_first_request_undisturbed(decode: LeaderApp) -> None:
    first = asyncio.ensure_future(decode.client.post("/v1/completions", json=COMPLETION | LEG))
    start = await decode.rank.wait_for(Start)
    second = await decode.client.post("/v1/completions", json=COMPLETION | LEG)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "room_in_use")
    await decode.rank.say(step(start.request_id, [97], "length"))
    assert (await first).json()["choices"][0]["text"] == "a"


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [("x-pdcore-decode-incarnation", "older", "stale"), ("x-pdcore-decode-incarnation", "inc", None)],
)
async def test_a_leg_for_another_incarnation_is_refused(
    decode: LeaderApp, header: str, value: str, reason: str | None
) -> None:
    headers = {header: value, "x-pdcore-remaining-ms": "100"}
    answer = await decode.client.post("/v1/completions", json=COMPLETION | LEG, headers=headers)
    assert (answer.status_code, answer.headers.get("x-pdcore-refused")) == (421 if reason else 504, reason)


async def test_a_peer_that_is_not_known_is_refused_before_the_rank_hears(decode: LeaderApp) -> None:
    decode.peers.fault = stale_peer("p0", "newer")
    headers = {"x-pdcore-prefill-incarnation": "newer"}
    answer = await decode.client.post("/v1/completions", json=COMPLETION | LEG, headers=headers)
    assert (answer.status_code, answer.headers["x-pdcore-refused"]) == (421, "stale")
    assert decode.peers.asked[0][1] == "newer"
    assert decode.rank.received == []


async def test_a_leader_that_does_not_serve_refuses_at_once(prefill: LeaderApp) -> None:
    prefill.state.enter("draining", "told to end")
    answer = await prefill.client.post("/v1/completions", content=b"not even JSON")
    assert (answer.status_code, answer.headers["x-pdcore-refused"]) == (421, "draining")
    assert (await prefill.client.get("/ready")).status_code == 503
    assert (await prefill.client.get("/health")).json()["status"] == "draining"
    prefill.state.enter("failed", "a rank died")
    assert (await prefill.client.get("/health")).status_code == 503


async def test_a_load_sample_tells_what_is_used_and_who_is_not_reached(unified: LeaderApp) -> None:
    down = PeerDown(instance_id="p0", incarnation="i", rank="0.0.1", why="silent for 3 s")
    await unified.rank.say(
        stats(
            kv_blocks_used=3,
            kv_blocks_total=9,
            bootstrap=1,
            prealloc=2,
            running=4,
            peers_down=(down,),
            request_failures={"deadline": 2},
            transfer_failures=(PathFailures(engine="shm", peer="p0 0.0.1", reason="silent", count=5),),
        )
    )
    await eventually(lambda: unified.metric("pdcore_engine_peers_down", rank="0.0.0"), 5, "figures")
    sample = (await unified.client.get("/load")).json()
    assert (sample["instance_id"], sample["incarnation"], sample["in_flight"]) == ("unified-0", "inc", 0)
    assert sample["dp"]["0"]["kv_blocks_used"] == 3
    assert (sample["dp"]["0"]["waiting"], sample["dp"]["0"]["running"]) == (3, 4)
    assert sample["peers_down"] == [
        {"instance_id": "p0", "incarnation": "i", "rank": "0.0.1", "why": "silent for 3 s"}
    ]
    assert await unified.metric("pdcore_engine_request_failures_total", reason="deadline") == 2
    assert await unified.metric("pdcore_engine_transfer_failures_total", engine="shm", reason="silent") == 5


async def test_ranks_that_do_not_get_on_are_no_health(unified: LeaderApp) -> None:
    unified.troubles.append("rank 0.0.0 has done no step for 21 s with 3 requests running")
    sick = await unified.client.get("/health")
    assert (sick.status_code, sick.json()["status"]) == (503, "stuck")
    assert "no step for 21 s" in sick.json()["reason"]
    unified.troubles.append(None)
    assert (await unified.client.get("/health")).status_code == 200


async def test_it_drains_when_posted_to_and_not_when_somebody_looks(unified: LeaderApp) -> None:
    assert (await unified.client.get("/drain")).status_code == 405
    assert unified.drains == []
    told = await unified.client.post("/drain")
    assert (told.status_code, told.json()) == (202, {"status": "draining", "in_flight": 0})
    assert len(unified.drains) == 1


async def test_it_tells_its_other_machines_where_they_meet(unified: LeaderApp) -> None:
    unified.state.word = LeaderWord(
        incarnation="inc", url="http://u", parents="tcp://p", dispatch="tcp://d", rendezvous="", shape="tp=2"
    )
    assert leaders.read((await unified.client.get("/leader")).content) == unified.state.word


@pytest.mark.parametrize("field", ["prompt", "messages"])
async def test_text_that_cannot_fit_is_refused_before_it_is_encoded(tmp_path: Path, field: str) -> None:
    text = "a" * 500_000
    body = {"prompt": text} if field == "prompt" else {"messages": [{"role": "user", "content": text}]}
    path = "/v1/completions" if field == "prompt" else "/v1/chat/completions"
    async with leader_app(tmp_path, "unified", echo) as app:
        answer = await app.client.post(path, json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)
        assert "at least" in error["message"], "counted, not encoded"
