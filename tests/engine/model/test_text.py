"""Prompts become tokens; what cannot is the client's mistake, and what is broken in the directory is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdcore.engine.model.text import TextCodec
from pdcore.errors import ApiError, ConfigError
from tests.engine.model.conftest import TinyModel
from tests.support.tiny_models import EOS_TOKEN_IDS, VOCAB_SIZE, write_tiny_llama

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def codec(tiny_model: TinyModel) -> TextCodec:
    return TextCodec.from_directory(tiny_model("llama"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def with_template(directory: Path, template: object) -> TextCodec:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return TextCodec.from_directory(directory)


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def test_text_comes_back(codec: TextCodec) -> None:
    assert codec.decode(codec.encode("Ça va? 👍")) == "Ça va? 👍"
    assert codec.vocab_size == VOCAB_SIZE
    assert codec.eos_token_ids == tuple(sorted(EOS_TOKEN_IDS))


def test_a_chat_ends_where_the_assistant_begins(codec: TextCodec) -> None:
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert codec.encode_chat(user("Hi")) == codec.encode(expected)
    assert codec.encode_chat(user("Hi"))[0] == 1


def test_tools_reach_the_template(codec: TextCodec) -> None:
    with_tools = codec.encode_chat(user("Hi"), tools=[{"name": "zähler"}])
    assert codec.decode(with_tools).startswith('system\ntools: [{"name": "zähler"}]')


def test_a_model_may_have_a_template_of_its_own_for_tools(directory: Path) -> None:
    codec = with_template(
        directory,
        [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].name }}"}],
    )
    assert codec.encode_chat(user("x")) == codec.encode("plain")
    assert codec.encode_chat(user("x"), tools=[{"name": "named"}]) == codec.encode("named")


def test_a_template_file_wins(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("from the file")
    codec = TextCodec.from_directory(directory)
    assert codec.encode_chat(user("x")) == codec.encode("from the file")


def test_training_marks_of_a_template_are_only_printed(directory: Path) -> None:
    codec = with_template(directory, "a{% generation %}b{{ messages[0].content }}{% endgeneration %}c")
    assert codec.encode_chat(user("X")) == codec.encode("abXc")


def test_keys_without_value_are_left_out(directory: Path) -> None:
    codec = with_template(directory, "{{ 'name' in messages[0] }}")
    assert codec.decode(codec.encode_chat([{"role": "user", "content": "x", "name": None}])) == "False"


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[0].content + 1 }}", "{{ messages[7].x }}"],
)
def test_messages_the_template_refuses_are_the_clients_mistake(directory: Path, template: str) -> None:
    with pytest.raises(ApiError, match="chat template refuses") as caught:
        with_template(directory, template).encode_chat(user("x"))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages")


def test_a_template_cannot_reach_out_of_its_sandbox(directory: Path) -> None:
    codec = with_template(directory, "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}")
    with pytest.raises(ApiError):
        codec.encode_chat(user("x"))


def test_a_model_without_template_says_so(directory: Path) -> None:
    with pytest.raises(ApiError, match="no chat template"):
        with_template(directory, None).encode_chat(user("x"))


def test_lone_surrogates_are_refused(codec: TextCodec) -> None:
    with pytest.raises(ApiError, match="not valid Unicode"):
        codec.encode("a\ud800b")
    with pytest.raises(ApiError, match="not valid Unicode"):
        codec.encode_chat(user("a\ud800b"))


def test_a_broken_template_is_found_at_start(directory: Path) -> None:
    with pytest.raises(ConfigError, match="the chat template is not valid"):
        with_template(directory, "{% for %}")


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_is_one_sentence(directory: Path, content: bytes) -> None:
    (directory / "tokenizer.json").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        TextCodec.from_directory(directory)
    (sentence,) = caught.value.problems
    assert "tokenizer.json is" in sentence
    assert "\n" not in sentence


def test_a_missing_tokenizer_is_one_sentence(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        TextCodec.from_directory(directory)
