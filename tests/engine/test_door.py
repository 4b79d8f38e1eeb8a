"""A leader that asks for a token: who is let in, what stays open, and a token that changes while it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pdcore.bearer import Token
from pdcore.config import EngineConfig
from pdcore.engine.door import OPEN, Door, token_file
from pdcore.engine.settings import load_settings
from pdcore.errors import ConfigError
from tests.support.fake_rank import echo
from tests.support.leader_app import leader_app

pytestmark = pytest.mark.integration

TOKEN, OTHER = "engines-0123456789abc", "others-0123456789abcd"
GUARDED = ("/v1/models", "/load", "/leader")
POSTED = ("/v1/completions", "/v1/chat/completions", "/generate", "/drain")


def bearer(secret: str) -> dict[str, str]:
    return Token(secret).headers()


async def test_whoever_knows_the_token_is_served_and_nobody_else_moves_anything(tmp_path: Path) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    async with leader_app(tmp_path, behaviour=echo, door=lambda app: Door(app, lambda: Token(TOKEN))) as app:
        for headers, status, code in (
            ({}, 401, "unauthorized"),
            ({"authorization": f"Basic {TOKEN}"}, 401, "unauthorized"),
            (bearer(OTHER), 403, "forbidden"),
            (bearer(TOKEN + "x"), 403, "forbidden"),
        ):
            answers = [await app.client.get(path, headers=headers) for path in GUARDED]
            asked = {**headers, "x-request-id": "me"}
            answers += [await app.client.post(path, json=body, headers=asked) for path in POSTED]
            for answer in answers:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (status, code)
                assert TOKEN not in answer.text
            assert answers[-1].json()["error"]["request_id"] == "me"
        assert not app.drains
        assert await app.metric("pdcore_engine_requests_total") == 0
        assert (await app.client.post("/generate", json=body, headers=bearer(TOKEN))).status_code == 200
        assert (await app.client.get("/v1/models", headers=bearer(TOKEN))).status_code == 200
        assert {(await app.client.get(path)).status_code for path in OPEN} == {200}


async def test_the_token_of_the_moment_counts(tmp_path: Path) -> None:
    tokens = [Token(TOKEN)]
    async with leader_app(tmp_path, door=lambda app: Door(app, lambda: tokens[-1])) as app:
        assert (await app.client.get("/v1/models", headers=bearer(TOKEN))).status_code == 200
        tokens.append(Token(OTHER))
        assert (await app.client.get("/v1/models", headers=bearer(TOKEN))).status_code == 403
        assert (await app.client.get("/v1/models", headers=bearer(OTHER))).status_code == 200


def settings(directory: Path, token: Path | None) -> EngineConfig:
    made = load_settings({"role": "unified", "store": "memory://", "model": str(directory)})
    return replace(made, engine_token_file=token)


def test_a_token_file_that_holds_none_is_named_with_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert token_file(settings(tmp_path, None)) is None
    for text in ("", "short", f"{TOKEN}\n{OTHER}"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="--engine-token-file / PDCORE_ENGINE_TOKEN_FILE") as wrong:
            token_file(settings(tmp_path, path))
        assert TOKEN not in str(wrong.value)
    path.write_text(f"{TOKEN}\n")
    read = token_file(settings(tmp_path, path))
    assert read is not None
    assert read.value == Token(TOKEN)
