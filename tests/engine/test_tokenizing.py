"""Text to tokens and back over real sockets, in the shapes that vLLM's and SGLang's clients expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.leader_app import LeaderApp, leader_app

pytestmark = pytest.mark.integration


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "prefill") as opened:
        yield opened


TEXTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prompt": "ab"}, {"tokens": [97, 98], "count": 2}),
    ({"text": ""}, {"tokens": [], "count": 0}),
    ({"text": ["a", "bc"]}, {"tokens": [[97], [98, 99]], "count": [1, 2]}),
    (
        {"prompt": "ab", "model": "tiny", "return_token_strs": True, "add_special_tokens": False},
        {"tokens": [97, 98], "count": 2, "token_strs": ["a", "b"]},
    ),
]


async def test_text_becomes_tokens(app: LeaderApp) -> None:
    for body, expected in TEXTS:
        answer = await app.client.post("/tokenize", json=body)
        assert (answer.status_code, answer.json()) == (200, {**expected, "max_model_len": 256})


async def test_a_conversation_becomes_what_a_chat_would_compute(app: LeaderApp) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    answer = await app.client.post("/tokenize", json=body)
    assert bytes(answer.json()["tokens"]) == b"u:x;t1"


async def test_tokens_become_text(app: LeaderApp) -> None:
    for tokens, expected in (([97, 98], "ab"), ([], ""), ([[97], [98]], ["a", "b"])):
        answer = await app.client.post("/detokenize", json={"tokens": tokens})
        assert answer.json() == {"prompt": expected, "text": expected}


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "text": "b"}, 400, "prompt"),
    ("/tokenize", {"prompt": 5}, 400, "prompt"),
    ("/tokenize", {"prompt": ["a", 5]}, 400, "prompt[1]"),
    ("/tokenize", {"messages": [{"role": "robot"}]}, 400, "messages[0].role"),
    ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
    ("/detokenize", {"tokens": [1 << 20]}, 400, "tokens"),
    ("/detokenize", {"tokens": [[1], [-1]]}, 400, "tokens[1]"),
    ("/detokenize", {"tokens": [1, [2]]}, 400, "tokens"),
]


async def test_anything_else_is_refused_by_name(app: LeaderApp) -> None:
    for path, body, status, param in WRONG:
        answer = await app.client.post(path, json=body, headers={"x-request-id": "r"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["request_id"]) == (status, param, "r")


async def test_an_instance_that_does_not_serve_says_so(app: LeaderApp) -> None:
    app.state.enter("draining", "told to end")
    answer = await app.client.post("/tokenize", json={"prompt": "a"})
    assert (answer.status_code, answer.headers["x-pdcore-refused"]) == (421, "draining")
