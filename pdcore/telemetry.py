"""Logs: one event per line, the same field names everywhere.

``configure`` is called once by each process's main. Fields that hold for the whole process (role, instance_id,
incarnation, rank) are bound there; fields of one request (request_id, room) with :func:`bound`.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import msgspec
import structlog

LogFormat = Literal["text", "json"]
LATE_S: Final = 0.05
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
    lines = _Lines(sys.stderr)
    atexit.register(lines.write)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lines,
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
    global _recorder, _process_fields
    _recorder = _json_recorder(lines, _LEVELS[level]) if log_format == "json" else None
    _process_fields = process_fields


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
    seconds, second = 0, ""

    def record(event: str, fields: dict[str, object]) -> None:
        nonlocal seconds, second
        if level > logging.INFO:
            return
        now = time.time()
        if int(now) != seconds:
            seconds = int(now)
            second = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        timestamp = f"{second}.{int(now % 1 * 1e6):06d}Z"
        line = {**_process_fields, **fields, "event": event, "level": "info", "timestamp": timestamp}
        lines.later(_to_json(line, repr))

    return record


class _Lines:
    """Writes finished lines to ``stream``. One that nobody reads any more ends no process.

    Mutable: ``_late``, lines that wait for a moment so that many can be written at once; none ever overtakes another.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._late: list[str] = []

    def __call__(self, *_: object) -> _Lines:
        return self

    def info(self, line: str) -> None:
        self._late.append(line)
        self.write()

    debug = warning = error = critical = info

    def later(self, line: str) -> None:
        """Write ``line`` soon; at once where there is no event loop to wait in."""
        self._late.append(line)
        if len(self._late) == 1:
            try:
                asyncio.get_running_loop().call_later(LATE_S, self.write)
            except RuntimeError:
                self.write()

    def write(self) -> None:
        """Write what waits."""
        late, self._late = self._late, []
        if not late:
            return
        try:
            self._stream.write("\n".join(late) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return


_recorder: Recorder | None = None
_process_fields: dict[str, object] = {}


def logger(name: str) -> Logger:
    """The logger of one module; ``name`` is its ``__name__``."""
    return structlog.stdlib.get_logger(name)


_log: Final = logger(__name__)


def record(event: str, fields: dict[str, object]) -> None:
    """One line at info of what happens all the time, a request say: as a logger would write it, for a fifth of its price.

    It may be written up to :data:`LATE_S` later, together with others; what :func:`bound` adds is not in it.
    """
    if _recorder is None:
        _log.info(event, **fields)
    else:
        _recorder(event, fields)


def bind(**fields: object) -> None:
    """Add fields to every later line of this process or task (for what is known only after the start)."""
    _process_fields.update(fields)
    structlog.contextvars.bind_contextvars(**fields)


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Add ``fields`` to every line logged inside the block, in this task and its children."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield
