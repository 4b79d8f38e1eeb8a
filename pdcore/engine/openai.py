"""Shapes of answers: OpenAI's two, and ``/generate``'s own. Pure: values in, dictionaries out.

A :class:`Shape` belongs to one request. It gives the whole answer, or the pieces of a stream in the order: ``opening``
(may be nothing), ``piece`` for each new text, ``closing`` (finish reason, then usage if asked for).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from pdcore.engine.requests import Api

Json = dict[str, object]

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int

    def document(self) -> Json:
        """As OpenAI writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every document of one answer repeats. ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    request_id: str = ""
    room: int | None = None


class Shape(Protocol):
    """How one endpoint writes an answer."""

    def whole(self, text: str, finish_reason: str, usage: Usage) -> Json: ...

    def opening(self) -> tuple[Json, ...]: ...

    def piece(self, text: str) -> Json: ...

    def closing(self, finish_reason: str, usage: Usage) -> tuple[Json, ...]: ...


def shape(api: Api, head: Head) -> Shape:
    """The answer shape of ``api``."""
    shapes: dict[Api, type[ChatShape] | type[CompletionShape] | type[GenerateShape]] = {
        "chat": ChatShape,
        "completions": CompletionShape,
        "generate": GenerateShape,
    }
    return shapes[api](head)


def answer_id(api: Api, unique: str) -> str:
    """The ``id`` of an answer, prefixed as OpenAI's are."""
    return {"chat": "chatcmpl-", "completions": "cmpl-", "generate": "gen-"}[api] + unique


@dataclass(frozen=True, slots=True)
class ChatShape:
    """``/v1/chat/completions``."""

    head: Head

    def whole(self, text: str, finish_reason: str, usage: Usage) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return _document(self.head, "chat.completion", [choice]) | {"usage": usage.document()}

    def opening(self) -> tuple[Json, ...]:
        return (self._chunk({"role": "assistant", "content": ""}, None),)

    def piece(self, text: str) -> Json:
        return self._chunk({"content": text}, None)

    def closing(self, finish_reason: str, usage: Usage) -> tuple[Json, ...]:
        return self._chunk({}, finish_reason), *_usage_chunk(self.head, "chat.completion.chunk", usage)

    def _chunk(self, delta: Json, finish_reason: str | None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _chunk(self.head, "chat.completion.chunk", choice)


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """``/v1/completions``."""

    head: Head

    def whole(self, text: str, finish_reason: str, usage: Usage) -> Json:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return _document(self.head, "text_completion", [choice]) | {"usage": usage.document()}

    def opening(self) -> tuple[Json, ...]:
        return ()

    def piece(self, text: str) -> Json:
        return self._chunk(text, None)

    def closing(self, finish_reason: str, usage: Usage) -> tuple[Json, ...]:
        return self._chunk("", finish_reason), *_usage_chunk(self.head, "text_completion", usage)

    def _chunk(self, text: str, finish_reason: str | None) -> Json:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return _chunk(self.head, "text_completion", choice)


@dataclass(frozen=True, slots=True)
class GenerateShape:
    """``/generate``: ``output`` is the text, or in a stream what is new of it."""

    head: Head

    def whole(self, text: str, finish_reason: str, usage: Usage) -> Json:
        return {
            "request_id": self.head.request_id,
            "bootstrap_room": self.head.room,
            "output": text,
            "finish_reason": finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        }

    def opening(self) -> tuple[Json, ...]:
        return ()

    def piece(self, text: str) -> Json:
        return {
            "request_id": self.head.request_id,
            "bootstrap_room": self.head.room,
            "output": text,
            "finish_reason": None,
        }

    def closing(self, finish_reason: str, usage: Usage) -> tuple[Json, ...]:
        return (self.whole("", finish_reason, usage),)


def handed_off(request_id: str, room: int) -> Json:
    """A prefill leg's answer: the KV cache is in the decode instance's memory."""
    return {"request_id": request_id, "bootstrap_room": room, "accepted": True}


def models(names: tuple[str, ...], created: int, context_length: int) -> Json:
    """``/v1/models``."""
    entries = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "pdcore",
            "max_model_len": context_length,
        }
        for name in names
    ]
    return {"object": "list", "data": entries}


def to_json(document: object) -> bytes:
    """``document`` as compact JSON."""
    return msgspec.json.encode(document)


def event(document: object) -> bytes:
    """``document`` as one server-sent event."""
    return b"data: " + to_json(document) + b"\n\n"


def _document(head: Head, kind: str, choices: list[Json]) -> Json:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


def _chunk(head: Head, kind: str, choice: Json) -> Json:
    document = _document(head, kind, [choice])
    return document | {"usage": None} if head.include_usage else document


def _usage_chunk(head: Head, kind: str, usage: Usage) -> tuple[Json, ...]:
    if not head.include_usage:
        return ()
    return (_document(head, kind, []) | {"usage": usage.document()},)
