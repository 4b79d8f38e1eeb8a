"""How answers ended, in each engine's words; one failed item fails the request."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.endings import NotAnAnswer, read_answer

pytestmark = pytest.mark.unit

many = settings(max_examples=300, deadline=None, derandomize=True, database=None)

GOOD: list[object] = [
    {
        "choices": [
            {"index": 0, "text": "x", "finish_reason": "stop"},
            {"index": 1, "finish_reason": "length"},
        ]
    },
    {"output": "x", "finish_reason": "stop"},
    {"text": "x", "output_ids": [1], "meta_info": {"finish_reason": {"type": "stop", "matched": 2}}},
    [{"text": "x", "meta_info": {"finish_reason": {"type": "length"}}}, {"text": "y", "meta_info": {}}],
    {"accepted": True, "error": None},
    *({"choices": 5}, {"choices": None}, {"meta_info": "odd", "index": "odd"}, {}, [{}]),
]
FAILED: list[tuple[object, str]] = [
    ({"error": {"message": "why", "code": "x"}}, "why"),
    ({"error": "why"}, "why"),
    ({"choices": [{"finish_reason": "stop"}, {"index": 1, "finish_reason": "abort"}]}, "abort"),
    ({"choices": [{"finish_reason": "error"}]}, "error"),
    ({"output": "", "finish_reason": "abort"}, "abort"),
    ({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "why"}}}, "why"),
    ([{"text": "x", "meta_info": {"finish_reason": {"type": "stop"}}}, {"error": {"message": "why"}}], "why"),
    ({"choices": 5, "error": {"message": "why"}}, "why"),
    ([{"choices": 5}, {"index": "odd", "error": {"message": "why"}}], "why"),
]


@pytest.mark.parametrize("document", GOOD)
def test_an_answer_without_a_failed_item_is_one_byte_for_byte(document: object) -> None:
    body = json.dumps(document).encode()
    assert read_answer(body) == (body, None)


@pytest.mark.parametrize(("document", "says"), FAILED)
def test_one_failed_item_is_the_error_of_the_request(document: object, says: str) -> None:
    _, error = read_answer(json.dumps(document).encode())
    assert error is not None
    assert says in str(error["message"])


GOOD_REASONS = (None, "stop", "length", "tool_calls", "content_filter", {"type": "stop"}, 7, "")
BAD_REASONS = ("abort", "error", {"type": "abort", "message": "why"}, {"type": "error"})
items = st.fixed_dictionaries({}, optional={"finish_reason": st.sampled_from(GOOD_REASONS + BAD_REASONS)})
documents = st.fixed_dictionaries(
    {"usage": st.none() | st.just({"total_tokens": 3})},
    optional={
        "choices": st.lists(items, max_size=3) | st.none(),
        "finish_reason": st.sampled_from(GOOD_REASONS + BAD_REASONS),
        "meta_info": items | st.none(),
        "error": st.sampled_from((None, None, "why", {"message": "why"})),
    },
)


def has_failed(document: Mapping[str, object]) -> bool:
    """Said without a word about how it is found out."""
    choices, said = document.get("choices") or [], document.get("meta_info") or {}
    assert isinstance(choices, list)
    assert isinstance(said, dict)
    reasons = [one.get("finish_reason") for one in (document, said, *choices)]
    return document.get("error") is not None or any(reason in BAD_REASONS for reason in reasons)


@many
@given(documents)
def test_what_is_told_at_a_glance_is_what_a_whole_reading_says(document: dict[str, object]) -> None:
    body = json.dumps(document).encode()
    found, error = read_answer(body)
    assert found == body
    assert (error is not None) == has_failed(document)


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"null",
            b"[]",
            b"7",
            b'"x"',
            b"[1]",
            b"[[]]",
            b"{",
            b'{"a":NaN',
            b"NaN",
            b"\xff",
            b'{"a":"\xff',
        ),
        b"[" * 50_000,
        b'{"text":"half',
    ],
)
def test_anything_else_is_no_answer(body: bytes) -> None:
    with pytest.raises(NotAnAnswer):
        read_answer(body)


def test_numbers_that_are_not_finite_are_null_and_an_error_beside_them_is_seen() -> None:
    body, error = read_answer(b'{"choices":[{"finish_reason":"stop","logprobs":[-Infinity,NaN]}]}')
    assert (json.loads(body)["choices"][0]["logprobs"], error) == ([None, None], None)
    _, error = read_answer(b'{"x":NaN,"error":{"message":"why"}}')
    assert error == {"message": "why"}
