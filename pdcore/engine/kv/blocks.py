"""Who holds which block of a KV pool. Pure accounting: no tensor, no clock, no I/O.

A block is free, or held: by owners (requests), by a quarantine (a peer may still write into it), by pins (a write
still reads it), or by pins together with one of the first two. It is free again when the last holder lets go, and a
holder can let go only once: a double free, a foreign id or an unpin without a pin is a :class:`BlockError` that
changes nothing.

Only blocks that are full of tokens and remembered have several owners: nobody writes into them any more. When the
last holder lets go of one it is *cached*: it can be allocated like a free one, but those go first.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pdcore.engine.kv.remembered import Remembered

BlockLists = tuple[tuple[int, ...], ...]
"""Block ids in the order of their tokens, one list per KV group, in the layout's order."""

Counts = tuple[int, ...]
"""How many blocks of each KV group."""


class BlockError(ValueError):
    """The caller's accounting is wrong; the pool is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStatistics:
    """``total = free + used + quarantined + lingering``.

    ``free`` can be allocated; ``cached`` of them are remembered until then. ``used`` have an owner, ``lingering`` are
    kept by pins alone. ``pinned`` counts every block with a pin, whoever else holds it.
    """

    total: int
    free: int
    cached: int
    used: int
    quarantined: int
    lingering: int
    pinned: int


class BlockPool:
    """Hands out block ids ``0 … total-1``, lowest first so that neighbours coalesce into one copy."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self._total = total
        self._free: list[int] = list(range(total))  # a heap
        self._remembered = Remembered()
        self._owner: dict[int, Hashable] = {}
        self._others: dict[int, list[Hashable]] = {}  # further owners of a block
        self._owned: dict[Hashable, dict[int, None]] = {}  # in the order they were given
        self._jail: dict[int, Hashable] = {}
        self._jailed: dict[Hashable, list[int]] = {}
        self._pins: Counter[int] = Counter()

    @property
    def total(self) -> int:
        """Blocks in the pool."""
        return self._total

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free) + self._remembered.idle

    def can_allocate(self, count: int) -> bool:
        """Whether ``allocate`` or ``extend`` of ``count`` blocks would succeed."""
        return count <= self.free_blocks

    def allocate(self, count: int, owner: Hashable) -> tuple[int, ...] | None:
        """``count`` blocks for a new ``owner``, or None (and nothing changed) when there are not enough."""
        if owner in self._owned:
            raise BlockError(f"{owner!r} owns blocks already; extend it")
        return self._take(count, owner)

    def extend(self, count: int, owner: Hashable) -> tuple[int, ...] | None:
        """``count`` more blocks for an ``owner`` that has some, or None when there are not enough."""
        if owner not in self._owned:
            raise BlockError(f"{owner!r} owns no blocks; allocate first")
        return self._take(count, owner)

    def owned(self, owner: Hashable) -> tuple[int, ...]:
        """The blocks of ``owner`` in the order it got them."""
        return tuple(self._owned.get(owner, ()))

    def free(self, blocks: Sequence[int]) -> None:
        """Their only owner lets go. Pinned ones come back at their last unpin."""
        self._require_one_owner(blocks)
        for block in blocks:
            self._disown(block, self._owner[block])
            self._settle(block)

    def free_owner(self, owner: Hashable) -> None:
        """``owner`` lets go of all it has; an owner of nothing is a :class:`BlockError`."""
        if owner not in self._owned:
            raise BlockError(f"{owner!r} owns no blocks")
        for block in reversed(
            self.owned(owner)
        ):  # of what is remembered, what others begin with is kept longest
            self._disown(block, owner)
            self._settle(block)

    def find(self, key: Hashable) -> int | None:
        """The block that is full of what ``key`` names."""
        return self._remembered.find(key)

    def remember(self, block: int, key: Hashable) -> None:
        """An owned ``block`` is full of what ``key`` names and never written again; the first one of a key counts."""
        if block not in self._owner:
            raise BlockError(f"block {block} has no owner")
        self._remembered.add(block, key)

    def share(self, blocks: Sequence[int], owner: Hashable) -> None:
        """Remembered ``blocks`` get one more ``owner``, which has none of them."""
        self._require_distinct(blocks)
        owned = self._owned.get(owner, {})
        for block in blocks:
            if block not in self._remembered or block in self._jail or block in owned:
                raise BlockError(f"block {block} cannot be shared with {owner!r}")
        for block in blocks:
            self._remembered.take_up(block)
            if block in self._owner:
                self._others.setdefault(block, []).append(owner)
            else:
                self._owner[block] = owner
            self._owned.setdefault(owner, {})[block] = None

    def pin(self, blocks: Sequence[int]) -> None:
        """Keep held blocks from returning to free until as many unpins."""
        self._require_distinct(blocks)
        for block in blocks:
            if not self._is_held(block):
                raise BlockError(f"block {block} is free and cannot be pinned")
        self._pins.update(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Take one pin away from each of ``blocks``."""
        self._require(blocks, self._pins, "is not pinned")
        for block in blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
            self._settle(block)

    def quarantine(self, blocks: Sequence[int], key: Hashable) -> None:
        """Their owner lets go, but ``key`` keeps them until ``release(key)``. A key can be added to."""
        self._require_one_owner(blocks)
        for block in blocks:
            self._disown(block, self._owner[block])
            self._jail[block] = key
            self._jailed.setdefault(key, []).append(block)

    def release(self, key: Hashable) -> tuple[int, ...]:
        """End the quarantine of ``key``; returns its blocks. An unknown key holds nothing and returns ()."""
        blocks = tuple(self._jailed.pop(key, ()))
        for block in blocks:
            del self._jail[block]
            self._settle(block)
        return blocks

    def statistics(self) -> BlockStatistics:
        """Counts of this instant."""
        free, used, quarantined = self.free_blocks, len(self._owner), len(self._jail)
        return BlockStatistics(
            total=self._total,
            free=free,
            cached=self._remembered.idle,
            used=used,
            quarantined=quarantined,
            lingering=self._total - free - used - quarantined,
            pinned=len(self._pins),
        )

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<BlockPool {s.free}/{s.total} free, {s.used} used by {len(self._owned)}, "
            f"{s.quarantined} quarantined, {s.pinned} pinned>"
        )

    def _take(self, count: int, owner: Hashable) -> tuple[int, ...] | None:
        if count < 1:
            raise BlockError(f"cannot take {count} blocks")
        if not self.can_allocate(count):
            return None
        for _ in range(count - len(self._free)):
            heapq.heappush(self._free, self._remembered.evict())
        blocks = tuple(heapq.heappop(self._free) for _ in range(count))
        self._owner.update((block, owner) for block in blocks)
        self._owned.setdefault(owner, {}).update(dict.fromkeys(blocks))
        return blocks

    def _is_held(self, block: int) -> bool:
        return block in self._owner or block in self._jail or block in self._pins

    def _disown(self, block: int, owner: Hashable) -> None:
        others = self._others.get(block)
        if others is None:
            del self._owner[block]
        else:
            if self._owner[block] == owner:
                self._owner[block] = others.pop()
            else:
                others.remove(owner)
            if not others:
                del self._others[block]
        blocks = self._owned[owner]
        del blocks[block]
        if not blocks:
            del self._owned[owner]

    def _settle(self, block: int) -> None:
        if self._is_held(block):
            return
        if block in self._remembered:
            self._remembered.let_go(block)
        else:
            heapq.heappush(self._free, block)

    def _require(self, blocks: Sequence[int], holders: dict[int, Hashable] | Counter[int], why: str) -> None:
        self._require_distinct(blocks)
        for block in blocks:
            if block not in holders:
                raise BlockError(f"block {block} {why}")

    def _require_one_owner(self, blocks: Sequence[int]) -> None:
        self._require(blocks, self._owner, "has no owner")
        for block in blocks:
            if block in self._others:
                raise BlockError(f"block {block} has several owners")

    def _require_distinct(self, blocks: Sequence[int]) -> None:
        if len(set(blocks)) != len(blocks):
            raise BlockError(f"a block is named twice in {tuple(blocks)}")
