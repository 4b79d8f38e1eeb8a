"""Lots: a number for a key and an instance that looks random and is the same in every router.

The instance with the lowest lot for a key owns it (rendezvous hashing). When an instance comes or goes, only keys that it
wins or owned move.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1


@lru_cache(maxsize=16384)
def seed(name: str) -> int:
    """64 bits of ``name``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def lot(key: int, name: str) -> int:
    """The lot of ``name`` for ``key``, 64 bits."""
    return mixed(key ^ seed(name))


def lots(key: int, seeds: Iterable[int]) -> list[int]:
    """The lots for ``key`` of those whose names have these ``seeds``, in their order."""
    return [mixed(key ^ one) for one in seeds]


def mixed(value: int) -> int:
    """``value``, up to 64 bits, so stirred that each of its bits decides about all others (the end of splitmix64)."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def place(role: str, number: int, count: int) -> int:
    """A place below ``count`` for ``number``, another one in each role."""
    return int.from_bytes(blake2b(f"{role}/{number}".encode(), digest_size=8).digest(), "big") % count
