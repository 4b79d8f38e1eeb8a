"""What a request wants continued: text, token ids, or a conversation; one or several of the first two. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pdcore.engine.fields import Body, kind_of, listed, mapping, text, token_ids, wrong

MOST_PROMPTS: Final = 1024
MOST_MESSAGES: Final = 4096
MOST_TOOLS: Final = 128
LONGEST_NAME: Final = 256
ROLES: Final = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A chat: each message has ``role`` and ``content``, both text, and what else a template may want of it.

    ``tools`` and ``arguments`` go to the model's chat template as they came; nothing here acts on them.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)


Prompt = str | tuple[int, ...] | Conversation


def completion_prompts(body: Body, vocab_size: int) -> tuple[Prompt, ...]:
    """``prompt``: a string, token ids, or a list of either. ApiError 400 for anything else, and for an empty one."""
    value = body.get("prompt")
    if value is None:
        raise wrong("prompt", "is missing")
    if isinstance(value, str):
        return (_non_empty("prompt", value),)
    if not isinstance(value, list):
        raise wrong("prompt", "must be a string, token ids, or a list of either", value)
    return prompt_list("prompt", value, vocab_size)


def prompt_list(name: str, values: Sequence[object], vocab_size: int) -> tuple[Prompt, ...]:
    """One prompt of token ids, or several prompts of one kind."""
    if not values:
        raise wrong(name, "is empty")
    kinds = {type(value) for value in values}
    if not kinds & {str, list}:
        return (token_ids(name, values, vocab_size),)
    if len(kinds) > 1:
        other = next(place for place, value in enumerate(values) if type(value) is not type(values[0]))
        raise wrong(f"{name}[{other}]", f"must be of the same kind as {name}[0]: text, or token ids")
    if len(values) > MOST_PROMPTS:
        raise wrong(name, f"holds {len(values)} prompts; at most {MOST_PROMPTS} are supported")
    return tuple(_item(f"{name}[{place}]", value, vocab_size) for place, value in enumerate(values))


def _item(name: str, value: object, vocab_size: int) -> Prompt:
    if isinstance(value, str):
        return _non_empty(name, value)
    assert isinstance(value, list)
    if not value:
        raise wrong(name, "is empty")
    return token_ids(name, value, vocab_size)


def _non_empty(name: str, prompt: str) -> str:
    if not prompt:
        raise wrong(name, "is empty")
    return prompt


def conversation(body: Body) -> Conversation:
    """``messages`` with their ``tools``. ApiError 400 naming the message and field at fault."""
    value = body.get("messages")
    if value is None:
        raise wrong("messages", "is missing")
    if not isinstance(value, list):
        raise wrong("messages", "must be a list", value)
    if not 1 <= len(value) <= MOST_MESSAGES:
        raise wrong("messages", f"must hold 1 to {MOST_MESSAGES} messages, and holds {len(value)}")
    return Conversation(
        messages=tuple(_message(f"messages[{i}]", item) for i, item in enumerate(value)),
        tools=_tools(body),
        arguments=mapping(body, "chat_template_kwargs"),
    )


def _tools(body: Body) -> tuple[Mapping[str, object], ...] | None:
    """None also when the choice is that none may be called."""
    given = listed(body, "tools", MOST_TOOLS)
    tools = tuple(_tool(f"tools[{place}]", value) for place, value in enumerate(given))
    choice = body.get("tool_choice")
    if choice not in (None, "none", "auto"):
        raise wrong(
            "tool_choice", "asks for something this engine does not support: it never forces a call", choice
        )
    return tools if tools and choice != "none" else None


def _tool(place: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise wrong(place, "must be an object", value)
    if value.get("type") != "function":
        raise wrong(f"{place}.type", 'must be "function"', value.get("type"))
    function = mapping(value, "function")
    if text(function, "name", LONGEST_NAME) is None:
        raise wrong(f"{place}.function.name", "is missing")
    return value


def _message(place: str, value: object) -> Message:
    if not isinstance(value, dict):
        raise wrong(place, "must be an object", value)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{place}.role", f"must be one of {', '.join(ROLES)}", role)
    content = _content(f"{place}.content", value.get("content"))
    if not content and role not in ("assistant", "tool"):
        raise wrong(f"{place}.content", "is empty")
    message: dict[str, object] = {"role": role, "content": content}
    if value.get("tool_calls") is not None:
        message["tool_calls"] = _tool_calls(f"{place}.tool_calls", value["tool_calls"])
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value.get(name) is not None:
            message[name] = _string(f"{place}.{name}", value[name])
    return message


def _tool_calls(place: str, value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or len(value) > MOST_TOOLS:
        raise wrong(place, f"must be a list of at most {MOST_TOOLS} calls, not {kind_of(value)}")
    return [_tool_call(f"{place}[{number}]", call) for number, call in enumerate(value)]


def _tool_call(place: str, call: object) -> Mapping[str, object]:
    """OpenAI's clients send the arguments as JSON text; templates print them as what that text means."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise wrong(place, "must be an object with a function", call)
    _string(f"{place}.function.name", function.get("name"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        meant = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": meant}} if isinstance(meant, dict) else call


def _string(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(place, "must be a string", value)
    return value


def _content(place: str, value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise wrong(place, "must be a string or a list of text parts", value)
    return "\n".join(_text_part(f"{place}[{i}]", part) for i, part in enumerate(value))


def _text_part(place: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise wrong(place, "is no text part; only text is supported")
    return _string(f"{place}.text", part.get("text"))
