"""One thing a person can set, and the checks a value must pass.

A parser takes text and returns the value, or raises ValueError with the end of a sentence that begins with the flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Parse = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing a person can set. ``name`` is the dataclass field, ``parse`` raises ValueError with a sentence.

    A ``secret`` has no flag, because everybody on the machine can read a command line, and its value is never shown.
    ``other_flags`` and ``other_variables`` are names that people know from elsewhere; ours come first. With ``many`` the
    flag takes every word up to the next one, and ``parse`` gets them with blanks between.
    """

    name: str
    help: str
    parse: Parse
    default: str | None = None
    metavar: str = "TEXT"
    secret: bool = False
    many: bool = False
    other_flags: tuple[str, ...] = ()
    other_variables: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling of the flag."""
        return (self.flag, *self.other_flags)

    @property
    def variable(self) -> str:
        return "PDCORE_" + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that is read, the first that is set counts."""
        return (self.variable, *self.other_variables)

    @property
    def shown(self) -> str:
        """How messages name it."""
        return self.variable if self.secret else f"{self.flag} / {self.variable}"


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


def host_and_port(value: str) -> str:
    """``HOST:PORT``; an IPv6 address in brackets."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{value!r} is not HOST:PORT with a port from 1 to 65535")
    return value


def curve_secret(value: str) -> str:
    """A secret key as ``zmq.curve_keypair`` makes it."""
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    if len(value) != 40 or not set(value) <= set(z85):
        raise ValueError("the value must be 40 characters of Z85")
    return value


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
