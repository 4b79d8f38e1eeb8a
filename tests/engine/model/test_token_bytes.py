"""What single tokens add to a text, and what a chat template is told besides messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from pdcore.engine.model.chat_template import ChatTemplate
from pdcore.engine.model.text import TextCodec
from tests.engine.model.conftest import TinyModel

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def byte_level(tiny_model: TinyModel) -> TextCodec:
    return TextCodec.from_directory(tiny_model("llama"))


def test_bytes_of_tokens_spell_their_text(byte_level: TextCodec) -> None:
    text = "naïve 漢字 😀"
    tokens = byte_level.encode(text)
    assert b"".join(map(byte_level.token_bytes, tokens)).decode() == text


def test_special_tokens_have_names_and_other_ids_nothing(byte_level: TextCodec) -> None:
    (end, *_) = byte_level.eos_token_ids
    assert byte_level.token_bytes(end).startswith(b"<|")
    assert byte_level.token_bytes(10**6) == b""


def test_vocabularies_of_pieces_spell_spaces_and_lone_bytes_their_own_way(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "\N{LOWER ONE EIGHTH BLOCK}the": 1, "<0xE6>": 2, "x": 3}
    Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    codec = TextCodec.from_directory(tmp_path)
    assert [codec.token_bytes(token) for token in (1, 2, 3)] == [b" the", b"\xe6", b"x"]


def test_a_template_may_be_told_more_but_nothing_else_than_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(
        "{{ enable_thinking }}/{{ messages[0].content }}/{{ tools }}"
    )
    template = ChatTemplate.from_directory(tmp_path, {})
    arguments = {"enable_thinking": False, "messages": [{"content": "forged"}], "tools": "forged"}
    assert template.render([{"role": "user", "content": "hi"}], None, arguments) == "False/hi/None"
