"""The one log of a supervised cluster: every member's lines, each behind its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TextIO

SUPERVISOR: Final = "pdcore"
_COLOURS: Final = (36, 33, 32, 35, 34, 31)


class PrefixedLog:
    """Writes ``name | line`` to ``out``, names aligned, and remembers each member's last words."""

    def __init__(self, out: TextIO, names: Iterable[str]) -> None:
        self._out = out
        self._names = (SUPERVISOR, *names)
        self._prefixes = _prefixes(self._names, coloured=out.isatty())
        self._last: dict[str, str] = {}

    def line(self, name: str, text: str) -> None:
        """One line of member ``name``, who may be new."""
        if name not in self._prefixes:
            self._names = (*self._names, name)
            self._prefixes = _prefixes(self._names, coloured=self._out.isatty())
        if text.strip():
            self._last[name] = text
        self._out.write(f"{self._prefixes[name]}{text}\n")
        self._out.flush()

    def say(self, text: str) -> None:
        """One line of the supervisor itself."""
        self.line(SUPERVISOR, text)

    def last(self, name: str) -> str | None:
        """The newest line of ``name`` that says anything."""
        return self._last.get(name)


def _prefixes(names: tuple[str, ...], *, coloured: bool) -> dict[str, str]:
    width = max(map(len, names))
    plain = {name: f"{name:<{width}} | " for name in names}
    if not coloured:
        return plain
    return {
        name: f"\033[{_COLOURS[place % len(_COLOURS)]}m{prefix}\033[0m"
        for place, (name, prefix) in enumerate(plain.items())
    }
