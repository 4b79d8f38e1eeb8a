"""Logs: one event per line, the same field names everywhere.

``configure`` is called once by each process's main. Fields that hold for the whole process (role, instance_id,
incarnation, rank) are bound there; fields of one request (request_id, room) with :func:`bound`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import msgspec
import structlog

LogFormat = Literal["text", "json"]
Logger = structlog.stdlib.BoundLogger
Recorder = Callable[[str, dict[str, object]], None]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(log_format: LogFormat, level: str, **process_fields: object) -> None:
    """Write every log line of this process to standard error in ``log_format``.

    Library loggers (uvicorn, grpc) go through the same processors, so that one process speaks one format. Our own
    lines do not go through theirs: that would double what a line costs.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.processors.JSONRenderer(_to_json) if log_format == "json" else _PrintableLogfmt()
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_Lines(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    for chatty in ("httpx", "httpcore", "asyncio", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, _LEVELS[level]))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**process_fields)
    global _recorder
    _recorder = _json_recorder(_Lines(sys.stderr), _LEVELS[level]) if log_format == "json" else None


class _PrintableLogfmt:
    """Text that drives no terminal: what others wrote, a key of the store say, is escaped where it cannot be printed."""

    def __init__(self) -> None:
        self._render = structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], drop_missing=True, bool_as_flag=False
        )

    def __call__(
        self, log: structlog.typing.WrappedLogger, method: str, fields: structlog.typing.EventDict
    ) -> str:
        line = self._render(log, method, fields)
        return line if line.isprintable() else "".join(map(_printable, line))


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _to_json(line: object, default: Callable[[object], object]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=default).decode()
    except (UnicodeEncodeError, OverflowError, TypeError):  # half a surrogate pair, a huge number, an odd key
        return json.dumps(line, default=default)


def _json_recorder(lines: _Lines, level: int) -> Recorder:
    """What the processors of a logger make of a line, without asking them one by one."""

    def record(event: str, fields: dict[str, object]) -> None:
        if level <= logging.INFO:
            line = {**structlog.contextvars.get_contextvars(), **fields, "event": event, "level": "info"}
            line["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            lines.info(_to_json(line, repr))

    return record


class _Lines:
    """Writes finished lines to ``stream``. One that nobody reads any more ends no process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, *_: object) -> _Lines:
        return self

    def info(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return

    debug = warning = error = critical = info


_recorder: Recorder | None = None


def logger(name: str) -> Logger:
    """The logger of one module; ``name`` is its ``__name__``."""
    return structlog.stdlib.get_logger(name)


_log: Final = logger(__name__)


def record(event: str, fields: dict[str, object]) -> None:
    """Write one line at info of what happens all the time, a request say: as a logger would, for a third of its price."""
    if _recorder is None:
        _log.info(event, **fields)
    else:
        _recorder(event, fields)


def bind(**fields: object) -> None:
    """Add fields to every later line of this process or task (for what is known only after the start)."""
    structlog.contextvars.bind_contextvars(**fields)


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Add ``fields`` to every line logged inside the block, in this task and its children."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield
