"""Which model is meant, and how long a prompt is taken to be."""

from __future__ import annotations

import json

import pytest

from pdcore.errors import ApiError
from pdcore.router.api import parse
from pdcore.router.models import ANY_MODEL, meant, named
from pdcore.router.prompt_size import estimated_tokens

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("known", "asked", "means"),
    [
        (("a",), None, "a"),
        (("a", "b"), "b", "b"),
        ((ANY_MODEL,), None, ANY_MODEL),
        ((ANY_MODEL,), "x", ANY_MODEL),
        ((ANY_MODEL, "a"), None, "a"),
        ((ANY_MODEL, "a"), "a", "a"),
        ((ANY_MODEL, "a"), "x", ANY_MODEL),
        ((ANY_MODEL,), ANY_MODEL, ANY_MODEL),
    ],
)
def test_who_says_nothing_of_models_serves_what_nobody_else_does(
    known: tuple[str, ...], asked: str | None, means: str
) -> None:
    assert meant(known, asked) == means


@pytest.mark.parametrize(
    ("known", "asked", "code"),
    [
        (("a",), "b", "model_not_found"),
        (("a", "b"), None, "invalid_request"),
        (("a",), "*", "model_not_found"),
    ],
)
def test_what_is_refused(known: tuple[str, ...], asked: str | None, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        meant(known, asked)
    assert refused.value.code == code


def test_any_is_no_name() -> None:
    assert named([ANY_MODEL, "a"]) == ["a"]


@pytest.mark.parametrize(
    ("endpoint", "fields", "tokens"),
    [
        ("completions", {"prompt": [1, 2, 3]}, 3),
        ("completions", {"prompt": [[1, 2], [3]]}, 3),
        ("completions", {"prompt": "a" * 38}, 10),
        ("generate", {"input_ids": [7]}, 1),
        ("generate", {"text": "a" * 2}, 1),
        ("chat", {"messages": [{"role": "user", "content": "hi"}]}, 8),
    ],
)
def test_token_ids_are_counted_and_text_is_taken_at_four_bytes_each(
    endpoint: str, fields: dict[str, object], tokens: int
) -> None:
    body = json.dumps(fields, separators=(",", ":")).encode()
    assert estimated_tokens(parse(endpoint, body).fields) == tokens  # type: ignore[arg-type]
