"""A machine as a doctor sees it: files, directories, and programs that answer questions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

ANSWER_S: Final = 10.0


class Host(Protocol):
    """What may be asked of a machine. Nothing here changes it."""

    def text(self, path: str) -> str | None:
        """A file's text, None when it is not there or cannot be read."""
        ...

    def paths(self, pattern: str) -> Sequence[str]:
        """Absolute paths that match the absolute ``pattern``, sorted."""
        ...

    def program(self, name: str) -> str | None:
        """Where a program lies, None when it is not there."""
        ...

    def run(self, *command: str) -> str | None:
        """What a program says, None when it fails or says nothing in time."""
        ...

    @property
    def environ(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """The machine this runs on. ``root`` stands for ``/``; ``also`` are where programs lie that no path names."""

    environ: Mapping[str, str]
    root: Path = Path("/")
    also: Sequence[str] = field(default=())

    def text(self, path: str) -> str | None:
        try:
            return self._at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def paths(self, pattern: str) -> Sequence[str]:
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def program(self, name: str) -> str | None:
        for directory in self.also:
            if self._at(f"{directory}/{name}").is_file():
                return str(self._at(f"{directory}/{name}"))
        return shutil.which(name, path=self.environ.get("PATH"))

    def run(self, *command: str) -> str | None:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")
