"""OpenAI's two shapes of answers, and what all shapes share. Pure: values in, dictionaries out.

A :class:`Shape` belongs to one request, which may have several choices. It gives the whole answer, or the documents of a
stream in the order: ``opening`` (may be nothing), ``piece`` for what is new of a choice, ``closing`` (usage if asked
for).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from pdcore.engine.logprobs import Scored, chat_logprobs, completion_logprobs
from pdcore.engine.requests import Api
from pdcore.engine.transcript import Piece

Json = dict[str, object]

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request. ``cached_tokens`` of its prompts did not have to be computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def document(self) -> Json:
        """As OpenAI writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every document of one answer repeats. ``created`` is in seconds since 1970; ``rooms`` are of its choices.

    ``logprobs``: whether they were asked for. ``resumes``: whether the client has the beginning already.
    """

    id: str
    created: int
    model: str
    include_usage: bool = False
    logprobs: bool = False
    resumes: bool = False
    request_id: str = ""
    rooms: tuple[int | None, ...] = (None,)


@dataclass(slots=True, kw_only=True)
class Choice:
    """One of a request's answers, collected from its pieces."""

    index: int
    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """So far."""
        return "".join(self.texts)

    def add(self, piece: Piece) -> None:
        """What came next."""
        self.texts.append(piece.text)
        self.token_ids += piece.token_ids
        self.scored += piece.scored
        self.completion_tokens += len(piece.token_ids)
        self.finish_reason = piece.finish_reason


class Shape(Protocol):
    """How one endpoint writes an answer."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> object:
        """The complete answer."""
        ...

    def opening(self, choices: Sequence[Choice]) -> tuple[Json, ...]:
        """What comes before any text of a stream."""
        ...

    def piece(self, choice: Choice, piece: Piece) -> tuple[Json, ...]:
        """``piece`` is new of ``choice``, which has it already."""
        ...

    def closing(self, usage: Usage) -> tuple[Json, ...]:
        """What comes after the last piece of a stream."""
        ...


def answer_id(api: Api, unique: str) -> str:
    """The ``id`` of an answer, prefixed as OpenAI's are."""
    return {"chat": "chatcmpl-", "completions": "cmpl-", "generate": "gen-"}[api] + unique


@dataclass(frozen=True, slots=True)
class ChatShape:
    """``/v1/chat/completions``."""

    head: Head

    def whole(self, choices: Sequence[Choice], usage: Usage) -> object:
        return _whole(self.head, "chat.completion", [self._choice(one) for one in choices], usage)

    def opening(self, choices: Sequence[Choice]) -> tuple[Json, ...]:
        if self.head.resumes:
            return ()
        return tuple(self._chunk(one.index, {"role": "assistant", "content": ""}) for one in choices)

    def piece(self, choice: Choice, piece: Piece) -> tuple[Json, ...]:
        documents = []
        if piece.text or piece.scored:
            documents.append(self._chunk(choice.index, {"content": piece.text}, scored=piece.scored))
        if piece.finish_reason is not None:
            documents.append(self._chunk(choice.index, {}, piece.finish_reason))
        return tuple(documents)

    def closing(self, usage: Usage) -> tuple[Json, ...]:
        return _usage_chunk(self.head, "chat.completion.chunk", usage)

    def _choice(self, one: Choice) -> Json:
        message = {"role": "assistant", "content": one.text, "refusal": None}
        logprobs = chat_logprobs(one.scored) if self.head.logprobs else None
        return {
            "index": one.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": one.finish_reason,
        }

    def _chunk(
        self, index: int, delta: Json, finish_reason: str | None = None, scored: Sequence[Scored] = ()
    ) -> Json:
        logprobs = chat_logprobs(scored) if scored else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return _chunk(self.head, "chat.completion.chunk", choice)


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """``/v1/completions``."""

    head: Head

    def whole(self, choices: Sequence[Choice], usage: Usage) -> object:
        return _whole(self.head, "text_completion", [self._choice(one) for one in choices], usage)

    def opening(self, choices: Sequence[Choice]) -> tuple[Json, ...]:
        return ()

    def piece(self, choice: Choice, piece: Piece) -> tuple[Json, ...]:
        documents = []
        if piece.text or piece.scored:
            documents.append(self._chunk(choice.index, piece.text, scored=piece.scored))
        if piece.finish_reason is not None:
            documents.append(self._chunk(choice.index, "", piece.finish_reason))
        return tuple(documents)

    def closing(self, usage: Usage) -> tuple[Json, ...]:
        return _usage_chunk(self.head, "text_completion", usage)

    def _choice(self, one: Choice) -> Json:
        logprobs = completion_logprobs(one.scored) if self.head.logprobs else None
        return {
            "index": one.index,
            "text": one.text,
            "logprobs": logprobs,
            "finish_reason": one.finish_reason,
        }

    def _chunk(
        self, index: int, text: str, finish_reason: str | None = None, scored: Sequence[Scored] = ()
    ) -> Json:
        logprobs = completion_logprobs(scored) if scored else None
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return _chunk(self.head, "text_completion", choice)


def handed_off(request_id: str, rooms: Sequence[int]) -> Json:
    """A prefill leg's answer: the KV cache is in the decode instance's memory."""
    return {
        "request_id": request_id,
        "bootstrap_room": rooms[0] if len(rooms) == 1 else list(rooms),
        "accepted": True,
    }


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


def _whole(head: Head, kind: str, choices: list[Json], usage: Usage) -> Json:
    return _document(head, kind, choices) | {"usage": usage.document()}


def _chunk(head: Head, kind: str, choice: Json) -> Json:
    document = _document(head, kind, [choice])
    return document | {"usage": None} if head.include_usage else document


def _usage_chunk(head: Head, kind: str, usage: Usage) -> tuple[Json, ...]:
    if not head.include_usage:
        return ()
    return (_document(head, kind, []) | {"usage": usage.document()},)
