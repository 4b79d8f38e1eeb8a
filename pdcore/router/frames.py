"""A running stream's events as engines send them: each in a chunked frame of its own. Told at a glance. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pdcore.router.endings import UNREADABLE, decode_more

_END: Final = b"\n\n\r\n"
_DIGITS: Final = 5  # of the largest size that is looked at: 1 MiB


def carries_more(data: bytes) -> bool:
    """Whether ``data`` is one whole frame around one event that ends nothing; False for one that is written unusually."""
    opening, begin = _opening(len(data))
    if not data.startswith(opening) or data.find(b"\n", begin) != len(data) - 4 or not data.endswith(_END):
        return False
    try:
        decode_more(data[begin:-4])
    except UNREADABLE:
        return False
    return True


@lru_cache(maxsize=4096)
def _opening(length: int) -> tuple[tuple[bytes, ...], int]:
    """How a frame of ``length`` bytes around an event begins, in either spelling, and how long that beginning is."""
    for digits in range(1, _DIGITS + 1):
        size = length - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return (b"%x\r\ndata: " % size, b"%X\r\ndata: " % size), digits + 8
    return (), 0
