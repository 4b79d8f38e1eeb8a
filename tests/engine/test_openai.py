"""Answer shapes, field by field as OpenAI's clients expect them."""

from __future__ import annotations

import json

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pdcore.engine import openai
from pdcore.engine.openai import ChatShape, CompletionShape, GenerateShape, Head, Usage

pytestmark = pytest.mark.unit

HEAD = Head(id="chatcmpl-1", created=5, model="m", request_id="r", room=7)
WITH_USAGE = Head(id="chatcmpl-1", created=5, model="m", include_usage=True)
USAGE = Usage(prompt_tokens=3, completion_tokens=4)


def test_usage_adds_up() -> None:
    assert USAGE.document() == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_a_whole_chat_is_what_the_sdk_reads() -> None:
    answer = ChatCompletion.model_validate(ChatShape(HEAD).whole("hello", "stop", USAGE))
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7
    assert (answer.id, answer.created, answer.model, answer.object) == (
        "chatcmpl-1",
        5,
        "m",
        "chat.completion",
    )


def test_a_chat_stream_opens_with_the_role_and_closes_with_the_reason() -> None:
    shape = ChatShape(HEAD)
    documents = [*shape.opening(), shape.piece("he"), shape.piece("llo"), *shape.closing("length", USAGE)]
    chunks = [ChatCompletionChunk.model_validate(document) for document in documents]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None, None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]
    assert all("usage" not in document for document in documents)
    assert documents[-1]["choices"][0]["delta"] == {}  # type: ignore[index]


def test_usage_in_a_stream_is_one_more_chunk_without_choices() -> None:
    for shape in (ChatShape(WITH_USAGE), CompletionShape(WITH_USAGE)):
        documents = [*shape.opening(), shape.piece("x"), *shape.closing("stop", USAGE)]
        assert [document["usage"] for document in documents[:-1]] == [None] * (len(documents) - 1)
        assert documents[-1]["choices"] == []
        assert documents[-1]["usage"] == USAGE.document()


def test_a_whole_completion_is_what_the_sdk_reads() -> None:
    answer = Completion.model_validate(CompletionShape(HEAD).whole("hello", "length", USAGE))
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion"


def test_a_completion_stream_is_texts_and_a_reason() -> None:
    shape = CompletionShape(HEAD)
    documents = [*shape.opening(), shape.piece("hello"), *shape.closing("stop", USAGE)]
    texts = [(d["choices"][0]["text"], d["choices"][0]["finish_reason"]) for d in documents]  # type: ignore[index]
    assert texts == [("hello", None), ("", "stop")]


def test_generate_has_its_own_fields() -> None:
    whole = GenerateShape(HEAD).whole("out", "stop", USAGE)
    assert whole == {
        "request_id": "r",
        "bootstrap_room": 7,
        "output": "out",
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 4,
    }


def test_generate_streams_deltas_and_counts_at_the_end() -> None:
    shape = GenerateShape(HEAD)
    documents = [*shape.opening(), shape.piece("o"), shape.piece("ut"), *shape.closing("stop", USAGE)]
    assert "".join(str(document["output"]) for document in documents) == "out"
    assert documents[-1]["completion_tokens"] == 4
    assert documents[-1]["finish_reason"] == "stop"


def test_each_endpoint_has_its_shape_and_prefix() -> None:
    assert isinstance(openai.shape("chat", HEAD), ChatShape)
    assert isinstance(openai.shape("completions", HEAD), CompletionShape)
    assert isinstance(openai.shape("generate", HEAD), GenerateShape)
    assert openai.answer_id("chat", "x") == "chatcmpl-x"
    assert openai.answer_id("completions", "x") == "cmpl-x"


def test_an_event_is_one_line_of_json() -> None:
    event = openai.event({"text": "a\nb\u2028"})
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:]) == {"text": "a\nb\u2028"}


def test_models_and_hand_off() -> None:
    listed = openai.models(("a", "b"), 5, 100)
    assert [entry["id"] for entry in listed["data"]] == ["a", "b"]  # type: ignore[attr-defined]
    assert openai.handed_off("r", 7) == {"request_id": "r", "bootstrap_room": 7, "accepted": True}
