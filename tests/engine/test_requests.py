"""Bodies of the generation endpoints: what is accepted, and which field a refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdcore.engine.fields import kind_of, shortened
from pdcore.engine.messages import Sampling
from pdcore.engine.prompts import Conversation
from pdcore.engine.requests import Api, GenerationRequest, decode_body, parse
from pdcore.errors import ApiError

pytestmark = pytest.mark.unit

VOCAB_SIZE = 1000
USER = {"role": "user", "content": "hi"}


def parsed(api: Api = "completions", **fields: Any) -> GenerationRequest:
    body = ({"messages": [USER]} if api == "chat" else {"prompt": "hi"}) | fields
    return parse(api, body, vocab_size=VOCAB_SIZE)


def refused(api: Api = "completions", **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(api, **fields)
    assert caught.value.code == "invalid_request"
    return caught.value


def of(field: str, value: object) -> dict[str, Any]:
    return {field: value}


def test_defaults_are_openais() -> None:
    assert parsed() == GenerationRequest(
        api="completions",
        model=None,
        prompts=("hi",),
        samples=1,
        max_tokens=None,
        min_tokens=0,
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=0),
        seed=None,
        stop=(),
        stop_token_ids=(),
        ignore_eos=False,
        stream=False,
        include_usage=False,
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hello", ("hello",)),
        ("   ", ("   ",)),
        (["only"], ("only",)),
        ([1, 2, 999], ((1, 2, 999),)),
        ([[0]], ((0,),)),
        (["a", "b", "a"], ("a", "b", "a")),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_are_text_or_token_ids_one_or_many(prompt: object, expected: object) -> None:
    assert parsed(prompt=prompt).prompts == expected


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        [True],
        [1.0],
        [-1],
        [VOCAB_SIZE],
        [1 << 70],
        [None],
        7,
        True,
        {"text": "a"},
        [{}],
    ],
)
def test_any_other_prompt_is_refused(prompt: object) -> None:
    assert refused(prompt=prompt).param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([""], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([[1], [VOCAB_SIZE]], "prompt[1]"),
        ([[1], [True]], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        (["a", "b", 1], "prompt[2]"),
        ([1, "a"], "prompt[1]"),
    ],
)
def test_one_bad_prompt_of_many_is_named(prompt: object, param: str) -> None:
    assert refused(prompt=prompt).param == param


def test_prompts_times_samples_are_bounded() -> None:
    assert parsed(prompt=["a"] * 8, n=128).items == 1024
    assert refused(prompt=["a"] * 9, n=128).param == "n"
    assert refused(prompt=["a"] * 1025).param == "prompt"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hello", "hello"),
        (" ", " "),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ],
)
def test_content_is_text_or_text_parts(content: object, expected: str) -> None:
    conversation = parsed("chat", messages=[{"role": "user", "content": content}]).prompts[0]
    assert conversation == Conversation(messages=({"role": "user", "content": expected},))


def test_an_assistant_may_have_said_nothing() -> None:
    said = [USER, {"role": "assistant", "content": None}, USER]
    conversation = parsed("chat", messages=said).prompts[0]
    assert isinstance(conversation, Conversation)
    assert conversation.messages[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([USER] * 4097, "messages"),
        (["hi"], "messages[0]"),
        ([None], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([USER, {"role": "user", "content": ""}], "messages[1].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": 3}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        ([{"role": "tool", "content": "x", "tool_call_id": 7}], "messages[0].tool_call_id"),
    ],
)
def test_messages_that_are_no_conversation_are_refused(messages: object, param: str) -> None:
    assert refused("chat", messages=messages).param == param


@pytest.mark.parametrize(
    ("api", "field"), [("chat", "prompt"), ("completions", "messages"), ("generate", "messages")]
)
def test_the_other_endpoints_input_is_refused(api: Api, field: str) -> None:
    assert refused(api, **of(field, "x")).param == field


@pytest.mark.parametrize(
    ("field", "good"),
    [
        ("temperature", [0, 0.0, 0.7, 2, 2.0, None]),
        ("top_p", [0.001, 0.5, 1, 1.0, None]),
        ("top_k", [-1, 0, 1, 500, None]),
        ("seed", [0, -1, 7, (1 << 64) - 1, -(1 << 63), None]),
        ("max_tokens", [1, 4096, None]),
        ("max_completion_tokens", [1, 4096, None]),
        ("stop", ["a", ["a"], ["a", "b", "c", "d"], [], None]),
        ("stop_token_ids", [[], [1, 2], None]),
        ("stream", [True, False, None]),
        ("ignore_eos", [True, False, None]),
        ("stream_options", [{}, {"include_usage": True}, {"other": 1}, None]),
        ("model", ["m", None]),
        ("n", [1, 2, 128, None]),
        ("min_tokens", [0, 1, None]),
        ("min_p", [0, 0.5, 1, None]),
        ("presence_penalty", [-2, 0, 1.5, None]),
        ("frequency_penalty", [-2, 0, 1.5, None]),
        ("repetition_penalty", [0.5, 1, 1.3, None]),
        ("logit_bias", [{}, {"5": 3, "999": -100}, None]),
        ("logprobs", [0, 1, 20, False, None]),
    ],
)
def test_values_within_their_range_are_taken(field: str, good: list[object]) -> None:
    for value in good:
        parsed(**of(field, value))


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("temperature", [-0.1, 2.1, "1", True, [], float("inf")]),
        ("top_p", [0, 0.0, -1, 1.01, "1", True]),
        ("top_k", [-2, 1.5, "1", True, 1 << 80]),
        ("seed", [1.5, "7", True, 1 << 64, -(1 << 63) - 1]),
        ("max_tokens", [0, -1, 1.0, "4", True, 1 << 40]),
        ("max_completion_tokens", [0, -1, 1.0, "4", True]),
        ("stop", ["", [""], ["a"] * 5, [1], 1, {}, "x" * 257]),
        ("stop_token_ids", [5, ["a"], [-1], [VOCAB_SIZE], [True], list(range(17))]),
        ("stream", [1, 0, "true", []]),
        ("ignore_eos", [1, "true"]),
        ("stream_options", [True, [], "x"]),
        ("model", [5, "", "x" * 257, []]),
        ("n", [0, -1, "3", 1.5, True, 129, 10**6]),
        ("min_tokens", [-1, 0.5, "1", True]),
        ("min_p", [-0.1, 1.1, "0", True]),
        ("presence_penalty", [-2.1, 2.1, "0", True, []]),
        ("frequency_penalty", [-2.1, 2.1, "0"]),
        ("repetition_penalty", [0, -1, 11, "1", True]),
        ("logit_bias", [[], "5", {"x": 1}, {str(VOCAB_SIZE): 1}, {"-1": 1}, {"\u0665": 1}]),
        ("logprobs", [-1, 21, "5", 1.5, True]),
    ],
)
def test_values_outside_are_refused_by_name(field: str, bad: list[object]) -> None:
    for value in bad:
        error = refused(**of(field, value))
        assert error.param == field
        assert error.message.startswith(field)
        assert len(error.message) < 200
        if not isinstance(value, list | dict | str):
            assert shortened(value) in error.message or isinstance(value, bool), "the value is named"


def test_include_usage_must_be_a_boolean() -> None:
    assert refused(stream_options={"include_usage": 1}).param == "include_usage"
    assert parsed(stream_options={"include_usage": True}).include_usage


@pytest.mark.parametrize(
    ("field", "nothing", "something"),
    [
        ("best_of", [1, None], [2, "1"]),
        ("top_logprobs", [0, None], [1, "0"]),
        ("prompt_logprobs", [False, None], [0, 1]),
        ("echo", [False, None], [True, "no"]),
        ("suffix", ["", None], ["x", 5]),
        ("functions", [[], None], [[{}]]),
        ("function_call", ["none", None], [{"name": "f"}]),
        ("response_format", [{"type": "text"}, None], [{"type": "json_object"}, "text"]),
        ("parallel_tool_calls", [True, None], [False]),
        ("skip_special_tokens", [True, None], [False]),
        ("modalities", [["text"], None], [["text", "audio"]]),
        ("guided_json", [{}, None], [{"type": "object"}]),
        ("use_beam_search", [False, None], [True]),
    ],
)
def test_what_the_engine_cannot_do_is_refused_unless_nothing_is_asked(
    field: str, nothing: list[object], something: list[object]
) -> None:
    for value in nothing:
        assert parsed(**of(field, value)) == parsed()
    for value in something:
        assert refused(**of(field, value)).param == field


def test_unknown_fields_are_ignored() -> None:
    assert parsed(user="me", metadata={"a": 1}, kv_transfer_params=[1], bootstrap_room=7) == parsed()


def test_both_names_of_the_token_limit_may_agree_only() -> None:
    assert parsed(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert refused(max_tokens=5, max_completion_tokens=6).param == "max_tokens"


@pytest.mark.parametrize(("given", "taken"), [(-1, (1 << 63) - 1), (7, 7), ((1 << 63) + 3, 3), (0, 0)])
def test_a_seed_is_folded_into_63_bits(given: int, taken: int) -> None:
    assert parsed(seed=given).seed == taken


def test_no_limit_on_top_k_has_two_spellings() -> None:
    assert parsed(top_k=-1).sampling.top_k == parsed(top_k=0).sampling.top_k == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff\xfe",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud800 \\udfff x"}',
        b"[" * 100_000 + b"]" * 100_000,
        b"[]",
        b'"text"',
        b"5",
        b"null",
    ],
)
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decode_body(raw)
    assert (caught.value.code, caught.value.status) == ("invalid_request", 400)
    assert len(caught.value.message) < 300


def test_a_good_body_is_decoded() -> None:
    assert decode_body(json.dumps({"a": [1, "é"]}).encode()) == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("api", "given", "prompt", "expected"),
    [
        ("chat", None, 10, 90),
        ("chat", None, 99, 1),
        ("completions", None, 10, 16),
        ("completions", None, 90, 10),
        ("generate", None, 10, 16),
        ("completions", 90, 10, 90),
        ("chat", 1, 99, 1),
    ],
)
def test_a_budget_fills_the_context_exactly_and_no_more(
    api: Api, given: int | None, prompt: int, expected: int
) -> None:
    request = parsed(api, max_tokens=given)
    assert request.token_budget(prompt, 100, 1000, field="prompt") == expected


@pytest.mark.parametrize(("given", "prompt"), [(91, 10), (1, 100), (None, 100), (None, 5000)])
@pytest.mark.parametrize(("api", "param"), [("chat", "messages"), ("completions", "prompt")])
def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    api: Api, param: str, given: int | None, prompt: int
) -> None:
    request = parsed(api, max_tokens=given)
    with pytest.raises(ApiError) as caught:
        request.token_budget(prompt, 100, 1000, field=request.field_of(0))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
    assert "100" in caught.value.message
    assert str(prompt) in caught.value.message


def test_a_chat_without_a_limit_asks_for_no_more_than_the_cache_holds() -> None:
    assert parsed("chat").token_budget(10, 100, 50, field="messages") == 40


def test_values_in_messages_are_cut() -> None:
    assert len(shortened("x" * 1000)) == 41
    assert shortened(1 << 5000) == "a huge integer"
    values: list[object] = [None, True, 1, 1.5, "", [], {}]
    assert [kind_of(value) for value in values] == [
        "null",
        "a boolean",
        "an integer",
        "a number",
        "a string",
        "a list",
        "an object",
    ]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat_of(**fields: Any) -> Conversation:
    conversation = parsed("chat", **fields).prompts[0]
    assert isinstance(conversation, Conversation)
    return conversation


def test_tools_and_calls_reach_the_template_with_arguments_as_what_they_mean() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    said = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "c"},
    ]
    chat = chat_of(messages=said, tools=[TOOL], chat_template_kwargs={"enable_thinking": False})
    assert chat.tools == (TOOL,)
    assert chat.arguments == {"enable_thinking": False}
    assert chat.messages[1]["tool_calls"] == [{**call, "function": {"name": "f", "arguments": {"a": [1]}}}]
    assert chat.messages[2] == {"role": "tool", "content": "", "tool_call_id": "c"}


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    for arguments in ("{", "[1]", "5", {"a": 1}, None):
        call = {"function": {"name": "f", "arguments": arguments}}
        chat = chat_of(messages=[USER, {"role": "assistant", "tool_calls": [call]}])
        assert chat.messages[1]["tool_calls"] == [call]


def test_no_tools_are_shown_when_none_may_be_called() -> None:
    assert chat_of(tools=[TOOL], tool_choice="none").tools is None
    assert chat_of(tools=[TOOL], tool_choice="auto").tools == (TOOL,)
    assert chat_of(tools=[]).tools is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_tools_that_cannot_be_honoured_are_refused(fields: dict[str, Any], param: str) -> None:
    assert refused("chat", **fields).param == param


def test_a_chat_says_whether_and_how_many_logprobs_in_two_fields() -> None:
    for fields, wanted in (
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ):
        assert parsed("chat", **fields).sampling.top_logprobs == wanted
    assert refused("chat", top_logprobs=2).param == "top_logprobs"
    assert refused("chat", logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused("chat", logprobs=1).param == "logprobs"


def test_what_is_sampled_is_what_was_asked() -> None:
    sampling = parsed(
        presence_penalty=0.5,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        min_p=0.1,
        logit_bias={"7": 2},
        logprobs=3,
    ).sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        0.5,
        -1,
        1.2,
    )
    assert (sampling.min_p, sampling.bias, sampling.top_logprobs) == (0.1, ((7, 2.0),), 3)


def test_no_more_tokens_are_demanded_than_allowed() -> None:
    assert parsed(min_tokens=5, max_tokens=5).min_tokens == 5
    error = refused(min_tokens=6, max_tokens=5)
    assert (error.param, error.message) == ("min_tokens", "min_tokens is 6, but max_tokens is 5")


RESUME = {"output_ids": [5, 6], "id": "cmpl-1", "created": 9, "emitted_chars": 1, "seed": 7}


def test_a_resumed_request_brings_along_what_was_said() -> None:
    resume = parsed(stream=True, resume=RESUME | {"prompt": [1, 2]}).resume
    assert resume is not None
    assert (resume.prompt, resume.output_ids, resume.id) == ((1, 2), (5, 6), "cmpl-1")
    assert (resume.created, resume.emitted_chars, resume.seed) == (9, 1, 7)
    again = parsed(stream=True, resume=RESUME).resume
    assert again is not None
    assert again.prompt is None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"output_ids": []}, "resume.output_ids"),
        ({"output_ids": [VOCAB_SIZE]}, "resume.output_ids"),
        ({"prompt": ["a"]}, "resume.prompt"),
        ({"id": None}, "resume.id"),
        ({"created": -1}, "resume.created"),
        ({"created": None}, "resume.created"),
        ({"emitted_chars": "3"}, "resume.emitted_chars"),
        ({"seed": 1 << 63}, "resume.seed"),
    ],
)
def test_what_is_resumed_must_be_whole(change: dict[str, Any], param: str) -> None:
    assert refused(stream=True, resume=RESUME | change).param == param


@pytest.mark.parametrize("fields", [{}, {"stream": True, "n": 2}, {"stream": True, "prompt": ["a", "b"]}])
def test_only_a_stream_of_one_answer_can_be_resumed(fields: dict[str, Any]) -> None:
    assert refused(resume=RESUME, **fields).param == "resume"
    assert refused(resume=[]).param == "resume"
