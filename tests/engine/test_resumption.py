"""A stream that goes on where another engine's broke off, over real sockets; a fake rank says the tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdcore.engine.messages import Start
from tests.support.fake_rank import silent, step
from tests.support.leader_app import LEG, LeaderApp, leader_app

pytestmark = pytest.mark.integration

IDS = {"x-pdcore-token-ids": "1"}
RESUME = {"output_ids": [72, 105, 33], "id": "cmpl-old", "created": 77, "emitted_chars": 2, "seed": 9}
ASKED = {"prompt": "abcd", "max_tokens": 10, "stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "unified", silent, request_timeout_s=5) as app:
        yield app


def documents(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def comments(answer: httpx.Response) -> list[str]:
    return [line for line in answer.text.splitlines() if line.startswith(":")]


async def go_on(
    app: LeaderApp, body: dict[str, Any], *tokens: int, path: str = "/v1/completions"
) -> httpx.Response:
    asked = asyncio.ensure_future(app.client.post(path, json=body, headers=IDS))
    start = await app.rank.wait_for(Start)
    await app.rank.say(step(start.request_id, tokens, "length"))
    return await asked


async def test_a_resumed_stream_sends_what_the_client_does_not_have(scripted: LeaderApp) -> None:
    answer = await go_on(scripted, ASKED | {"resume": RESUME}, 63)
    *chunks, usage = documents(answer)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "!?"
    assert {(chunk["id"], chunk["created"]) for chunk in [*chunks, usage]} == {("cmpl-old", 77)}
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (4, 4)
    start = await scripted.rank.wait_for(Start)
    assert start.prompt == (97, 98, 99, 100, 72, 105, 33)
    assert (start.resumed, start.sampling.seed, start.limits.max_tokens) == (3, 9, 7)
    assert comments(answer) == [": pdcore-prompt 97,98,99,100", ": pdcore-ids 63"]


async def test_its_prompt_may_be_told_in_tokens_and_a_chat_gets_no_second_role(scripted: LeaderApp) -> None:
    body = {"messages": [{"role": "user", "content": "changed"}], "stream": True, "min_tokens": 5}
    answer = await go_on(
        scripted, body | {"resume": RESUME | {"prompt": [1, 2]}}, 63, path="/v1/chat/completions"
    )
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in documents(answer))
    start = await scripted.rank.wait_for(Start)
    assert (start.prompt, start.limits.min_tokens) == ((1, 2, 72, 105, 33), 2)


async def test_a_stop_string_may_begin_before_the_break(scripted: LeaderApp) -> None:
    answer = await go_on(scripted, ASKED | {"stop": "!?", "resume": RESUME}, 63, 64)
    chunks = documents(answer)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == ""
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]] == ["stop"]


COMPLETE: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {"output_ids": [72, 105, 0]}, "", "stop"),
    ({"max_tokens": 3}, {}, "!", "length"),
    ({"stop": "!"}, {}, "", "stop"),
]


async def test_what_was_complete_already_needs_no_rank(scripted: LeaderApp) -> None:
    for change, resume, text, reason in COMPLETE:
        body = ASKED | change | {"resume": RESUME | resume}
        answer = await scripted.client.post("/v1/completions", json=body)
        *chunks, usage = documents(answer)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        assert chunks[-1]["choices"][0]["finish_reason"] == reason
        assert usage["usage"]["completion_tokens"] == 3
        assert answer.text.endswith("data: [DONE]\n\n")
    assert scripted.rank.received == []


async def test_both_legs_of_a_complete_answer_agree_that_there_is_nothing_to_do(tmp_path: Path) -> None:
    async with leader_app(tmp_path, "prefill", silent, request_timeout_s=5) as prefill:
        body = ASKED | LEG | {"max_tokens": 3, "resume": RESUME}
        answer = await prefill.client.post("/v1/completions", json=body)
        assert answer.json()["accepted"] is True
        assert prefill.rank.received == []


async def test_more_than_could_be_is_refused(scripted: LeaderApp) -> None:
    for change, param in (
        ({"resume": RESUME | {"emitted_chars": 4}}, "resume.emitted_chars"),
        ({"max_tokens": 2, "resume": RESUME}, "resume.output_ids"),
        ({"stream": False, "stream_options": None, "resume": RESUME}, "resume"),
    ):
        answer = await scripted.client.post("/v1/completions", json=ASKED | change)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert scripted.rank.received == []


async def test_ids_are_told_only_to_those_who_ask_and_before_their_text(scripted: LeaderApp) -> None:
    for number, headers in enumerate((IDS, {}), start=1):
        asked = asyncio.ensure_future(scripted.client.post("/v1/completions", json=ASKED, headers=headers))
        start = await scripted.rank.wait_for(Start, number)
        await scripted.rank.say(step(start.request_id, [97, ord("~")], None))
        await scripted.rank.say(step(start.request_id, [98], "length"))
        answer = await asked
        told = [
            int(one) for line in comments(answer)[1:] for one in line.removeprefix(": pdcore-ids ").split(",")
        ]
        assert told == ([97, 126, 98] if headers else [])
        assert answer.text.startswith(
            ": pdcore-prompt 97,98,99,100\n\n: pdcore-ids 97" if headers else "data: "
        )
