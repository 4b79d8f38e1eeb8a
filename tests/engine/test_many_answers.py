"""Several prompts and samples in one request, their log probabilities and rooms, over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from pdcore.engine.messages import Abort, Failed, HandedOff, Output, Start, Step, ToLeader, ToRank
from pdcore.engine.transfer.orders import TokenLogprobs
from tests.support.eventually import eventually
from tests.support.fake_rank import echo, silent, step
from tests.support.leader_app import LEG, LeaderApp, leader_app
from tests.support.letters import Letters

pytestmark = pytest.mark.integration

MANY = {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 2}
LEGS = {
    "bootstrap_room": [11, 12, 13, 14],
    "bootstrap_host": ["127.0.0.1"] * 4,
    "bootstrap_port": [18800] * 4,
}


def scoring(message: ToRank) -> Iterable[ToLeader]:
    """Echoes two tokens in one output, with the log probabilities that were asked for."""
    if not isinstance(message, Start):
        return
    top = message.sampling.top_logprobs
    one = TokenLogprobs(logprob=-0.5, top=tuple((65 + place, -1.0 - place) for place in range(top or 0)))
    output = Output(
        request_id=message.request_id,
        token_ids=message.prompt[:2],
        finish_reason="length",
        logprobs=() if top is None else (one, one),
        cached_tokens=1,
    )
    yield Step(outputs=(output,))


@pytest.fixture
async def unified(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "unified", echo) as app:
        yield app


@pytest.fixture
async def scored(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "unified", scoring) as app:
        yield app


@pytest.fixture
async def decode(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "decode", silent, request_timeout_s=5) as app:
        yield app


@pytest.fixture
async def prefill(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "prefill", silent) as app:
        yield app


def starts(app: LeaderApp) -> list[Start]:
    return [message for message in app.rank.received if isinstance(message, Start)]


async def wait_starts(app: LeaderApp, count: int) -> list[Start]:
    await app.rank.wait_for(Start, count)
    return starts(app)


def documents(body: str) -> list[Any]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]


async def test_prompts_and_samples_are_answered_in_order(unified: LeaderApp) -> None:
    answer = (await unified.client.post("/v1/completions", json=MANY)).json()
    assert [(one["index"], one["text"]) for one in answer["choices"]] == [
        (0, "ab"),
        (1, "ab"),
        (2, "cd"),
        (3, "cd"),
    ]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, 8)
    own = (await unified.client.post("/generate", json=MANY)).json()
    assert [one["output"] for one in own] == ["ab", "ab", "cd", "cd"]
    theirs = {"text": ["ab", "cd"], "sampling_params": {"n": 2, "max_new_tokens": 2}}
    assert [one["text"] for one in (await unified.client.post("/generate", json=theirs)).json()] == [
        "ab",
        "ab",
        "cd",
        "cd",
    ]


async def test_samples_differ_by_seed_and_the_first_is_the_one_that_would_be_alone(
    unified: LeaderApp,
) -> None:
    body = {"prompt": ["ab", "ab"], "n": 3, "seed": 5, "max_tokens": 1}
    for _ in range(2):
        await unified.client.post("/v1/completions", json=body)
    await unified.client.post("/v1/completions", json={"prompt": "ab", "seed": 5, "max_tokens": 1})
    seeds = [start.sampling.seed for start in starts(unified)]
    assert seeds[:6] == seeds[6:12] == seeds[:3] * 2
    assert seeds[0] == seeds[12] == 5
    assert len(set(seeds[:3])) == 3
    assert all(0 <= seed < 1 << 63 for seed in seeds)


async def test_a_stream_of_many_ends_once_and_every_piece_has_its_place(unified: LeaderApp) -> None:
    for path, body in (
        ("/v1/completions", MANY),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 4, "max_tokens": 2}),
    ):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        text = (await unified.client.post(path, json=body | options)).text
        assert text.count("data: [DONE]\n\n") == 1
        *chunks, usage = documents(text)
        ended = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
        assert sorted(ended) == [0, 1, 2, 3]
        assert usage["usage"]["completion_tokens"] == 8
        if "prompt" in body:
            said = [
                "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i)
                for i in range(4)
            ]
            assert said == ["ab", "ab", "cd", "cd"]


async def test_logprobs_have_an_entry_for_every_token_and_tokens_their_names(scored: LeaderApp) -> None:
    body = {"prompt": ["ab", "cd"], "max_tokens": 2, "logprobs": 2}
    answer = (await scored.client.post("/v1/completions", json=body)).json()
    assert answer["choices"][1]["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["c", "d"],
        "top_logprobs": [{"A": -1.0, "B": -2.0, "c": -0.5}, {"A": -1.0, "B": -2.0, "d": -0.5}],
    }
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "logprobs": True}
    content = (await scored.client.post("/v1/chat/completions", json=chat)).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert [(one["token"], one["bytes"], one["top_logprobs"]) for one in content] == [
        ("u", [117], []),
        (":", [58], []),
    ]
    plain = (await scored.client.post("/v1/completions", json=body | {"logprobs": None})).json()
    assert plain["choices"][0]["logprobs"] is None


async def test_logprobs_that_a_rank_does_not_send_are_an_error_and_no_short_list(unified: LeaderApp) -> None:
    answer = await unified.client.post("/v1/completions", json={"prompt": "ab", "logprobs": 0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "prefill_failed")


async def test_what_may_be_sampled_reaches_the_rank(unified: LeaderApp) -> None:
    asked = {"presence_penalty": 1, "logit_bias": {"7": -3}, "min_tokens": 2, "min_p": 0.2, "max_tokens": 3}
    await unified.client.post("/v1/completions", json={"prompt": "ab", **asked})
    (start,) = starts(unified)
    assert (start.sampling.presence_penalty, start.sampling.bias) == (1, ((7, -3.0),))
    assert (start.sampling.min_p, start.limits.min_tokens) == (0.2, 2)


async def test_one_failed_item_fails_them_all_and_the_others_are_taken_back(decode: LeaderApp) -> None:
    for number, stream in enumerate((False, True)):
        body = MANY | LEGS | {"stream": stream}
        request = decode.client.build_request("POST", "/v1/completions", json=body)
        asked = asyncio.ensure_future(decode.client.send(request, stream=True))
        began = (await wait_starts(decode, 4 * number + 4))[4 * number :]
        await decode.rank.say(step(began[0].request_id, [97], None))
        if stream:
            assert "x-pdcore-kv" not in (await asked).headers, "not all of it has come"
        await decode.rank.say(Failed(request_id=began[2].request_id, code="prefill_failed", message="lost"))
        answer = await asked
        body_text = (await answer.aread()).decode()
        if stream:
            assert documents(body_text)[-1]["error"]["code"] == "prefill_failed"
            assert "[DONE]" not in body_text
        else:
            assert (answer.status_code, json.loads(body_text)["error"]["message"]) == (502, "lost")
        taken = {began[place].request_id for place in (0, 1, 3)}
        await decode.rank.wait_for(Abort, 3 * number + 3)
        assert taken <= {m.request_id for m in decode.rank.received if isinstance(m, Abort)}
        assert decode.dispatch.statistics().held == decode.dispatch.statistics().rooms == 0


async def test_every_item_has_its_own_room_and_the_mark_waits_for_all(decode: LeaderApp) -> None:
    request = decode.client.build_request("POST", "/v1/completions", json=MANY | LEGS)
    asked = asyncio.ensure_future(decode.client.send(request, stream=True))
    began = await wait_starts(decode, 4)
    assert [start.room for start in began] == [11, 12, 13, 14]
    for start in began[1:]:
        await decode.rank.say(step(start.request_id, [97, 98], "length"))
    await decode.rank.say(step(began[0].request_id, [120], None))
    response = await asked
    assert response.headers["x-pdcore-kv"] == "received"
    await decode.rank.say(step(began[0].request_id, [121], "length"))
    choices = json.loads(await response.aread())["choices"]
    assert [one["text"] for one in choices] == ["xy", "ab", "ab", "ab"]


@pytest.mark.parametrize(("dp_size", "chosen", "asked"), [(1, None, 1), (2, 1, 1), (2, None, 4)])
async def test_prefill_is_looked_up_once_unless_it_chose_a_rank_for_each(
    decode: LeaderApp, dp_size: int, chosen: int | None, asked: int
) -> None:
    decode.peers.dp_size = dp_size
    body = MANY | LEGS | {"disagg_prefill_dp_rank": chosen}
    answering = asyncio.ensure_future(decode.client.post("/v1/completions", json=body))
    for start in await wait_starts(decode, 4):
        await decode.rank.say(step(start.request_id, [97], "length"))
    assert (await answering).status_code == 200
    assert [leg.room for leg, _ in decode.peers.asked] == [11, 12, 13, 14][:asked]


async def test_a_prefill_leg_of_many_is_answered_when_all_are_handed_off(prefill: LeaderApp) -> None:
    asked = asyncio.ensure_future(prefill.client.post("/v1/completions", json=MANY | LEGS))
    began = await wait_starts(prefill, 4)
    assert [start.room for start in began] == [11, 12, 13, 14]
    for start in reversed(began):
        assert not asked.done()
        await prefill.rank.say(HandedOff(request_id=start.request_id))
    answer = (await asked).json()
    assert (answer["accepted"], answer["bootstrap_room"]) == (True, [11, 12, 13, 14])


async def test_a_stop_string_in_one_answer_leaves_the_others_alone(decode: LeaderApp) -> None:
    body = MANY | LEGS | {"stop": "b", "max_tokens": 9}
    asked = asyncio.ensure_future(decode.client.post("/v1/completions", json=body))
    began = await wait_starts(decode, 4)
    await decode.rank.say(step(began[0].request_id, [97, 98, 99], None))
    assert (await decode.rank.wait_for(Abort)).request_id == began[0].request_id
    await decode.rank.say(
        Failed(request_id=began[0].request_id, code="abort_oom", message="too late to matter")
    )
    for start in began[1:]:
        await decode.rank.say(step(start.request_id, [99, 99], "length"))
    answer = (await asked).json()
    assert [(one["text"], one["finish_reason"]) for one in answer["choices"]] == [("a", "stop")] + [
        ("cc", "length")
    ] * 3
    assert answer["usage"]["completion_tokens"] == 8
    await eventually(lambda: decode.dispatch.statistics().held == 0, 5, "nothing held")


async def test_a_client_that_leaves_takes_all_its_answers_back(decode: LeaderApp) -> None:
    for number, stream in enumerate((False, True)):
        asked = asyncio.ensure_future(
            decode.client.post("/v1/completions", json=MANY | LEGS | {"stream": stream})
        )
        began = (await wait_starts(decode, 4 * number + 4))[4 * number :]
        await decode.rank.say(step(began[1].request_id, [97], None))
        asked.cancel()
        await decode.rank.wait_for(Abort, 4 * number + 4)
        aborted = {m.request_id for m in decode.rank.received if isinstance(m, Abort)}
        assert {start.request_id for start in began} <= aborted
    await eventually(lambda: decode.dispatch.statistics().rooms == 0, 5, "no room held")
    await eventually(lambda: decode.state.in_flight == 0, 5, "nothing in flight")


async def test_rooms_that_are_taken_refuse_the_whole_request_and_leave_it_undisturbed(
    decode: LeaderApp,
) -> None:
    first = asyncio.ensure_future(
        decode.client.post(
            "/v1/completions", json={"prompt": "ab", "max_tokens": 1} | LEG | {"bootstrap_room": 13}
        )
    )
    (start,) = await wait_starts(decode, 1)
    second = await decode.client.post("/v1/completions", json=MANY | LEGS)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "room_in_use")
    assert decode.dispatch.statistics().rooms == 1
    await decode.rank.say(step(start.request_id, [97], "length"))
    assert (await first).json()["choices"][0]["text"] == "a"


async def test_much_text_in_short_prompts_is_encoded_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, threads = Letters.encode, set[int]()

    def watched(self: Letters, text: str, *, special: bool = True) -> list[int]:
        threads.add(threading.get_ident())
        return encode(self, text, special=special)

    monkeypatch.setattr(Letters, "encode", watched)
    async with leader_app(tmp_path, "unified", echo, max_held=128) as app:
        for count, apart in ((2, False), (100, True)):
            threads.clear()
            body = {"prompt": ["x" * 250] * count, "max_tokens": 1}
            assert (await app.client.post("/v1/completions", json=body)).status_code == 200
            assert (threading.get_ident() not in threads) is apart
