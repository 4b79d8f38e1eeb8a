"""Which seqs of one link may land, asked by the thread that reads and set by the loop's.

The reader enters before each piece that it takes from the socket into memory and leaves after it; both are short, and
nobody waits while a piece lands. So a revoke is either proven at once or when the reader leaves.
"""

from __future__ import annotations

import threading


class Gate:
    """See the module. ``closed`` gates let nothing in any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed: set[int] = set()
        self._inside: int | None = None
        self._awaited: set[int] = set()
        self.closed = False

    def allow(self, seq: int) -> None:
        """Let ``seq`` in from now on."""
        with self._lock:
            self._allowed.add(seq)

    def revoke(self, seq: int) -> bool:
        """Let ``seq`` in no more. False: it is inside, and the ``leave`` to come says so."""
        with self._lock:
            self._allowed.discard(seq)
            if self._inside == seq:
                self._awaited.add(seq)
            return self._inside != seq

    def close(self) -> None:
        """Let nothing in any more."""
        with self._lock:
            self.closed = True

    def enter(self, seq: int) -> bool:
        """The reader is about to take a piece for ``seq``; False when it must not."""
        with self._lock:
            if self.closed or seq not in self._allowed:
                return False
            self._inside = seq
            return True

    def leave(self) -> int | None:
        """The piece has landed. Returns its seq if that was revoked meanwhile."""
        with self._lock:
            seq, self._inside = self._inside, None
            if seq not in self._awaited:
                return None
            self._awaited.discard(seq)
            return seq
