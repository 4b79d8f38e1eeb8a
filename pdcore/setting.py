"""One thing a person can set, and the checks a value must pass.

A parser takes text and returns the value, or raises ValueError with the end of a sentence that begins with the flag.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONFIG_FILE: Final = "pdcore.toml"
Parse = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing a person can set. ``name`` is the dataclass field, ``parse`` raises ValueError with a sentence."""

    name: str
    help: str
    parse: Parse
    default: str | None = None
    metavar: str = "TEXT"
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "PDCORE_" + self.name.upper()


def text(value: str) -> str:
    """Any non-empty string."""
    if not value.strip():
        raise ValueError("is empty")
    return value


def name(value: str) -> str:
    """One segment of a key: letters, digits, dot, dash, underscore, colon; at most 128."""
    allowed = all(c.isascii() and (c.isalnum() or c in ".-_:") for c in value)
    if not value or len(value) > 128 or not allowed or value in {".", ".."}:
        raise ValueError(f"{value!r} must be 1 to 128 of A-Z a-z 0-9 . - _ :")
    return value


def integer(low: int, high: int) -> Parse:
    """A whole number within ``low … high``."""

    def parse(value: str) -> int:
        number = int(value) if value.lstrip("-").isdigit() else None
        if number is None or not low <= number <= high:
            raise ValueError(f"{value!r} must be a whole number from {low} to {high}")
        return number

    return parse


def seconds(low: float, high: float) -> Parse:
    """A duration in seconds within ``low … high``."""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise ValueError(f"{value!r} must be seconds from {low:g} to {high:g}")
        return number

    return parse


def one_of(*choices: str) -> Parse:
    """Exactly one of ``choices``."""

    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} must be one of {', '.join(choices)}")
        return value

    return parse


def flag(value: str) -> bool:
    """true or false."""
    if value not in {"true", "false"}:
        raise ValueError(f"{value!r} must be true or false")
    return value == "true"


def path(value: str) -> Path:
    """A file or directory; whether it exists is its user's business."""
    if not value or "\0" in value:
        raise ValueError(f"{value!r} is not a path")
    return Path(value).expanduser()


def read_file(
    given: str | None,
    section: str,
    settings: Sequence[Setting],
    *,
    sections: Mapping[str, Sequence[Setting]],
) -> tuple[dict[str, str], list[str]]:
    """Values for ``settings`` from the file ``given`` (else ``./pdcore.toml`` if there), and what is wrong in it.

    Keys outside any table hold for every process, those of ``[section]`` only for it. Every table of ``sections`` is
    checked, so that a typo in another process's table shows at once.
    """
    file = Path(given) if given else Path(CONFIG_FILE)
    if not given and not file.is_file():
        return {}, []
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        return {}, [f"--config / PDCORE_CONFIG: cannot read {file}: {wrong}"]
    top = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    known = {
        table: {setting.name for setting in table_settings} for table, table_settings in sections.items()
    }
    everywhere = set().union(*known.values())
    problems = [f"{file}: unknown key {key!r}" for key in top if key not in everywhere]
    problems += [f"{file}: unknown table [{key}]" for key in tables if key not in known]
    for table, names in known.items():
        problems += [
            f"{file}: unknown key {key!r} in [{table}]" for key in tables.get(table, {}) if key not in names
        ]
    wanted = {setting.name for setting in settings}
    merged = {**top, **tables.get(section, {})}
    return {key: _as_text(value) for key, value in merged.items() if key in wanted}, problems


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
