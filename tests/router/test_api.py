"""What a client may send, what is refused before any leg, and what reaches the engines untouched."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import ApiError
from pdcore.router.api import Endpoint, parse
from tests.support.odd_text import ODD

pytestmark = pytest.mark.unit

GOOD: dict[Endpoint, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "generate": {"prompt": "hi"},
}


def refused(endpoint: Endpoint, body: object) -> ApiError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        parse(endpoint, raw)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("endpoint", ["chat", "completions", "generate"])
def test_a_plain_request_is_accepted(endpoint: Endpoint) -> None:
    request = parse(endpoint, json.dumps({**GOOD[endpoint], "model": "m", "stream": True}).encode())
    assert (request.endpoint, request.model, request.stream) == (endpoint, "m", True)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"null", b"[]", b'"x"', b"7", b"{", b"{}x", b'{"prompt":"a",}', b'{"prompt":NaN}'),
        *(b'{"prompt":01}', b'{"prompt":"\xff"}', b"\xef\xbb\xbf{}", b'{"prompt":"\\ud800"}'),
        b'{"prompt":"a","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"prompt":"a","x":"\x01"}',
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    refused("completions", body)


def test_a_body_of_very_many_fields_is_refused() -> None:
    assert (
        "1026 fields" in refused("completions", {"prompt": "a", **{f"x{n}": n for n in range(1025)}}).message
    )


@pytest.mark.parametrize(
    "prompt",
    [
        *(
            "",
            [],
            [""],
            [[]],
            [[], []],
            None,
            1,
            1.5,
            True,
            {},
            {"a": 1},
            [1.5],
            [True],
            [-1],
            [2**31],
            [None],
        ),
        *(["a", ""], ["a", 1], [1, "a"], [[1], []], [[1], "a"], [[1, "a"]], [{}], ["a"] * 1025),
    ],
)
def test_a_prompt_that_is_empty_or_of_no_known_form_is_refused_by_name(prompt: object) -> None:
    error = refused("completions", {"prompt": prompt})
    assert error.param is not None
    assert error.param.startswith("prompt")


@pytest.mark.parametrize("prompt", ["   ", "\n", [1], [0, 2**31 - 1], ["a"], [[1, 2]], "ü"])
def test_whitespace_token_ids_and_one_prompt_in_a_list_are_prompts(prompt: object) -> None:
    parse("completions", json.dumps({"prompt": prompt}).encode())


@pytest.mark.parametrize(
    "messages",
    [
        *(None, [], {}, "hi", 1, [1], ["hi"], [[]], [{}], [{"content": "x"}], [{"role": "", "content": "x"}]),
        *([{"role": 1, "content": "x"}], [{"role": "user"}], [{"role": "user", "content": ""}]),
        *([{"role": "user", "content": []}], [{"role": "user", "content": None}]),
        *([{"role": "user", "content": 1}], [{"role": "user", "content": ["x"]}]),
        *([{"role": "user", "content": [{}]}], [{"role": "user", "content": [{"type": 1}]}]),
    ],
)
def test_messages_without_content_or_of_a_wrong_shape_are_refused_by_name(messages: object) -> None:
    error = refused("chat", {"messages": messages})
    assert error.param is not None
    assert error.param.startswith("messages")


def test_an_empty_system_message_beside_content_is_accepted() -> None:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
    ]
    parse("chat", json.dumps({"messages": messages}).encode())


@pytest.mark.parametrize("given", [{}, {"prompt": "a", "text": "b"}, {"text": ""}, {"input_ids": [""]}])
def test_generate_takes_exactly_one_kind_of_prompt(given: dict[str, Any]) -> None:
    refused("generate", given)


WRONG: dict[str, list[object]] = {
    "bootstrap_room": [0, -1, 2**63, 2**64, 1.0, 1e3, "7", True, False, [], [1], {}],
    "bootstrap_port": [0, -1, 65536, "80", True, 1.5, []],
    "bootstrap_host": ["", 1, [], True],
    "disagg_prefill_dp_rank": [-1, 65536, "0", False, 0.0, [0]],
    "n": [0, -1, 129, 1_000_000, "3", 1.5, True],
    "best_of": [0, 2, "1", True],
    "logprobs": [-1, "5", 1.5, [], 1001],
    "top_logprobs": [-1, "5", 1.5, True],
    "sampling_params": [[1], "x", 1],
    "max_tokens": [0, -1, "4", 1.5, True, [], 2**40],
    "temperature": ["hot", -1, True, [], {}],
    "top_p": [-0.1, 1.1, "1"],
    "stream": ["true", 1, 0, []],
    "model": ["", 1, [], True],
    "stop": ["", 1, [""], [1], {}],
    "seed": ["1", 1.5, True, 2**64],
    "stream_options": [{"include_usage": True}, "yes"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    body = {**GOOD["completions"], "bootstrap_host": "h", "bootstrap_port": 1, name: value}
    error = refused("completions", body)
    assert error.param == name
    assert name in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("endpoint", "body", "items"),
    [
        ("completions", {"prompt": "a"}, 1),
        ("completions", {"prompt": ["a"]}, 1),
        ("completions", {"prompt": ["a", "a"], "n": 3}, 6),
        ("completions", {"prompt": [[1], [2, 3]], "best_of": 1}, 2),
        ("completions", {"prompt": [1, 2, 3], "n": 2, "best_of": 2}, 2),
        ("completions", {"prompt": ["a"] * 33}, 33),
        ("chat", {**GOOD["chat"], "n": 128}, 128),
        ("generate", {"prompt": ["a", "b"], "n": 2}, 4),
        ("generate", {"text": ["a", "b"], "sampling_params": {"n": 2}}, 4),
        ("generate", {"input_ids": [[1], [2]], "sampling_params": [{"n": 2}, {"n": 2}]}, 4),
        ("generate", {"text": "a", "sampling_params": {"temperature": 0}}, 1),
    ],
)
def test_every_prompt_and_sample_is_an_item(endpoint: Endpoint, body: dict[str, Any], items: int) -> None:
    assert parse(endpoint, json.dumps(body).encode()).items == items


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        ("completions", {"prompt": ["a"] * 9, "n": 128}, "n"),
        ("generate", {"text": [1]}, "text"),
        ("generate", {"input_ids": "a"}, "input_ids"),
        ("generate", {"text": "a", "sampling_params": {"n": 0}}, "n"),
        ("generate", {"text": "a", "sampling_params": {"n": "2"}}, "n"),
        ("generate", {"text": "a", "sampling_params": {"n": 2}, "n": 3}, "n"),
        ("generate", {"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]}, "n"),
        ("generate", {"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": 1}, "prompt"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": "a"}, "tokens"),
        ("detokenize", {"tokens": [[1], [-1]]}, "tokens"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(
    endpoint: Endpoint, body: dict[str, Any], param: str
) -> None:
    assert refused(endpoint, body).param == param


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        *(("tokenize", {"prompt": ""}), ("tokenize", {"messages": []}), ("tokenize", {"text": ["a", "b"]})),
        *(
            ("detokenize", {"tokens": []}),
            ("detokenize", {"tokens": [1, 2]}),
            ("detokenize", {"tokens": [[1]]}),
        ),
    ],
)
def test_tokenizer_requests_are_one_item_whatever_they_hold(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert parse(endpoint, json.dumps(body).encode()).items == 1


@pytest.mark.parametrize("value", [1, 2**63 - 1])
def test_a_room_within_63_bits_is_the_clients_name_and_reaches_no_leg(value: int) -> None:
    request = parse("generate", json.dumps({"prompt": "a", "bootstrap_room": value}).encode())
    assert request.room_name == value
    assert json.loads(request.body({})) == {"prompt": "a"}


@pytest.mark.parametrize("name", ["bootstrap_host", "bootstrap_port"])
def test_host_and_port_come_together(name: str) -> None:
    value: object = "h" if name == "bootstrap_host" else 1
    assert "together" in refused("completions", {"prompt": "a", name: value}).message


@pytest.mark.parametrize(
    "name",
    [
        *("BOOTSTRAP_HOST", "Bootstrap_Room", "bootstrap_hosts", "disagg_prefill_dp_ranks", "DISAGG_x"),
        *("kv_transfer_params", "KV_Transfer_Params", "metaserver"),
    ],
)
def test_fields_by_which_engines_find_each_other_are_refused_in_any_spelling(name: str) -> None:
    assert refused("completions", {"prompt": "a", name: None}).param == name


def test_null_means_not_given() -> None:
    nothing = dict.fromkeys(
        ("model", "stream", "max_tokens", "bootstrap_room", "bootstrap_host", "stop", "n")
    )
    request = parse("completions", json.dumps({"prompt": "a", **nothing}).encode())
    assert (request.model, request.stream, request.room_name) == (None, False, None)


def test_unknown_fields_and_number_forms_reach_the_legs_byte_for_byte() -> None:
    unknown = (
        b'"a":1.10,"b":1e400,"c":-0.0,"d":123456789012345678901234567890,"e":"\\u00fc\\n\xc3\xbc",'
        b'"f":{"x" : [1, 2.50, null],"x":2},"g":1E+2'
    )
    body = b'{"prompt":"hi",' + unknown + b',"temperature":0.50}'
    sent = parse("completions", body).body({"bootstrap_room": 7})
    assert sent == b'{"prompt":"hi",' + unknown + b',"temperature":0.50,"bootstrap_room":7}'


def test_what_the_router_sets_replaces_what_the_client_sent_and_repeated_keys_count_once() -> None:
    body = b'{"prompt":"a","bootstrap_room":5,"prompt":"b","bootstrap_room":6,"max_tokens":0,"max_tokens":3}'
    request = parse("completions", body)
    assert request.room_name == 6
    assert request.body({"bootstrap_room": 9}) == b'{"prompt":"b","max_tokens":3,"bootstrap_room":9}'


few = settings(max_examples=60, deadline=None, derandomize=True, database=None)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(ODD), inner, max_size=3),
    max_leaves=8,
)


@few
@given(st.dictionaries(st.text(ODD, min_size=1).map(lambda name: "x-" + name), json_values, max_size=4))
def test_any_unknown_field_survives(extra: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "hi", **extra}).encode()
    assert json.loads(parse("completions", body).body({})) == {"prompt": "hi", **extra}


@few
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_an_api_error_and_nothing_worse(body: bytes) -> None:
    try:
        request = parse("completions", body)
    except ApiError:
        return
    assert isinstance(msgspec.json.decode(request.body({})), dict)


OWN_LIMITS: list[tuple[str, object, str]] = [
    ("temperature", 200, "is none that any engine takes, got 200"),
    ("temperature", "1", "must be a number, got '1'"),
    ("frequency_penalty", -101, "is none that any engine takes"),
    ("max_tokens", 0, "must be a whole number from 1 on, got 0"),
    ("max_tokens", 2**31, "is more than any engine takes"),
    ("top_k", 2**31, "is more than any engine takes"),
    ("top_logprobs", 1001, "is more than any engine takes"),
    ("logprobs", 1001, "is more than any engine takes"),
    ("logprobs", -1, "must be true, false or a whole number from 0 on"),
]


@pytest.mark.parametrize(("name", "value", "says"), OWN_LIMITS)
def test_a_limit_that_is_an_engines_own_is_not_named_here(name: str, value: object, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse("completions", json.dumps({"prompt": "a", name: value}).encode())
    assert caught.value.param == name
    assert f"{name} {says}" in caught.value.message


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([{"role": "x"}], "messages[0].content", "is missing or empty"),
        ([{"role": "user", "content": ""}], "messages[0].content", "is missing or empty"),
        (
            [{"role": "user"}, {"role": "user", "content": []}],
            "messages[0].content",
            "no other message has any",
        ),
        ([{"role": "user", "content": "a"}, {"role": 1}], "messages[1].role", "must be a string"),
        ([{"role": "user", "content": 1}], "messages[0].content", "must be a string or a list of parts"),
        ([{"role": "user", "content": "a"}, 5], "messages[1]", "must be an object"),
    ],
)
def test_the_message_at_fault_is_named_with_its_place(messages: object, param: str, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse("chat", json.dumps({"messages": messages}).encode())
    assert caught.value.param == param
    assert says in caught.value.message
