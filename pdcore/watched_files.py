"""Files that are read at the start and again whenever they change: keys, tokens, certificates.

A file that cannot be read at the start ends the process. Later what was read last goes on, which is logged once and
shown as a metric: a half-written file must lock nobody out, and an empty one let nobody in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from pdcore.clock import Clock
from pdcore.errors import ConfigError
from pdcore.telemetry import logger

LOOK_EVERY_S: Final = 1.0

T_co = TypeVar("T_co", covariant=True)
_Mark = tuple[tuple[int, int, int], ...]

_log = logger(__name__)


class WatchedFiles(Generic[T_co]):
    """What ``read`` makes of ``paths``; ``setting`` is what names them. Mutable: value, mark and ``error``.

    ``read`` raises ValueError or OSError, in words that repeat nothing of a secret.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T_co], setting: str) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._setting = setting
        self._mark: _Mark = ()
        self._value: T_co | None = None
        self.error: str | None = None

    @property
    def value(self) -> T_co:
        """What was read last; only after :meth:`load`."""
        assert self._value is not None, "used before load"
        return self._value

    def load(self) -> None:
        """Read for the first time; raises ConfigError."""
        try:
            self._take()
        except (OSError, ValueError) as wrong:
            raise ConfigError(f"{self._setting}: {self._shown}: {_words(wrong)}") from None

    def refresh(self) -> None:
        """Read again if something has changed since it was read well."""
        try:
            if self._look() == self._mark:
                self.error = None
                return
            self._take()
        except (OSError, ValueError) as wrong:
            self._complain(_words(wrong))
            return
        self.error = None
        _log.info("file read again", setting=self._setting, file=self._shown)

    def _take(self) -> None:
        mark = self._look()
        self._value = self._read()
        self._mark = mark

    def _look(self) -> _Mark:
        states = [path.stat() for path in self._paths]
        return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)

    def _complain(self, why: str) -> None:
        if why != self.error:
            _log.error("file not read, what it held before counts", setting=self._setting, reason=why)
        self.error = why

    @property
    def _shown(self) -> str:
        return ", ".join(map(str, self._paths))


def _words(wrong: OSError | ValueError) -> str:
    if isinstance(wrong, UnicodeDecodeError):
        return "is not UTF-8"
    return wrong.strerror or str(wrong) if isinstance(wrong, OSError) else str(wrong)


async def watch(files: Sequence[WatchedFiles[object]], clock: Clock) -> None:
    """For ever: read again what has changed."""
    while True:
        await clock.sleep(LOOK_EVERY_S)
        for one in files:
            one.refresh()
