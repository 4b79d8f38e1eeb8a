"""Requests as almost all of them are, read and checked in one go. Pure.

Whatever is accepted here would be accepted field by field as well (:mod:`pdcore.router.fields`), with the same meaning;
whatever is not is read field by field, which also finds the words for what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from pdcore.router.fields import MAX_LOGPROBS, MAX_SAMPLES, MAX_TOKEN_ID, TABLE, is_internal

_Text = Annotated[str, Meta(min_length=1)]
_Positive = Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-100, le=100)]


class Message(Struct):
    """One of a chat's."""

    role: _Text
    content: str | None = None


class Usual(Struct, kw_only=True):
    """The fields that most requests have none but; ``n`` counts their answers."""

    model: _Text | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None = None
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID)] | None = None
    min_p: _Share | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _Text | list[_Text] | None = None
    ignore_eos: bool | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None


class _Chat(Usual):
    messages: Annotated[list[Message], Meta(min_length=1)]


class _Prompt(Usual):
    prompt: _Text


_CHAT: Final = msgspec.json.Decoder(_Chat)
_PROMPT: Final = msgspec.json.Decoder(_Prompt)
_PLAIN: Final = frozenset(Usual.__struct_fields__)
_HARMLESS: Final = _PLAIN | {"messages", "prompt"}
_TELLING: Final = frozenset(TABLE) - _PLAIN
_OTHER_PROMPTS: Final = frozenset({"text", "input_ids"})


def usual_chat(body: bytes, fields: Mapping[str, object]) -> Usual | None:
    """A chat of plain messages, None for any other one. ``fields`` are those of ``body``, an object."""
    if not _are_plain(fields):
        return None
    try:
        chat = _CHAT.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    says_something = chat.messages[-1].content or any(one.content for one in chat.messages)
    return chat if says_something and _is_consistent(chat) else None


def usual_prompt(body: bytes, fields: Mapping[str, object]) -> Usual | None:
    """A request about one text, None for any other one."""
    if not _are_plain(fields) or not _OTHER_PROMPTS.isdisjoint(fields):
        return None
    try:
        asked = _PROMPT.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return asked if _is_consistent(asked) else None


def _are_plain(fields: Mapping[str, object]) -> bool:
    if fields.keys() <= _HARMLESS:
        return True
    return not any(name not in _HARMLESS and (name in _TELLING or is_internal(name)) for name in fields)


def _is_consistent(asked: Usual) -> bool:
    return bool(asked.stream) or asked.stream_options is None
