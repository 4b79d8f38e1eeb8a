"""An engine's answer that came compressed although nobody asked for it, as what it was before. Bounded."""

from __future__ import annotations

import zlib
from typing import Final

from pdcore.router.upstream import Broken

PART_BYTES: Final = 1 << 16
_WINDOWS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Inflater:
    """Hands out at most :data:`PART_BYTES` at a time, however far a part inflates. Raises :class:`Broken`."""

    def __init__(self, encoding: str) -> None:
        named = encoding.strip().lower()
        if named not in _WINDOWS:
            raise Broken(f"the answer's content encoding is {named[:64]!r}, which nobody asked for")
        self._inflater = zlib.decompressobj(_WINDOWS[named])
        self._packed = b""
        self._began = False

    def feed(self, packed: bytes) -> None:
        """More has come."""
        self._packed += packed
        self._began = self._began or bool(packed)

    def take(self) -> bytes:
        """The next part; b"" when there is none without more to feed."""
        while self._packed and not self._inflater.eof:
            try:
                part = self._inflater.decompress(self._packed, PART_BYTES)
            except zlib.error as wrong:
                raise Broken(f"the answer's content encoding is broken: {wrong}") from wrong
            self._packed = self._inflater.unconsumed_tail
            if part:
                return part
        return b""

    def check_end(self) -> None:
        """Nothing more comes. A body of no bytes is no compressed one, whatever its head says."""
        if self._began and not self._inflater.eof:
            raise Broken("the answer's content encoding is broken: it ends early")


def inflater(encoding: str) -> Inflater | None:
    """What undoes ``encoding``, None where there is nothing to undo. Raises :class:`Broken` for an unknown one."""
    return None if encoding.strip().lower() in ("", "identity") else Inflater(encoding)
