"""What OpenAI's client sees of a pair behind a router: choices, log probabilities, stops, usage, resumed streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import BadRequestError, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.cluster.conftest import Fleet
from tests.support.cluster import Cluster, Served
from tests.support.golden import Golden

pytestmark = pytest.mark.cluster

MOST = 24
LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
PROMPTS = ("sample me", "ab " * 40, "ß€ 漢字", "x")
CHAT: list[Any] = [{"role": "user", "content": "tell me"}]
WARM: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 11}


@dataclass(frozen=True, slots=True)
class Place:
    """A pair behind a router, and one instance that does both phases, on one model."""

    pair: OpenAI
    alone: OpenAI
    router: Served
    unified: Served
    golden: Golden

    @property
    def both(self) -> tuple[OpenAI, OpenAI]:
        return self.pair, self.alone


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Place]:
    with Cluster(tmp_path_factory.mktemp("serving"), tiny_model) as cluster:
        cluster.etcd.start()
        unified = cluster.engine("unified")
        _, _, router = cluster.pair()
        unified.wait_ready()
        with sdk(router) as pair, sdk(unified) as alone:
            yield Place(pair, alone, router, unified, Golden(tiny_model))
        assert not {**router.leftovers(), **unified.leftovers()}


def sdk(server: Served) -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0, timeout=60)


def complete(client: OpenAI, prompt: Any, **more: Any) -> Completion:
    asked: dict[str, Any] = {"max_tokens": MOST, "temperature": 0} | more
    answer: Completion = client.completions.create(model="tiny", prompt=prompt, **asked)
    return answer


def chat(client: OpenAI, **more: Any) -> ChatCompletion:
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": MOST, "temperature": 0} | more
    answer: ChatCompletion = client.chat.completions.create(model="tiny", **asked)
    return answer


def stream(client: OpenAI, prompt: Any, **more: Any) -> tuple[list[str], list[Any], Any]:
    """The text of each choice, all chunks with a choice, and the usage of a stream."""
    asked: dict[str, Any] = {"max_tokens": MOST, "temperature": 0} | more
    chunks = list(
        client.completions.create(
            model="tiny", prompt=prompt, stream=True, stream_options={"include_usage": True}, **asked
        )
    )
    told = [chunk for chunk in chunks if chunk.choices]
    texts = [""] * (1 + max(chunk.choices[0].index for chunk in told))
    for chunk in told:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    return texts, told, chunks[-1].usage


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logprobs_have_an_entry_for_each_token_the_first_included(place: Place, prompt: str) -> None:
    answers = [complete(client, prompt, logprobs=5, **WARM) for client in place.both]
    first, second = (answer.choices[0].logprobs for answer in answers)
    assert answers[0].choices[0].text == answers[1].choices[0].text
    assert first is not None
    assert second is not None
    assert answers[0].usage is not None
    count = answers[0].usage.completion_tokens
    for values in (first.tokens, first.token_logprobs, first.top_logprobs, first.text_offset):
        assert values is not None
        assert len(values) == count
    assert first.tokens == second.tokens
    assert first.token_logprobs == pytest.approx(second.token_logprobs, abs=1e-4)
    ids = place.golden.text_ids(prompt)
    expected = place.golden.logprobs(ids)
    assert first.top_logprobs is not None
    best = sorted(first.top_logprobs[0].values(), reverse=True)[:5]
    assert best == pytest.approx(torch.topk(expected, 5).values.tolist(), abs=1e-4)


def test_streamed_logprobs_are_those_of_the_whole_answer(place: Place) -> None:
    for client in place.both:
        whole = complete(client, "sample me", logprobs=2, **WARM)
        _, chunks, usage = stream(client, "sample me", logprobs=2, **WARM)
        assert whole.choices[0].logprobs is not None
        streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
        told = {name: [one for piece in streamed for one in getattr(piece, name)] for name in LOGPROBS}
        assert told["tokens"] == whole.choices[0].logprobs.tokens
        assert told["text_offset"] == whole.choices[0].logprobs.text_offset
        assert told["token_logprobs"] == pytest.approx(whole.choices[0].logprobs.token_logprobs, abs=1e-4)
        assert len(told["top_logprobs"]) == len(told["tokens"])
        assert sum(len(piece.tokens) for piece in streamed) == usage.completion_tokens


def test_chat_logprobs_carry_bytes_that_spell_the_answer(place: Place) -> None:
    for client in place.both:
        answer = chat(client, logprobs=True, top_logprobs=3, **WARM, extra_body={"ignore_eos": True})
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert answer.usage is not None
        assert len(logprobs.content) == answer.usage.completion_tokens == MOST
        assert all(len(one.top_logprobs) == 3 for one in logprobs.content)
        spelled = b"".join(
            bytes(one.bytes or []) for one in logprobs.content if not one.token.startswith("<|")
        )
        assert spelled.decode(errors="replace") == answer.choices[0].message.content


def test_three_samples_of_a_seed_differ_and_repeat(place: Place) -> None:
    runs = [complete(client, "sample me", n=3, **WARM) for client in (*place.both, place.pair)]
    texts = [[choice.text for choice in run.choices] for run in runs]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 3
    assert texts[0][0] == complete(place.pair, "sample me", **WARM).choices[0].text
    assert stream(place.pair, "sample me", n=3, **WARM)[0] == texts[0]
    chats = [chat(place.pair, n=3, **WARM) for _ in range(2)]
    assert len({choice.message.content for choice in chats[0].choices}) == 3
    assert [c.message.content for c in chats[0].choices] == [c.message.content for c in chats[1].choices]


def test_samples_without_a_seed_differ_from_request_to_request(place: Place) -> None:
    texts = {c.text for _ in range(2) for c in complete(place.pair, "sample me", n=3, temperature=1).choices}
    assert len(texts) == 6


def test_prompts_of_a_list_are_answered_as_alone_and_usage_adds_up(place: Place) -> None:
    prompts = [*PROMPTS, "ab", "ab"]
    alone = [complete(place.alone, prompt) for prompt in prompts]
    ids = [place.golden.text_ids(prompt) for prompt in prompts]
    for asked in (prompts, ids):
        together = complete(place.pair, asked)
        assert [one.index for one in together.choices] == list(range(len(prompts)))
        assert [one.text for one in together.choices] == [one.choices[0].text for one in alone]
        usage = together.usage
        assert usage is not None
        assert usage.prompt_tokens == sum(map(len, ids))
        assert usage.completion_tokens == sum(one.usage.completion_tokens for one in alone if one.usage)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    texts, _, told = stream(place.pair, prompts)
    assert texts == [one.choices[0].text for one in alone]
    assert usage is not None
    assert (told.prompt_tokens, told.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)


def test_thirty_three_prompts_have_a_hand_off_each(place: Place) -> None:
    answer = complete(place.pair, [f"number {n}" for n in range(33)], max_tokens=3)
    assert [one.index for one in answer.choices] == list(range(33))


def test_one_bad_prompt_refuses_the_whole_request_by_name(place: Place) -> None:
    for client in place.both:
        with pytest.raises(BadRequestError) as refused:
            complete(client, ["fine", "y" * 5000])
        assert refused.value.param == "prompt[1]"
        with pytest.raises(BadRequestError) as refused:
            complete(client, [[1, 2], [999_999]])
        assert refused.value.param == "prompt[1]"


def test_stop_strings_never_leak(place: Place) -> None:
    text = complete(place.alone, "sample me", max_tokens=40, **WARM).choices[0].text
    stops = sorted({text[at : at + size] for at in range(0, len(text) - 6, 3) for size in (1, 2, 5)} - {""})
    for stop in stops[:40]:
        expected = text[: text.index(stop)]
        for client in place.both:
            whole = complete(client, "sample me", max_tokens=40, stop=stop, **WARM)
            texts, chunks, usage = stream(client, "sample me", max_tokens=40, stop=[stop], **WARM)
            assert whole.choices[0].text == texts[0] == expected
            assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"
            assert whole.usage is not None
            assert whole.usage.completion_tokens == usage.completion_tokens


def test_penalties_bias_and_least_lengths_are_alike_through_a_pair_and_alone(place: Place) -> None:
    plain = complete(place.alone, "sample me", max_tokens=40).choices[0].text
    for more in (
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 3.0}},
        {"logit_bias": {"70": 100}},
        {"extra_body": {"min_p": 0.3}, "temperature": 1.5, "seed": 3},
        {"logprobs": 1, "frequency_penalty": 1.0},
    ):
        texts = {
            complete(client, "sample me", max_tokens=40, **more).choices[0].text for client in place.both
        }
        assert len(texts) == 1, more
        assert texts != {plain}, more
    token = place.golden.text_ids("sample me" + plain)[len(place.golden.text_ids("sample me")) + 1]
    for client in place.both:
        early = complete(client, "sample me", extra_body={"stop_token_ids": [token]})
        late = complete(client, "sample me", extra_body={"stop_token_ids": [token], "min_tokens": 9})
        assert early.usage is not None
        assert late.usage is not None
        assert early.usage.completion_tokens < 9 <= late.usage.completion_tokens


def test_tools_reach_the_chat_template(place: Place) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    prompt = {"messages": CHAT, "tools": tools}
    tokens = [
        httpx.post(f"{server.url}/tokenize", json=prompt, timeout=20, trust_env=False).json()["tokens"]
        for server in (place.router, place.unified)
    ]
    assert tokens[0] == tokens[1]
    text = httpx.post(
        f"{place.router.url}/detokenize", json={"tokens": tokens[0]}, timeout=20, trust_env=False
    ).json()["text"]
    assert json.dumps(tools) in text
    answers = [chat(client, tools=tools) for client in place.both]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].usage is not None
    assert answers[0].usage.prompt_tokens == len(tokens[0])


@pytest.mark.parametrize("sampling", [{"temperature": 0}, WARM])
def test_a_broken_stream_goes_on_at_any_token_with_the_same_text(
    place: Place, sampling: dict[str, Any]
) -> None:
    body = {
        "model": "tiny",
        "prompt": "sample me",
        "max_tokens": MOST,
        "stream": True,
        "seed": 11,
        **sampling,
    }
    text, ids = read(place.unified, body, {"x-pdcore-token-ids": "1"})
    detokenized = [place.golden.decode(ids[:n]) for n in range(len(ids))]
    for cut in range(1, len(ids)):
        known = detokenized[cut].rstrip("\N{REPLACEMENT CHARACTER}")
        resume = {
            "output_ids": ids[:cut],
            "id": "cmpl-old",
            "created": 5,
            "emitted_chars": len(known),
            "seed": 11,
        }
        server = place.router if cut % 3 == 0 else place.unified
        rest, _ = read(server, body | {"resume": resume}, {})
        assert known + rest == text, cut


def read(server: Served, body: dict[str, Any], headers: dict[str, str]) -> tuple[str, list[int]]:
    """The text of a stream, and the token ids in its comments."""
    answer = httpx.post(
        f"{server.url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [line.removeprefix(": pdcore-ids ") for line in lines if line.startswith(": pdcore-ids ")]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    return text, [int(one) for line in told for one in line.split(",")]


def test_both_forms_of_generate_say_the_same(place: Place) -> None:
    own = {"prompt": ["ab", "cd"], "max_tokens": 5, "temperature": 0, "logprobs": 0}
    theirs = {
        "text": ["ab", "cd"],
        "sampling_params": {"max_new_tokens": 5, "temperature": 0},
        "return_logprob": True,
    }
    for server in (place.router, place.unified):
        first, second = (
            httpx.post(f"{server.url}/generate", json=body, timeout=60, trust_env=False).json()
            for body in (own, theirs)
        )
        assert [one["output"] for one in first] == [one["text"] for one in second]
        for one, other in zip(first, second, strict=True):
            told = other["meta_info"]["output_token_logprobs"]
            expected = one["logprobs"]["token_logprobs"]
            assert [entry[0] for entry in told] == pytest.approx(expected, abs=1e-4)
            assert len(told) == other["meta_info"]["completion_tokens"] == one["completion_tokens"] == 5


def test_what_a_listener_hears_of_load_comes_from_work(place: Place) -> None:
    answer = httpx.post(
        f"{place.unified.url}/v1/completions",
        json={"prompt": "x", "max_tokens": 200, "ignore_eos": True},
        timeout=60,
        trust_env=False,
    )
    assert json.loads(answer.headers["x-pdcore-load"])["kv_total"] > 0
    with httpx.stream(
        "GET", f"{place.unified.url}/load/stream?every_ms=100", trust_env=False, timeout=20
    ) as told:
        samples = (json.loads(line[6:]) for line in told.iter_lines() if line)
        assert next(sample for sample in samples if sample["output_tokens_s"] > 0)


def test_a_pair_of_a_two_rank_prefill_brings_first_token_logprobs_too(fleet: Fleet) -> None:
    to_two = fleet.cluster.bootstrap(fleet.other)
    body = {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 4, "logprobs": 3, "seed": 1, **to_two}
    choices = fleet.router.post("/v1/completions", {"model": "tiny", **body}).json()["choices"]
    assert len({choice["text"] for choice in choices}) == 4
    assert all(len(choice["logprobs"]["tokens"]) <= 4 for choice in choices)
    assert all(choice["logprobs"]["tokens"] for choice in choices)
