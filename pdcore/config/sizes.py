"""Sizes as people write them: ``128k`` tokens, ``20Gi`` of memory. Pure.

For tokens vLLM's spelling counts, because its users have it in their fingers: a small letter is a power of 1,000, a
capital one of 1,024. For memory Kubernetes' does: ``Gi`` is 2^30, ``G`` is 10^9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,9})?)"
_TOKENS: Final = re.compile(_NUMBER + r"\s*([kKmMgG]?)")
_MEMORY: Final = re.compile(_NUMBER + r"\s*([kKMGT]i?)?B?")
_POWER: Final[Mapping[str, int]] = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def tokens(text: str) -> int:
    """How many tokens ``text`` says; ValueError unless that is a whole number above 0."""
    found = _TOKENS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no number of tokens like 131072, 128k (128,000) or 128K (131,072)")
    unit = found[2]
    return _whole(text, found[1], (1024 if unit.isupper() else 1000) ** _POWER[unit.lower()])


def token_count(low: int, high: int) -> Callable[[str], int]:
    """A parser of a setting: a number of tokens within ``low … high``."""

    def parse(value: str) -> int:
        number = tokens(value)
        if not low <= number <= high:
            raise ValueError(f"{value!r} must be a number of tokens from {low} to {high}")
        return number

    return parse


def memory(text: str) -> int:
    """How many bytes ``text`` says; ValueError unless that is a whole number above 0."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no amount of memory like 2147483648, 2G (10^9 bytes each) or 2Gi (2^30)"
        )
    unit = (found[2] or "").lower()
    return _whole(text, found[1], (1024 if unit.endswith("i") else 1000) ** _POWER[unit.removesuffix("i")])


def _whole(text: str, number: str, unit: int) -> int:
    value = Fraction(number) * unit
    if value.denominator != 1 or value <= 0:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(value)
