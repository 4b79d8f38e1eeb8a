"""A model's chat template: messages in, the prompt's text out, rendered in Jinja's immutable sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Never

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from pdcore.engine.model.directory import refuse
from pdcore.errors import ApiError

Message = Mapping[str, object]
Tool = Mapping[str, object]

FILE: Final = "chat_template.jinja"
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """The templates of one model; a model may have one of its own for requests with tools, or none at all."""

    def __init__(self, templates: Mapping[str, jinja2.Template], tokens: Mapping[str, str]) -> None:
        self._templates = templates
        self._tokens = tokens

    @classmethod
    def from_directory(cls, directory: Path, tokenizer_config: Mapping[str, object]) -> ChatTemplate:
        """Compile what the directory holds; ConfigError when a template does not compile."""
        environment = _environment()
        try:
            templates = {
                name: environment.from_string(source)
                for name, source in _sources(directory, tokenizer_config).items()
            }
        except jinja2.TemplateError as wrong:
            raise refuse(directory, f"the chat template is not valid: {wrong}") from wrong
        return cls(templates, _special_tokens(tokenizer_config))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt up to where the assistant's answer begins. ApiError for messages the template refuses.

        A message's keys whose value is None are left out, as a template would print them. ``arguments`` are what else
        this template may know (``enable_thinking``), and stand in for nothing it is given anyway.
        """
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise ApiError("invalid_request", "the model has no chat template; use /v1/completions")
        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            more = {"documents": None, **(arguments or {}), **self._tokens}
            return template.render({**more, "messages": given, "tools": tools, "add_generation_prompt": True})
        # Templates are programs over a client's messages: a key that is missing, an int where text belongs.
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as wrong:
            message = f"messages: the model's chat template refuses them: {wrong}"
            raise ApiError("invalid_request", message, param="messages") from wrong


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what an assistant said, for training; here its body is simply printed."""

    tags: Final = {"generation"}  # type: ignore[misc]

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> Never:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    # A template's "today" is the machine's local date, as in the library these templates are written for.
    return datetime.datetime.now().strftime(form)


def _sources(directory: Path, tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    file = directory / FILE
    if file.is_file():
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as wrong:
            raise refuse(directory, f"{FILE} cannot be read: {wrong}") from wrong
    given = tokenizer_config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    listed = given if isinstance(given, list) else []
    return {
        item["name"]: item["template"]
        for item in listed
        if isinstance(item, dict)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("template"), str)
    }


def _special_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _TOKENS:
        value = tokenizer_config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found
