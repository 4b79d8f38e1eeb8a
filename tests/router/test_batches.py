"""Several prompts and samples in one request: a room for each on both legs, all answers or an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.router.fleet import MODEL, Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import DONE, MARK, FakeEngine, Fin, Hang, Script

pytestmark = pytest.mark.integration

HANG: Script = (Hang(),)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Pair:
    """A router with one prefill and one decode."""

    def __init__(self, fleet: Fleet, prefill: FakeEngine, decode: FakeEngine) -> None:
        self.fleet, self.prefill, self.decode = fleet, prefill, decode

    def legs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the last request asked of prefill and of decode."""
        return self.prefill.seen[-1].json, self.decode.seen[-1].json


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with (
        running_fleet() as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([completion("a")]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        yield Pair(fleet, prefill, decode)
        await eventually(lambda: prefill.open_now == decode.open_now == 0, 3, "both legs ended")
        await fleet.settled()


def completion(*texts: str, reason: str = "stop") -> Script:
    choices = [{"index": n, "text": text, "finish_reason": reason} for n, text in enumerate(texts)]
    return fake.answer(200, {"id": "c", "choices": choices}, MARK)


def piece(index: int, text: str, reason: str | None = None) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("path", "body", "items"),
    [
        ("/v1/completions", {"prompt": ["a"]}, 1),
        ("/v1/completions", {"prompt": ["a", "a"]}, 2),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 3}, 6),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, 2),
        ("/v1/completions", {"prompt": [str(n) for n in range(33)]}, 33),
        ("/v1/chat/completions", {**CHAT, "n": 2}, 2),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"n": 2}}, 4),
        ("/generate", {"input_ids": [[1], [2], [3]]}, 3),
    ],
)
async def test_every_prompt_and_sample_has_a_room_and_both_legs_the_same_ones(
    pair: Pair, path: str, body: dict[str, Any], items: int
) -> None:
    answer = await pair.fleet.post(body, path)
    assert answer.status_code == 200
    asked, told = pair.legs()
    assert asked == told
    rooms, hosts, ports = (told.pop(f"bootstrap_{name}") for name in ("room", "host", "port"))
    if items == 1:
        rooms, hosts, ports = [rooms], [hosts], [ports]
    assert len(set(rooms)) == len(rooms) == items
    assert all(type(room) is int and 1 <= room < 2**63 for room in rooms)
    assert (hosts, ports) == (["127.0.0.1"] * items, [18800] * items)
    assert told == {**body, "model": MODEL, "disagg_prefill_dp_rank": 0}


async def test_each_request_has_its_own_rooms(pair: Pair) -> None:
    for _ in range(3):
        await pair.fleet.post({"prompt": ["a", "b"], "n": 4, "bootstrap_room": 2**63 - 1})
    rooms = [room for seen in pair.decode.seen for room in seen.json["bootstrap_room"]]
    assert len(set(rooms)) == 24


async def test_the_openai_sdk_reads_many_choices_whole_and_streamed(pair: Pair) -> None:
    async with AsyncOpenAI(base_url=pair.fleet.url + "/v1", api_key="k", max_retries=0) as sdk:
        pair.decode.scripts = [completion("a", "b", "c", "d")]
        whole = await sdk.completions.create(model=MODEL, prompt=["x", "y"], n=2)
        assert [(one.index, one.text) for one in whole.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
        events = (piece(0, "a"), piece(1, "x"), piece(0, "b", "stop"), piece(1, "y", "length"))
        pair.decode.scripts = [fake.stream(*events, DONE)]
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], n=2, stream=True
        )
        texts = {0: "", 1: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == {0: "ab", 1: "xy"}


async def test_a_stream_that_ends_before_its_last_answer_did_is_an_error(pair: Pair) -> None:
    body = {**CHAT, "n": 2, "stream": True}
    pair.decode.scripts = [fake.stream(piece(0, "a", "stop"), piece(1, "b", "stop"))]
    whole = await pair.fleet.post(body, "/v1/chat/completions")
    assert whole.content == piece(0, "a", "stop") + piece(1, "b", "stop") + DONE
    for script in (
        fake.stream(piece(0, "a", "stop"), piece(1, "b")),
        (fake.stream_head(), fake.chunk(piece(0, "a", "stop")), Fin()),
        fake.stream(piece(0, "a", "stop"), piece(1, "", "abort"), DONE),
    ):
        pair.decode.scripts = [script]
        cut = await pair.fleet.post(body, "/v1/chat/completions")
        assert b"[DONE]" not in cut.content
        assert b'"abort"' not in cut.content
        last = json.loads(cut.content.rpartition(b"data: ")[2])
        assert last["error"]["code"] == "decode_failed"


@pytest.mark.parametrize(
    "answer",
    [
        completion("a", "", reason="abort"),
        fake.answer(200, [{"text": "x", "meta_info": {"finish_reason": {"type": "stop"}}}, {"error": "no"}]),
        fake.answer(
            200, {"choices": [{"index": 0, "finish_reason": "stop"}], "error": {"message": "no"}}, MARK
        ),
    ],
)
async def test_one_failed_item_fails_the_request(pair: Pair, answer: Script) -> None:
    pair.decode.scripts = [answer]
    got = await pair.fleet.post({"text": ["a", "b"]}, "/generate")
    assert (got.status_code, got.json()["error"]["code"]) == (502, "decode_failed")


async def test_a_refused_item_passes_through_and_ends_the_other_leg(pair: Pair) -> None:
    refusal = {"error": {"message": "prompt 1 is too long", "type": "t", "code": None, "param": "prompt"}}
    pair.prefill.scripts, pair.decode.scripts = [fake.answer(400, refusal)], [HANG]
    got = await pair.fleet.post({"prompt": ["a", "b" * 9]})
    assert (got.status_code, got.json()) == (400, refusal)


async def test_sglang_answers_are_passed_on_as_lists(pair: Pair) -> None:
    items = [
        {"text": text, "output_ids": [7], "meta_info": {"id": str(n), "finish_reason": {"type": "stop"}}}
        for n, text in enumerate("ab")
    ]
    pair.prefill.scripts = [fake.answer(200, items)]
    pair.decode.scripts = [fake.answer(200, items, MARK)]
    got = await pair.fleet.post({"text": ["x", "y"], "sampling_params": {"max_new_tokens": 4}}, "/generate")
    assert (got.status_code, got.json()) == (200, items)
    assert pair.legs()[1]["sampling_params"] == {"max_new_tokens": 4}


async def test_logprobs_that_are_not_finite_are_null_whole_and_streamed(pair: Pair) -> None:
    odd = b'{"id":"c","choices":[{"index":0,"text":"NaN","finish_reason":"stop","logprobs":{"token_logprobs":[-Infinity,NaN]}}]}'
    plain = odd.replace(b"[-Infinity,NaN]", b"[null,null]")
    pair.decode.scripts = [fake.answer(200, odd, MARK)]
    whole = await pair.fleet.post({"prompt": "x", "logprobs": 1})
    assert (whole.status_code, whole.content) == (200, plain)
    pair.decode.scripts = [fake.stream(b"data: " + odd + b"\n\n", DONE)]
    streamed = await pair.fleet.post({"prompt": "x", "logprobs": 1, "stream": True})
    assert streamed.content == b"data: " + plain + b"\n\n" + DONE


async def test_a_compressed_request_body_is_415_before_any_leg(pair: Pair) -> None:
    got = await pair.fleet.post(b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert (got.status_code, got.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert not pair.decode.seen
