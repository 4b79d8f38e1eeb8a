"""Whole server-sent events out of chunks cut anywhere, and what the router must know of them. Pure.

:class:`EventCutter` turns chunks into whole events, bytes untouched. :class:`StreamReader` judges each event on the
side: has the answer finished, is it an error, is it garbage, is it the one ``[DONE]``. A tail that never became a whole
event is never handed out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from pdcore.errors import ApiError

MAX_EVENT_BYTES: Final = 4 << 20
DONE: Final = b"data: [DONE]\n\n"

_END: Final = re.compile(rb"\n\r?\n")
_OVERLAP: Final = 2  # the end mark without its last byte

EventKind = Literal["data", "done", "error", "comment", "garbage"]


class EventTooLarge(Exception):
    """One event grew past the bound; the stream cannot go on."""


class EventCutter:
    """Collects at most one unfinished event of ``max_bytes``."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """Every event that ``chunk`` completes, with its blank line. Raises :class:`EventTooLarge`."""
        seen = max(0, len(self._pending) - _OVERLAP)
        self._pending += chunk
        while (end := _END.search(self._pending, seen)) is not None:
            event = bytes(self._pending[: end.end()])
            del self._pending[: end.end()]
            seen = 0
            yield event
        if len(self._pending) > self._max_bytes:
            raise EventTooLarge(f"an event is larger than {self._max_bytes} bytes")

    @property
    def pending(self) -> int:
        """Bytes of the unfinished event."""
        return len(self._pending)


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    finish_reason: str | None = None
    error: Any = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


class StreamReader:
    """Follows one stream of events. ``finished``: a finish reason was seen, so a clean end is a success."""

    def __init__(self) -> None:
        self.finished = False

    def read(self, event: bytes) -> EventKind:
        """What ``event`` is; remembers whether the answer has finished."""
        data = event_data(event)
        if data is None:
            return "comment"
        if data == b"[DONE]":
            return "done"
        try:
            chunk = _CHUNK.decode(data)
        except msgspec.ValidationError:
            return _unfamiliar(data)
        except (msgspec.DecodeError, RecursionError):
            return "garbage"
        if chunk.error is not None:
            return "error"
        if chunk.finish_reason or any(choice.finish_reason for choice in chunk.choices):
            self.finished = True
        return "data"


def _unfamiliar(data: bytes) -> EventKind:
    """JSON of a shape the router does not know is the engine's business; half JSON is garbage."""
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return "garbage"
    return "data"


def event_data(event: bytes) -> bytes | None:
    """The event's data, lines joined; None when it has none (comments, ids, retry hints)."""
    lines = [_field(line) for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _field(line: bytes) -> bytes:
    value = line[len(b"data:") :]
    return value[1:] if value.startswith(b" ") else value


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that failed after its first byte."""
    return b"data: " + json.dumps(error.body(request_id)).encode() + b"\n\n"


def error_object(body: bytes) -> dict[str, object] | None:
    """The ``error`` object of an engine's JSON body, if that is what the body is."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else None


def is_json_object(body: bytes) -> bool:
    """True for the only kind of body an engine's complete answer can have."""
    try:
        return isinstance(msgspec.json.decode(body, type=dict[str, msgspec.Raw]), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def rename_room(document: bytes, room: int) -> bytes:
    """A ``/generate`` answer with the client's own name for its room; anything else comes back as it is."""
    try:
        fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return document
    if "bootstrap_room" not in fields:
        return document
    return msgspec.json.encode({**fields, "bootstrap_room": room})


def rename_room_in_event(event: bytes, room: int) -> bytes:
    """The same for one event of a ``/generate`` stream."""
    data = event_data(event)
    if data is None or data == b"[DONE]":
        return event
    renamed = rename_room(data, room)
    return event if renamed == data else b"data: " + renamed + b"\n\n"
