"""What is read in one go is what would have been read field by field, never more."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.api import Endpoint, field_by_field, parse
from pdcore.router.fields import TABLE
from pdcore.router.usual import usual_chat, usual_prompt

pytestmark = pytest.mark.unit

READ = {"chat": usual_chat, "completions": usual_prompt, "generate": usual_prompt}
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        64,
        128,
        129,
        1000,
        1001,
        -1,
        -2,
        2**31 - 1,
        2**31,
        2**63 - 1,
        2**63,
        2**64,
    ),
    *(-(2**63), -(2**63) - 1, 0.0, 0.5, 1.0, 1.5, -0.5, 100.0, 100.5, -100.0, 1e308, "", "a", "\ud800", " "),
    *([], [""], ["a"], ["a", 1], [1], {}, {"a": 1}, [{}], [{"role": "user"}], [{"content": "a"}]),
    *([{"role": "", "content": "a"}], [{"role": "user", "content": ""}], [{"role": "user", "content": "a"}]),
    *(
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": 1, "content": "a"}],
        [None],
        [[1]],
        [["a"]],
    ),
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [1]}],
]
NAMES = [
    *TABLE,
    *("messages", "prompt", "text", "input_ids", "user", "Model", "BOOTSTRAP_ROOM", "bootstrap_x"),
    *("kv_transfer_params", "metaserver", "disagg_x", "tool_calls", ""),
]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request that is almost in order."""
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "prompt": "hi",
        **draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=3)),
    }
    for name in draw(st.sets(st.sampled_from(("messages", "prompt")), max_size=1)):
        del fields[name]
    return json.dumps(fields).encode()


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(list(READ)), bodies())
def test_whatever_is_accepted_at_once_means_the_same_field_by_field(endpoint: Endpoint, body: bytes) -> None:
    means_the_same(endpoint, body)


@pytest.mark.cluster
@settings(max_examples=5000, deadline=None, database=None)
@given(st.sampled_from(list(READ)), bodies())
def test_whatever_is_accepted_at_once_means_the_same_in_many_more_bodies(
    endpoint: Endpoint, body: bytes
) -> None:
    means_the_same(endpoint, body)


def means_the_same(endpoint: Endpoint, body: bytes) -> None:
    """Read at once, if it is, it is what it is field by field."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # half a surrogate pair
        return
    if READ[endpoint](body, fields) is not None:
        assert parse(endpoint, body) == field_by_field(endpoint, fields)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (
            "chat",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 16,
                "temperature": 0,
            },
        ),
        ("chat", {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]}),
        ("completions", {"prompt": "hi", "n": 2, "stream": True, "stream_options": {"include_usage": True}}),
        ("generate", {"prompt": "hi", "user": "u", "stop": ["\n"], "logprobs": 3, "top_p": 1}),
    ],
)
def test_ordinary_requests_are_read_at_once(endpoint: Endpoint, body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    usual = READ[endpoint](raw, body)
    assert usual is not None
    assert parse(endpoint, raw).items == body.get("n", 1)


def test_of_a_repeated_field_the_last_counts_in_both() -> None:
    raw = b'{"prompt": "a", "n": 300, "n": 2, "max_tokens": 5, "max_tokens": 6}'
    asked = parse("completions", raw)
    assert (asked.items, bytes(asked.fields["max_tokens"])) == (2, b"6")
