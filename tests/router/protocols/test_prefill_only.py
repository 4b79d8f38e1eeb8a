"""A request cut down to its prompt: nothing in it contradicts itself, and the prompt is the same to the byte."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import ApiError
from pdcore.router.api import parse
from pdcore.router.protocols.prefill_only import check_one_hand_off, one_token
from tests.router.conformance.strict import contradictions
from tests.support.odd_text import ODD

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

PROMPTS = {
    "completions": {"prompt": "a  b\u00e9", "add_special_tokens": False},
    "chat": {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {}}]},
}


def cut(endpoint: Any, body: dict[str, Any]) -> dict[str, Any]:
    made = one_token(parse(endpoint, json.dumps(body).encode()))
    assert made.stream is False
    found: dict[str, Any] = json.loads(made.body({}))
    return found


OPTIONS: dict[str, tuple[Any, ...]] = {
    "stream": (None, True),
    "stream_options": (None, {"include_usage": True}),
    "min_tokens": (None, 0, 5),
    "max_tokens": (None, 1, 40),
    "max_completion_tokens": (None, 40),
    "n": (None, 1),
    "stop": (None, "x", ["x", "y"]),
    "ignore_eos": (None, False),
}


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_cross_product_of_what_clients_set_never_contradicts_itself(endpoint: str) -> None:
    seen = 0
    for values in product(*OPTIONS.values()):
        options = {name: value for name, value in zip(OPTIONS, values, strict=True) if value is not None}
        if "stream_options" in options and "stream" not in options:
            continue
        body = cut(endpoint, {**PROMPTS[endpoint], **options})
        assert contradictions(body) == []
        assert body["max_tokens"] == 1
        assert ("max_completion_tokens" in body) == ("max_completion_tokens" in options)
        seen += 1
    assert seen == 648


UNKNOWN = st.dictionaries(
    st.text("abcdefgh_", min_size=1, max_size=8).map(lambda name: f"x_{name}"),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(ODD),
        st.lists,
        max_leaves=4,
    ),
    max_size=4,
)


@few
@given(UNKNOWN, st.sampled_from(["completions", "chat"]))
def test_what_shapes_the_prompt_stays_to_the_byte(unknown: dict[str, Any], endpoint: Any) -> None:
    body = {**PROMPTS[endpoint], **unknown, "temperature": 1, "seed": 3}
    request = parse(endpoint, json.dumps(body).encode())
    kept = one_token(request).fields
    assert {name: bytes(raw) for name, raw in request.fields.items()}.items() <= {
        name: bytes(raw) for name, raw in kept.items()
    }.items()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": ["a", "b"], "n": 1}, "prompt"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_logprobs": 5}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 0}, "echo"),
    ],
)
def test_what_one_hand_off_cannot_carry_is_refused_by_its_name(more: dict[str, Any], param: str) -> None:
    request = parse("completions", json.dumps({"prompt": "x", **more}).encode())
    with pytest.raises(ApiError, match="engines of protocol nixl") as refused:
        check_one_hand_off(request, "nixl")
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 1},
        {"prompt": ["a"]},
        {"prompt_logprobs": None},
        {"echo": True},
        {"echo": False, "logprobs": 1},
        {"echo": True, "logprobs": None},
        {"logprobs": 5},
    ],
)
def test_what_it_can_carry_is_not(more: dict[str, Any]) -> None:
    check_one_hand_off(parse("completions", json.dumps({"prompt": "x", **more}).encode()), "nixl")
