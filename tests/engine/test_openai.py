"""Answer shapes, field by field as OpenAI's clients expect them, and ``/generate``'s two."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pdcore.engine import openai
from pdcore.engine.generate_shapes import GenerateShape, SglangShape, shape_of
from pdcore.engine.logprobs import Alternative, Scored
from pdcore.engine.openai import ChatShape, Choice, CompletionShape, Head, Shape, Usage
from pdcore.engine.requests import parse
from pdcore.engine.transcript import Piece

pytestmark = pytest.mark.unit

HEAD = Head(id="chatcmpl-1", created=5, model="m", request_id="r", rooms=(7,))
WITH_USAGE = Head(id="chatcmpl-1", created=5, model="m", include_usage=True)
WITH_LOGPROBS = Head(id="chatcmpl-1", created=5, model="m", logprobs=True, rooms=(7, 8))
USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2)
HALF = Scored(
    Alternative(9, b"\xc3", -0.5), (Alternative(8, b"\xa9", -0.25), Alternative(9, b"\xc3", -0.5)), 2
)
WORD = Scored(Alternative(4, b"hi", -1.5), (), 0)


def choice(text: str = "hello", reason: str | None = "stop", index: int = 0, *scored: Scored) -> Choice:
    made = Choice(index=index, prompt_tokens=3)
    made.add(Piece(text, reason, tuple(range(4)), scored))
    return made


def streamed(shape: Shape, *pieces: Piece) -> list[dict[str, Any]]:
    """Every document of a stream about one answer."""
    made = Choice(index=0, prompt_tokens=3)
    documents = list(shape.opening([made]))
    for piece in pieces:
        made.add(piece)
        documents += shape.piece(made, piece)
    return [*documents, *shape.closing(USAGE)]


def test_usage_adds_up() -> None:
    assert USAGE.document() == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_whole_chat_is_what_the_sdk_reads() -> None:
    answer = ChatCompletion.model_validate(ChatShape(HEAD).whole([choice()], USAGE))
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
    documents = streamed(ChatShape(HEAD), Piece("he", None), Piece("llo", None), Piece("", "length"))
    chunks = [ChatCompletionChunk.model_validate(document) for document in documents]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None, None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]
    assert all("usage" not in document for document in documents)
    assert documents[-1]["choices"][0]["delta"] == {}


def test_usage_in_a_stream_is_one_more_chunk_without_choices() -> None:
    for shape in (ChatShape(WITH_USAGE), CompletionShape(WITH_USAGE)):
        documents = streamed(shape, Piece("x", "stop"))
        assert [document["usage"] for document in documents[:-1]] == [None] * (len(documents) - 1)
        assert documents[-1]["choices"] == []
        assert documents[-1]["usage"] == USAGE.document()


def test_a_whole_completion_is_what_the_sdk_reads() -> None:
    answer = Completion.model_validate(CompletionShape(HEAD).whole([choice(reason="length")], USAGE))
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion"


def test_a_completion_stream_is_texts_and_a_reason() -> None:
    documents = streamed(CompletionShape(HEAD), Piece("hello", "stop"))
    texts = [(d["choices"][0]["text"], d["choices"][0]["finish_reason"]) for d in documents]
    assert texts == [("hello", None), ("", "stop")]


def test_a_resumed_chat_has_no_second_role() -> None:
    head = Head(id="chatcmpl-1", created=5, model="m", resumes=True)
    assert "role" not in streamed(ChatShape(head), Piece("x", "stop"))[0]["choices"][0]["delta"]


def test_many_choices_keep_their_places() -> None:
    for shape in (ChatShape(WITH_LOGPROBS), CompletionShape(WITH_LOGPROBS)):
        whole: Any = shape.whole([choice("a"), choice("b", "length", 1)], USAGE)
        assert [(one["index"], one["finish_reason"]) for one in whole["choices"]] == [
            (0, "stop"),
            (1, "length"),
        ]
    opening: list[Any] = [*ChatShape(HEAD).opening([choice(), choice(index=1)])]
    assert [one["choices"][0]["index"] for one in opening] == [0, 1]


def test_chat_logprobs_name_bytes_where_text_cannot() -> None:
    whole = ChatShape(WITH_LOGPROBS).whole([choice("", "stop", 0, WORD, HALF)], USAGE)
    logprobs = ChatCompletion.model_validate(whole).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    word, half = logprobs.content
    assert (word.token, word.logprob, word.bytes, word.top_logprobs) == ("hi", -1.5, [104, 105], [])
    assert (half.token, half.bytes) == ("\ufffd", [0xC3])
    assert [(top.logprob, top.bytes) for top in half.top_logprobs] == [(-0.25, [0xA9]), (-0.5, [0xC3])]


def test_completion_logprobs_are_four_lists_of_one_length() -> None:
    whole = CompletionShape(WITH_LOGPROBS).whole([choice("", "stop", 0, WORD, HALF)], USAGE)
    logprobs = Completion.model_validate(whole).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["hi", "\ufffd"]
    assert logprobs.token_logprobs == [-1.5, -0.5]
    assert logprobs.text_offset == [0, 2]
    assert logprobs.top_logprobs == [{"hi": -1.5}, {"\ufffd": -0.25}]


def test_a_stream_tells_logprobs_also_where_text_is_held_back() -> None:
    for shape in (ChatShape(WITH_LOGPROBS), CompletionShape(WITH_LOGPROBS), GenerateShape(WITH_LOGPROBS)):
        documents = streamed(shape, Piece("", None, (9,), (HALF,)), Piece("", "stop"))
        told = json.dumps([document.get("choices") or document for document in documents])
        assert told.count("-0.25") == 1


def test_generate_has_its_own_fields() -> None:
    assert GenerateShape(HEAD).whole([choice("out")], USAGE) == {
        "request_id": "r",
        "bootstrap_room": 7,
        "output": "out",
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 4,
    }


def test_generate_streams_deltas_and_counts_at_the_end() -> None:
    documents = streamed(GenerateShape(HEAD), Piece("o", None, (1,)), Piece("ut", "stop", (2, 3)))
    assert "".join(str(document["output"]) for document in documents) == "out"
    assert documents[-1]["completion_tokens"] == 3
    assert documents[-1]["finish_reason"] == "stop"


def test_generate_answers_many_with_a_list() -> None:
    for shape in (GenerateShape(WITH_LOGPROBS), SglangShape(WITH_LOGPROBS)):
        whole: Any = shape.whole([choice("a", "stop", 0, WORD), choice("b", "length", 1, WORD)], USAGE)
        assert [one["index"] for one in whole] == [0, 1]
        assert "-1.5" in json.dumps(whole[1])
    assert [one["bootstrap_room"] for one in _list(GenerateShape(WITH_LOGPROBS))] == [7, 8]


def _list(shape: Shape) -> Any:
    return shape.whole([choice("a"), choice("b", "stop", 1)], USAGE)


def test_sglang_answers_have_its_names() -> None:
    assert SglangShape(HEAD).whole([choice("out", "length")], USAGE) == {
        "text": "out",
        "output_ids": [0, 1, 2, 3],
        "meta_info": {
            "id": "r",
            "finish_reason": {"type": "length", "length": 4},
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "cached_tokens": 0,
        },
    }


def test_sglang_streams_say_the_whole_text_again() -> None:
    documents = streamed(
        SglangShape(HEAD), Piece("o", None, (1,)), Piece("", None, (2,)), Piece("ut", "stop", (3,))
    )
    assert [document["text"] for document in documents] == ["o", "out"]
    assert [document["meta_info"]["finish_reason"] for document in documents] == [None, {"type": "stop"}]


def test_sglang_logprobs_are_triples() -> None:
    whole: Any = SglangShape(WITH_LOGPROBS).whole([choice("", "stop", 0, HALF)], USAGE)
    assert whole["meta_info"]["output_token_logprobs"] == [[-0.5, 9, "\ufffd"]]
    assert whole["meta_info"]["output_top_logprobs"][0][0] == [-0.25, 8, "\ufffd"]


def test_each_endpoint_has_its_shape_and_prefix() -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    assert isinstance(shape_of(parse("chat", chat, vocab_size=9), HEAD), ChatShape)
    assert isinstance(shape_of(parse("completions", {"prompt": "x"}, vocab_size=9), HEAD), CompletionShape)
    assert isinstance(shape_of(parse("generate", {"prompt": "x"}, vocab_size=9), HEAD), GenerateShape)
    assert isinstance(shape_of(parse("generate", {"text": "x"}, vocab_size=9), HEAD), SglangShape)
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
    assert openai.handed_off("r", [7]) == {"request_id": "r", "bootstrap_room": 7, "accepted": True}
    assert openai.handed_off("r", [7, 8])["bootstrap_room"] == [7, 8]
