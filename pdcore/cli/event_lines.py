"""Events as lines for people, and as JSON for programs. Pure, but for the time zone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from pdcore.registry.history import Told
from pdcore.topology.events import Event

SHORT_INCARNATION: Final = 8
_NAMES: Final = ("instance_id", "router_id", "group", "key")
_SHOWN_APART: Final = frozenset({*_NAMES, "event", "revision", "coalesced", "rank"})
_WIDTHS: Final = (10, 23, 18, 24)


def lines(told: Told) -> Iterator[str]:
    """Revision, time, what, who, details, in columns; first of all what is not known."""
    if told.lost is not None:
        yield _row(told, "gap", "", told.lost)
    for event in told.events:
        yield event_line(event, told.time_ms)


def event_line(event: Event, time_ms: int | None) -> str:
    """One event."""
    fields = event.log_fields()
    fields["coalesced"] = event.coalesced or None
    subject = _quoted(_subject(fields))
    return _columns(event.revision, time_ms, str(fields["event"]), subject, _details(fields))


def document_lines(told: Told) -> Iterator[str]:
    """One JSON object per line, names as in logs; a gap is an object too."""
    if told.lost is not None:
        gap = {"time": shown_time(told.time_ms), "event": "gap", "revision": told.revision}
        yield json.dumps({**gap, "reason": told.lost})
    for event in told.events:
        yield json.dumps({"time": shown_time(told.time_ms), **event.log_fields()})


def shown_time(time_ms: int | None) -> str | None:
    """Local time with its offset; None stays None."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="milliseconds")


def _row(told: Told, kind: str, subject: str, details: str) -> str:
    return _columns(told.revision, told.time_ms, kind, subject, details)


def _columns(revision: int, time_ms: int | None, kind: str, subject: str, details: str) -> str:
    time = "-" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    cells = (f"{revision:>{_WIDTHS[0]}}", time, kind.replace("_", " "), subject)
    aligned = (f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
    return "  ".join((*aligned, details)).rstrip()


def _subject(fields: dict[str, object]) -> str:
    name = next((str(fields[name]) for name in _NAMES if name in fields), "")
    return f"{name}/{fields['rank']}" if "rank" in fields else name


def _details(fields: dict[str, object]) -> str:
    shown = {name: value for name, value in fields.items() if name not in _SHOWN_APART and value is not None}
    if isinstance(incarnation := shown.get("incarnation"), str):
        shown["incarnation"] = incarnation[:SHORT_INCARNATION]
    words = [f"{name}={_quoted(str(value))}" for name, value in shown.items()]
    return " ".join(words + ["coalesced"] * bool(fields["coalesced"]))


def _quoted(text: str) -> str:
    """Bare when nothing in it could be taken for something else; nothing in it moves a terminal's cursor."""
    return text if text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
