"""Versions of engines against the ranges that recipes declare (``>=X``). Pure.

Ranges are advice. A local build (``0.27.0+abc``) or a pre-release may have anything in it, so neither is ever called too
old; for what depends on a version without being advice, the numbers before such a suffix count.
"""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(r"v?(\d+(?:\.\d+)*)(?P<rest>.*)", re.DOTALL)


def floor_of(versions: str) -> tuple[int, ...]:
    """The numbers of ``>=X``; ValueError for any other range."""
    release = _release(versions.removeprefix(">=")) if versions.startswith(">=") else None
    if release is None or release[1]:
        raise ValueError(f"{versions!r} is not a range '>=X'")
    return release[0]


def is_at_least(version: str | None, versions: str) -> bool | None:
    """Whether the numbers of ``version`` are in ``versions``; None where they cannot be read or there are none."""
    release = None if version is None else _release(version)
    if release is None:
        return None
    return _padded(release[0]) >= _padded(floor_of(versions))


def is_provably_below(version: str | None, versions: str | None) -> bool:
    """Whether ``version`` is a plain release outside ``versions``."""
    release = None if version is None else _release(version)
    if release is None or versions is None or release[1]:
        return False
    return _padded(release[0]) < _padded(floor_of(versions))


def _release(version: str) -> tuple[tuple[int, ...], str] | None:
    """The numbers, and whatever follows them."""
    found = _VERSION.fullmatch(version.strip())
    if found is None or len(found[1]) > 64:
        return None
    return tuple(map(int, found[1].split("."))), found["rest"]


def _padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return (*numbers, *(0 for _ in range(8 - len(numbers))))
