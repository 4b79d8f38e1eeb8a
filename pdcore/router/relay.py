"""Whole server-sent events out of chunks cut anywhere, and what the router must know of them. Pure.

:class:`EventCutter` turns chunks into whole events, bytes untouched. :class:`StreamReader` judges each event on the
side: has the answer finished, is it an error, is it garbage, is it the one ``[DONE]``. A tail that never became a whole
event is never handed out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from pdcore.errors import ApiError
from pdcore.router.endings import UNREADABLE, EngineError, NotAnAnswer, Said, decode_more

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

    def push(self, chunk: bytes) -> Iterable[bytes]:
        """Every event that ``chunk`` completes, with its blank line. Raises :class:`EventTooLarge`."""
        if not self._pending and is_one_event(chunk):
            return (chunk,)  # as engines send them
        return self._cut(chunk)

    def _cut(self, chunk: bytes) -> Iterator[bytes]:
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


def is_one_event(part: bytes) -> bool:
    """Whether ``part`` is one whole event, told at a glance: False for one that is, but written unusually."""
    return part.endswith(b"\n\n") and part.find(b"\n\n") == len(part) - 2 and b"\r" not in part


_CHUNK: Final = msgspec.json.Decoder(Said)


def goes_on(part: bytes) -> bool:
    """Whether ``part`` is one event that ends nothing, told at a glance: False for one that is written unusually."""
    if not part.startswith(b"data: ") or part.find(b"\n\n") != len(part) - 2:
        return False
    try:
        decode_more(part[6:-2])  # is no JSON where there are more lines than one
    except UNREADABLE:
        return False
    return True


class StreamReader:
    """Follows one stream of events about ``items`` answers.

    ``finished``: every answer has had a finish reason, so a clean end is a success. ``error``: what the engine said
    in the event that :meth:`read` called an error.
    """

    def __init__(self, items: int = 1) -> None:
        self._items = items
        self._ended: set[int] = set()
        self.finished = False
        self.error: EngineError = {}

    def read(self, event: bytes) -> EventKind:
        """What ``event`` is; remembers which answers have finished."""
        if goes_on(event):
            return "data"
        data = event_data(event)
        if data is None:
            return "comment"
        if data == b"[DONE]":
            return "done"
        try:
            said = _CHUNK.decode(data)
        except msgspec.ValidationError:
            return self._unfamiliar(data)
        except UNREADABLE:
            return "garbage"
        return self._judge(said)

    def _judge(self, said: Said) -> EventKind:
        ended = said.endings()
        if not ended and said.error is None:
            return "data"
        failure = said.failure()
        if failure is not None:
            self.error = failure
            return "error"
        self._ended.update(index for index, _ in ended)
        self.finished = len(self._ended) >= self._items
        return "data"

    def _unfamiliar(self, data: bytes) -> EventKind:
        """JSON of a shape the router does not know is the engine's business, errors excepted; half JSON is garbage."""
        try:
            document = msgspec.json.decode(data)
        except UNREADABLE:
            return "garbage"
        return self._judge(Said(error=document.get("error") if isinstance(document, dict) else None))


def error_in_stream(body: bytes) -> EngineError | None:
    """What a complete stream of events reports as its error; raises :class:`NotAnAnswer` where it is unreadable.

    An engine that computes a prompt and sends no token on streams nothing that ends, so its end is not looked for.
    """
    reader = StreamReader()
    for event in EventCutter(max_bytes=len(body)).push(body):
        kind = reader.read(event)
        if kind == "garbage":
            raise NotAnAnswer("an event of the stream is not JSON")
        if kind == "error":
            return reader.error
    return None


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


_ANSWERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]])


def rename_room(document: bytes, room: int) -> bytes:
    """A ``/generate`` answer, or a list of them, with the client's own name for its room; else it comes back as it is."""
    try:
        answers = _ANSWERS.decode(document)
    except UNREADABLE:
        return document
    each = answers if isinstance(answers, list) else [answers]
    if not any("bootstrap_room" in fields for fields in each):
        return document
    renamed = [
        {**fields, "bootstrap_room": room} if "bootstrap_room" in fields else fields for fields in each
    ]
    return msgspec.json.encode(renamed if isinstance(answers, list) else renamed[0])


def rename_room_in_event(event: bytes, room: int) -> bytes:
    """The same for one event of a ``/generate`` stream."""
    data = event_data(event)
    if data is None or data == b"[DONE]":
        return event
    renamed = rename_room(data, room)
    return event if renamed == data else b"data: " + renamed + b"\n\n"
