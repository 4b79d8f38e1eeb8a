"""An engine's answer that came compressed although nobody asked for it, as what it was before. Bounded."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from pdcore.router.upstream import Answer, Broken

PART_BYTES: Final = 1 << 16
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def decoded(answer: Answer) -> Answer:
    """``answer`` with its content encoding undone. Raises :class:`Broken` for one the router does not know."""
    encoding = answer.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return answer
    if encoding not in _WINDOWS:
        raise Broken(f"the answer's content encoding is {encoding[:64]!r}, which nobody asked for")
    return _Inflated(answer, _WINDOWS[encoding])


class _Inflated:
    """Hands out at most :data:`PART_BYTES` at a time, however far a part inflates."""

    def __init__(self, answer: Answer, window: int) -> None:
        self._answer = answer
        self._inflater = zlib.decompressobj(window)
        self._empty = True
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers

    async def read(self) -> bytes:
        while True:
            packed = self._inflater.unconsumed_tail or await self._answer.read()
            if not packed:
                return self._end()
            self._empty = False
            part = b"" if self._inflater.eof else self._inflate(packed)
            if part:
                return part

    def _inflate(self, packed: bytes) -> bytes:
        try:
            return self._inflater.decompress(packed, PART_BYTES)
        except zlib.error as wrong:
            raise Broken(f"the answer's content encoding is broken: {wrong}") from wrong

    def _end(self) -> bytes:
        """A body of no bytes is no compressed one, whatever its head says."""
        if not self._inflater.eof and not self._empty:
            raise Broken("the answer's content encoding is broken: it ends early")
        return b""
