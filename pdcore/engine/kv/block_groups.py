"""Blocks of several KV groups that are taken and let go of together. Pure accounting, like a single pool.

A model whose layers do not all cache the same way has one group per way, each with its own block size and number of
blocks. A request needs blocks in every group; it gets all of them or none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import add, le

from pdcore.engine.kv.blocks import BlockLists, BlockPool, BlockStatistics, Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """One group's pool: ``blocks`` blocks of ``block_size`` tokens each."""

    block_size: int
    blocks: int

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"a block holds at least one token, not {self.block_size}")


def within(counts: Counts, available: Sequence[int]) -> bool:
    """Whether ``counts`` are at most ``available`` in every group."""
    return all(map(le, counts, available))


class BlockGroups:
    """One pool per group. ``counts`` and block lists name the groups by their position."""

    def __init__(self, *groups: BlockGroup) -> None:
        if not groups:
            raise ValueError("a KV cache has at least one group")
        self._pools = tuple(BlockPool(group.blocks) for group in groups)
        self.block_sizes: Counts = tuple(group.block_size for group in groups)

    @property
    def total(self) -> Counts:
        """Blocks of each group."""
        return tuple(pool.total for pool in self._pools)

    @property
    def free_blocks(self) -> Counts:
        """Blocks of each group that can be allocated now."""
        return tuple(pool.free_blocks for pool in self._pools)

    @property
    def tokens(self) -> int:
        """How many tokens one request can have at most."""
        return self.room_in(self.total)

    def needed(self, tokens: int) -> Counts:
        """Blocks that ``tokens`` tokens take in each group."""
        return tuple(-(-tokens // size) for size in self.block_sizes)

    def room_in(self, counts: Counts) -> int:
        """How many tokens fit into so many blocks."""
        return min(count * size for count, size in zip(counts, self.block_sizes, strict=True))

    def allocate(self, counts: Counts, owner: Hashable, found: BlockLists = ()) -> BlockLists | None:
        """Blocks for a new ``owner`` in every group, or None (and nothing changed) when one has not enough.

        They begin with those that were ``found``, fewer than are asked for in every group.
        """
        if not within(counts, self.free_blocks):
            return None
        if not any(found):
            return tuple(
                self._got(pool.allocate(n, owner)) for pool, n in zip(self._pools, counts, strict=True)
            )
        self._share(found, owner)
        more = tuple(n - len(ids) for n, ids in zip(counts, found, strict=True))
        return tuple(map(add, found, self._got_lists(self.extend(more, owner))))

    def find(self, keys: Sequence[Hashable]) -> BlockLists:
        """The blocks of every group that hold what the first of ``keys`` name, as far as all groups have them."""
        lists: list[list[int]] = [[] for _ in self._pools]
        for key in keys:
            found = [pool.find(key) for pool in self._pools]
            for ids, block in zip(lists, found, strict=True):
                if block is None:
                    return tuple(tuple(ids[: min(map(len, lists))]) for ids in lists)
                ids.append(block)
        return tuple(map(tuple, lists))

    def remember(self, blocks: BlockLists, position: int, key: Hashable) -> None:
        """The owned block at ``position`` of every list is full of what ``key`` names."""
        for pool, ids in zip(self._pools, blocks, strict=True):
            pool.remember(ids[position], key)

    def extend(self, counts: Counts, owner: Hashable) -> BlockLists | None:
        """More blocks for ``owner``, none where its count is 0; or None (and nothing changed)."""
        if not within(counts, self.free_blocks):
            return None
        return tuple(
            self._got(pool.extend(n, owner)) if n else () for pool, n in zip(self._pools, counts, strict=True)
        )

    def free_owner(self, owner: Hashable) -> None:
        """``owner`` lets go of all it has; pinned blocks come back at their last unpin."""
        for pool in self._pools:
            pool.free_owner(owner)

    def quarantine_owner(self, owner: Hashable, key: Hashable) -> None:
        """``owner`` lets go, but ``key`` keeps its blocks until ``release(key)``."""
        for pool in self._pools:
            pool.quarantine(pool.owned(owner), key)

    def release(self, key: Hashable) -> None:
        """End the quarantine of ``key``; unknown keys hold nothing."""
        for pool in self._pools:
            pool.release(key)

    def pin(self, blocks: BlockLists) -> None:
        """Keep held blocks from returning to free until as many unpins."""
        for pool, ids in zip(self._pools, blocks, strict=True):
            pool.pin(ids)

    def unpin(self, blocks: BlockLists) -> None:
        """Take one pin away from each block."""
        for pool, ids in zip(self._pools, blocks, strict=True):
            pool.unpin(ids)

    def statistics(self) -> BlockStatistics:
        """Counts of this instant over all groups."""
        parts = self.group_statistics()
        return BlockStatistics(
            total=sum(part.total for part in parts),
            free=sum(part.free for part in parts),
            cached=sum(part.cached for part in parts),
            used=sum(part.used for part in parts),
            quarantined=sum(part.quarantined for part in parts),
            lingering=sum(part.lingering for part in parts),
            pinned=sum(part.pinned for part in parts),
        )

    def group_statistics(self) -> tuple[BlockStatistics, ...]:
        """Counts of this instant, group by group."""
        return tuple(pool.statistics() for pool in self._pools)

    def __repr__(self) -> str:
        return f"<BlockGroups {', '.join(map(repr, self._pools))}>"

    def _share(self, blocks: BlockLists, owner: Hashable) -> None:
        for pool, ids in zip(self._pools, blocks, strict=True):
            pool.share(ids, owner)

    @staticmethod
    def _got_lists(lists: BlockLists | None) -> BlockLists:
        assert lists is not None, "what was found is of what was enough"
        return lists

    @staticmethod
    def _got(blocks: tuple[int, ...] | None) -> tuple[int, ...]:
        assert blocks is not None, "checked before the first group was touched"
        return blocks
