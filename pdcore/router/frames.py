"""A running stream's events as engines send them: each in a chunked frame of its own. Told at a glance. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pdcore.router.endings import UNREADABLE, decode_more

_END: Final = b"\n\n\r\n"
_DIGITS: Final = 5  # of the largest size that is looked at: 1 MiB
_TEXTS: Final = (b'"content":"', b'"text":"')
"""Behind which an event has what no other event has."""


class RunningFrames:
    """Looks at the frames of one stream, one after the other.

    One that was read is remembered as what stands before and behind its text. The next mostly is the same but for that
    text, and is not read again: a string in place of a string says nothing else to a router.
    """

    __slots__ = ("_before", "_behind")

    def __init__(self) -> None:
        self._before = b""
        self._behind = b""

    def carries_more(self, data: bytes) -> bool:
        """Whether ``data`` is one whole frame around one event that ends nothing; False for one that is written
        unusually."""
        opening, begin = _opening(len(data))
        if not data.startswith(opening):
            return False
        return self._is_alike(data, begin) or self._is_read_as_more(data, begin)

    def _is_alike(self, data: bytes, begin: int) -> bool:
        before, behind = self._before, self._behind
        first, last = begin + len(before), len(data) - len(behind)
        return (
            before != b""
            and first <= last
            and data.startswith(before, begin)
            and data.endswith(behind)
            and _is_plain(data[first:last])
        )

    def _is_read_as_more(self, data: bytes, begin: int) -> bool:
        if data.find(b"\n", begin) != len(data) - 4 or not data.endswith(_END):
            return False
        try:
            decode_more(data[begin:-4])
        except UNREADABLE:
            return False
        self._remember(data, begin)
        return True

    def _remember(self, data: bytes, begin: int) -> None:
        for name in _TEXTS:
            first = data.find(name, begin) + len(name)
            last = data.find(b'"', first)
            if first >= begin + len(name) and _is_plain(data[first:last]):
                self._before, self._behind = data[begin:first], data[last:]
                return


def _is_plain(text: bytes) -> bool:
    """Whether ``text`` stands for itself between a JSON string's quotes; False for some that does."""
    try:
        said = text.decode()
    except UnicodeDecodeError:
        return False
    return '"' not in said and "\\" not in said and said.isprintable()


@lru_cache(maxsize=4096)
def _opening(length: int) -> tuple[tuple[bytes, ...], int]:
    """How a frame of ``length`` bytes around an event begins, in either spelling, and how long that beginning is."""
    for digits in range(1, _DIGITS + 1):
        size = length - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return (b"%x\r\ndata: " % size, b"%X\r\ndata: " % size), digits + 8
    return (), 0
