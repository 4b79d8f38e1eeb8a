"""The two shapes of ``/generate``: the mission's own, and SGLang's. Pure.

A request for one answer gets an object, any other a list of them, and each event of a stream says by ``index`` which
answer it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pdcore.engine.logprobs import completion_logprobs, sglang_logprobs
from pdcore.engine.openai import ChatShape, Choice, CompletionShape, Head, Json, Shape, Usage
from pdcore.engine.requests import Api, GenerationRequest
from pdcore.engine.transcript import Piece

_OPENAI: Final[Mapping[Api, type[ChatShape] | type[CompletionShape]]] = {
    "chat": ChatShape,
    "completions": CompletionShape,
}


def shape_of(request: GenerationRequest, head: Head) -> Shape:
    """The answer shape that ``request`` is to be answered in."""
    if request.api == "generate":
        return SglangShape(head) if request.is_sglang else GenerateShape(head)
    return _OPENAI[request.api](head)


@dataclass(frozen=True, slots=True)
class GenerateShape:
    """``output`` is the text, or in a stream what is new of it."""

    head: Head

    def whole(self, choices: Sequence[Choice], usage: Usage) -> object:
        return _one_or_all([self._ended(one, one.text) for one in choices])

    def opening(self, choices: Sequence[Choice]) -> tuple[Json, ...]:
        return ()

    def piece(self, choice: Choice, piece: Piece) -> tuple[Json, ...]:
        documents = []
        if piece.text or piece.scored:
            news = {**self._named(choice), "output": piece.text, "finish_reason": None}
            documents.append(news | ({"logprobs": completion_logprobs(piece.scored)} if piece.scored else {}))
        if piece.finish_reason is not None:
            documents.append(self._ended(choice, "", with_logprobs=False))
        return tuple(documents)

    def closing(self, usage: Usage) -> tuple[Json, ...]:
        return ()

    def _named(self, choice: Choice) -> Json:
        named: Json = {"request_id": self.head.request_id, "bootstrap_room": self.head.rooms[choice.index]}
        return named | ({"index": choice.index} if len(self.head.rooms) > 1 else {})

    def _ended(self, choice: Choice, text: str, *, with_logprobs: bool = True) -> Json:
        document = {
            **self._named(choice),
            "output": text,
            "finish_reason": choice.finish_reason,
            "prompt_tokens": choice.prompt_tokens,
            "completion_tokens": choice.completion_tokens,
        }
        if self.head.logprobs and with_logprobs:
            document["logprobs"] = completion_logprobs(choice.scored)
        return document


@dataclass(frozen=True, slots=True)
class SglangShape:
    """SGLang's; every event of a stream has the whole answer so far, as its clients expect."""

    head: Head

    def whole(self, choices: Sequence[Choice], usage: Usage) -> object:
        return _one_or_all([self._so_far(one) for one in choices])

    def opening(self, choices: Sequence[Choice]) -> tuple[Json, ...]:
        return ()

    def piece(self, choice: Choice, piece: Piece) -> tuple[Json, ...]:
        if not (piece.text or piece.scored or piece.finish_reason):
            return ()
        return (self._so_far(choice),)

    def closing(self, usage: Usage) -> tuple[Json, ...]:
        return ()

    def _so_far(self, one: Choice) -> Json:
        about: Json = {
            "id": self.head.request_id,
            "finish_reason": _reason(one),
            "prompt_tokens": one.prompt_tokens,
            "completion_tokens": one.completion_tokens,
            "cached_tokens": one.cached_tokens,
        }
        if self.head.logprobs:
            about |= sglang_logprobs(one.scored)
        document: Json = {"text": one.text, "output_ids": one.token_ids, "meta_info": about}
        return document | ({"index": one.index} if len(self.head.rooms) > 1 else {})


def _reason(one: Choice) -> Json | None:
    if one.finish_reason is None:
        return None
    return {"type": one.finish_reason} | (
        {"length": one.completion_tokens} if one.finish_reason == "length" else {}
    )


def _one_or_all(documents: list[Json]) -> object:
    return documents[0] if len(documents) == 1 else documents
