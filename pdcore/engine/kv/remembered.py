"""Which blocks hold what somebody may ask for again, and which of those nobody holds. Pure accounting.

A block is remembered under a key that names its content. While nobody holds it, it is *idle*: still found under its
key, and given away, the one let go of first, when no other block is free.
"""

from __future__ import annotations

from collections.abc import Hashable


class Remembered:
    """At most one block per key and one key per block."""

    def __init__(self) -> None:
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}
        self._idle: dict[int, None] = {}  # in the order they were let go of

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    @property
    def idle(self) -> int:
        """How many remembered blocks nobody holds."""
        return len(self._idle)

    def find(self, key: Hashable) -> int | None:
        """The block that holds what ``key`` names."""
        return self._block_of.get(key)

    def add(self, block: int, key: Hashable) -> None:
        """``block``, which somebody holds, is full of what ``key`` names; the first block of a key stays its."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def let_go(self, block: int) -> None:
        """Nobody holds this remembered block any more."""
        self._idle[block] = None

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds this block, and it is remembered."""
        return block in self._idle

    def take_up(self, block: int) -> None:
        """Somebody holds it again."""
        self._idle.pop(block, None)

    def evict(self) -> int:
        """The block that was let go of first, forgotten; KeyError when none is idle."""
        if not self._idle:
            raise KeyError("no remembered block is idle")
        block = next(iter(self._idle))
        del self._idle[block]
        del self._block_of[self._key_of.pop(block)]
        return block
