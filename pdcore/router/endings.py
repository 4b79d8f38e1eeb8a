"""How answers ended, as engines say it in JSON: the shapes a router must know, and nothing more of them. Pure.

OpenAI's answers have ``choices``; the mission's ``/generate`` has ``finish_reason`` itself, SGLang's has it in
``meta_info`` and answers a list for a list. One failed item fails the whole request, also where the engine calls it 200.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from pdcore.errors import PdcoreError
from pdcore.router.finite import with_nulls

FAILED: Final = ("abort", "error")
"""Finish reasons of an item that has no answer."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading bytes that are no JSON raises."""

EngineError = dict[str, object]


class NotAnAnswer(PdcoreError):
    """The body is no JSON object, and no list of at least one."""


class Choice(msgspec.Struct):
    """One of OpenAI's choices."""

    finish_reason: Any = None
    index: int = 0


class MetaInfo(msgspec.Struct):
    """What SGLang says beside the text."""

    finish_reason: Any = None


class Said(msgspec.Struct):
    """One document: a complete answer, one item of a list of them, or one event's data."""

    choices: list[Choice] | None = None
    finish_reason: Any = None
    meta_info: MetaInfo | None = None
    index: int = 0
    error: Any = None

    def endings(self) -> list[tuple[int, object]]:
        """The items that ended with this document, by index, and why."""
        ended = [(one.index, one.finish_reason) for one in self.choices or () if one.finish_reason]
        if self.finish_reason:
            ended.append((self.index, self.finish_reason))
        if self.meta_info is not None and self.meta_info.finish_reason:
            ended.append((self.index, self.meta_info.finish_reason))
        return ended

    def failure(self) -> EngineError | None:
        """The engine's error, if this document reports one."""
        if self.error is not None:
            return self.error if isinstance(self.error, dict) else {"message": str(self.error)[:512]}
        return next((why for _, reason in self.endings() if (why := failed_item(reason)) is not None), None)


class _Running(msgspec.Struct, gc=False):
    """A choice that has not ended."""

    finish_reason: None = None


class _More(msgspec.Struct, gc=False):
    """More of one choice, and no end of anything."""

    choices: tuple[_Running]
    finish_reason: None = None
    meta_info: None = None
    error: None = None


decode_more: Final = msgspec.json.Decoder(_More).decode
"""Reads what almost every event's data is: more of one choice, and no end of anything; raises one of UNREADABLE."""


class _Good(msgspec.Struct, gc=False):
    """A choice that has a whole answer."""

    finish_reason: Literal["stop", "length", "tool_calls"] | None = None


class _Whole(msgspec.Struct, gc=False):
    """A whole answer as almost every one is, without any error."""

    choices: list[_Good] | None = None
    finish_reason: Literal["stop", "length"] | None = None
    meta_info: None = None
    error: None = None


_decode_whole: Final = msgspec.json.Decoder(_Whole).decode
_SAID: Final = msgspec.json.Decoder(Said | list[Said])


def failed_item(reason: object) -> EngineError | None:
    """The error that a finish reason stands for; None for an answer that is complete."""
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind not in FAILED:
        return None
    message = reason.get("message") if isinstance(reason, dict) else None
    return {"message": message if isinstance(message, str) else f"an answer ended with {kind!r}"}


def read_answer(body: bytes) -> tuple[bytes, EngineError | None]:
    """A complete answer as a client may have it, and the error that it reports; raises :class:`NotAnAnswer`."""
    try:
        _decode_whole(body)
    except UNREADABLE:
        return _read_closely(body)
    return body, None


def _read_closely(body: bytes) -> tuple[bytes, EngineError | None]:
    try:
        return body, _error_of(body)
    except UNREADABLE as wrong:
        finite = with_nulls(body)
        if finite == body:
            raise NotAnAnswer("the answer is not a JSON object") from wrong
    try:
        return finite, _error_of(finite)
    except UNREADABLE as wrong:
        raise NotAnAnswer("the answer is not a JSON object") from wrong


def _error_of(body: bytes) -> EngineError | None:
    try:
        said = _SAID.decode(body)
    except msgspec.ValidationError:
        said = _of_unknown_shape(msgspec.json.decode(body))
    items = said if isinstance(said, list) else [said]
    if not items:
        raise NotAnAnswer("the answer is an empty list")
    return next((why for item in items if (why := item.failure()) is not None), None)


def _of_unknown_shape(document: object) -> Said | list[Said]:
    """What a router does not know is the engine's business, except for its errors."""
    if isinstance(document, dict):
        return Said(error=document.get("error"))
    if isinstance(document, list) and all(isinstance(item, dict) for item in document):
        return [Said(error=item.get("error")) for item in document]
    raise NotAnAnswer("the answer is not a JSON object")
