"""One thing that was looked at, how it stands, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``about`` names what was looked at, ``says`` is a sentence; ``todo`` what helps, None when nothing has to."""

    level: Level
    about: str
    says: str
    todo: str | None = None


def ok(about: str, says: str) -> Finding:
    return Finding(level="ok", about=about, says=says)


def warn(about: str, says: str, todo: str) -> Finding:
    return Finding(level="warn", about=about, says=says, todo=todo)


def fail(about: str, says: str, todo: str) -> Finding:
    return Finding(level="fail", about=about, says=says, todo=todo)


def is_failed(findings: Iterable[Finding]) -> bool:
    """Whether anything has to be done before this store can be relied on."""
    return any(finding.level == "fail" for finding in findings)
