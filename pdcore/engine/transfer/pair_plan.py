"""From the block lists of a request to the copies one prefill rank makes into one decode rank. Pure arithmetic.

What is copied of each block depends on the pair alone: it is worked out once, at ``hello``, as a *stencil*, the copies
that one block needs, joined where they touch. When a rank passes on all it holds to a rank that holds as much, the
stencil is the whole block in one copy. A request then costs a few operations on columns, and blocks that follow each
other on both sides become one copy.

In the block-major layout a token's bytes are spread over its block, so there is no contiguous run that ends at
``kv_len``: the last block is written whole. What lies behind ``kv_len`` in it belongs to the same request on both
sides and is never read by attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np

from pdcore.engine.kv.layout import KvGroup, held_heads
from pdcore.engine.transfer.mapping import GroupRank, RankMapping, block_part
from pdcore.engine.transfer.plan import Column, RegionShape, WriteOps, coalesced, lists_problem

_FEW_BLOCKS: Final = 256
NOTHING = WriteOps(*(np.zeros(0, np.int64) for _ in range(3)))
"""No copy at all."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Where a group's blocks lie in a region."""

    offset: int
    block_bytes: int

    def at(self, blocks: Sequence[int], inside: Column) -> Column:
        """Offsets of the places ``inside`` each of ``blocks``, block after block."""
        starts = np.asarray(blocks, dtype=np.int64) * self.block_bytes + self.offset
        return np.add.outer(starts, inside).ravel()


@dataclass(frozen=True)
class _GroupPlan:
    """One KV group of the pair. ``stencil`` is relative to a block on either side, and not empty."""

    index: int
    group: KvGroup
    source: _Pool
    destination: _Pool
    stencil: WriteOps

    def ops(self, source: Sequence[int], destination: Sequence[int]) -> WriteOps:
        if self._whole_blocks and len(source) <= _FEW_BLOCKS:
            return self._runs(source, destination)
        every = WriteOps(
            self.source.at(source, self.stencil.src_off),
            self.destination.at(destination, self.stencil.dst_off),
            np.tile(self.stencil.length, len(source)),
        )
        return coalesced(every) if self._may_join else every

    def _runs(self, source: Sequence[int], destination: Sequence[int]) -> WriteOps:
        """Blocks that follow each other on both sides, joined one by one: see ``plan.FEW_COPIES``."""
        starts: list[tuple[int, int]] = []
        counts: list[int] = []
        after = (-1, -1)
        for pair in zip(source, destination, strict=True):
            if pair == after:
                counts[-1] += 1
            else:
                starts.append(pair)
                counts.append(1)
            after = (pair[0] + 1, pair[1] + 1)
        size = self.source.block_bytes
        return WriteOps(
            np.array([block * size + self.source.offset for block, _ in starts], dtype=np.int64),
            np.array([block * size + self.destination.offset for _, block in starts], dtype=np.int64),
            np.array([count * size for count in counts], dtype=np.int64),
        )

    @cached_property
    def _whole_blocks(self) -> bool:
        return len(self.stencil) == 1 and self._may_join

    @cached_property
    def _may_join(self) -> bool:
        """Whether the last copy of a block can go on in the next block: it ends with it and the first begins it."""
        first = int(self.stencil.src_off[0]), int(self.stencil.dst_off[0])
        length = int(self.stencil.length[-1])
        ends = int(self.stencil.src_off[-1]) + length, int(self.stencil.dst_off[-1]) + length
        return first == (0, 0) and ends == (self.source.block_bytes, self.destination.block_bytes)


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What prefill rank ``prefill`` writes into decode rank ``decode``. Build it once per pair."""

    cp: int
    cp_size: int
    source: RegionShape
    destination: RegionShape
    groups: tuple[_GroupPlan, ...]

    @classmethod
    def build(
        cls,
        mapping: RankMapping,
        prefill: GroupRank,
        decode: GroupRank,
        source: RegionShape,
        destination: RegionShape,
    ) -> Self:
        """ValueError when the ranks do not exist, or a shape is not that of the rank's shard."""
        if prefill not in mapping.sources_of(decode):
            raise ValueError(f"prefill rank {prefill} writes nothing into decode rank {decode}")
        for side, shape, tp_size, tp in (
            ("prefill", source, mapping.prefill.tp, prefill.tp),
            ("decode", destination, mapping.decode.tp, decode.tp),
        ):
            if shape.layout != mapping.layout.shard(tp_size, tp):
                raise ValueError(f"the memory of {side} rank {tp} is not laid out for one of {tp_size}")
        return cls(
            cp=prefill.cp,
            cp_size=mapping.prefill.cp,
            source=source,
            destination=destination,
            groups=tuple(_group_plans(mapping, prefill.tp, decode.tp, source, destination)),
        )

    def ops(
        self, source: Sequence[Sequence[int]], destination: Sequence[Sequence[int]], kv_len: int
    ) -> WriteOps:
        """As :meth:`copies`; ``ValueError`` for lists that are too short, or that name a block twice or outside its
        pool."""
        for side, lists, shape in (
            ("source", source, self.source),
            ("destination", destination, self.destination),
        ):
            problem = lists_problem(lists, shape, kv_len)
            if problem is not None:
                raise ValueError(f"{side}: {problem}")
        return self.copies(source, destination, kv_len)

    def copies(
        self,
        source: Sequence[Sequence[int]],
        destination: Sequence[Sequence[int]],
        kv_len: int,
        tokens: range | None = None,
    ) -> WriteOps:
        """The copies that move ``kv_len`` tokens; none when all blocks are other context-parallel ranks' part.

        With ``tokens`` only blocks that became full with them: consecutive ranges up to ``kv_len`` make, together, the
        copies of the whole. The lists name blocks by position from token 0, one list per KV group; what they name
        beyond ``kv_len`` is left alone. ``lists_problem`` knows of nothing against them.
        """
        parts = []
        for plan in self.groups:
            part = self._part(plan.group, kv_len, range(kv_len) if tokens is None else tokens)
            if part:
                rows = slice(part.start, part.stop)
                parts.append(plan.ops(source[plan.index][rows], destination[plan.index][rows]))
        return _joined(parts)

    def most_bytes(self, kv_len: int, tokens: range) -> int:
        """What ``copies`` moves, at most."""
        return sum(
            len(self._part(plan.group, kv_len, tokens)) * plan.destination.block_bytes for plan in self.groups
        )

    def _part(self, group: KvGroup, kv_len: int, tokens: range) -> range:
        """The positions of this rank's blocks that became full with ``tokens``; the last one need not be full."""
        if not tokens:
            return range(0)
        part = block_part(group.live_blocks(kv_len), self.cp, self.cp_size)
        start = max(part.start, tokens.start // group.block_size)
        stop = part.stop if tokens.stop >= kv_len else min(part.stop, tokens.stop // group.block_size)
        return range(start, max(start, stop))


def _group_plans(
    mapping: RankMapping, prefill_tp: int, decode_tp: int, source: RegionShape, destination: RegionShape
) -> Iterator[_GroupPlan]:
    for index, group in enumerate(mapping.layout.groups):
        mine, theirs = source.layout.groups[index], destination.layout.groups[index]
        stencil = _stencil(mapping, prefill_tp, decode_tp, group, mine, theirs)
        if len(stencil):
            yield _GroupPlan(
                index=index,
                group=group,
                source=_Pool(source.group_offset(index), mine.block_bytes),
                destination=_Pool(destination.group_offset(index), theirs.block_bytes),
                stencil=stencil,
            )


def _stencil(
    mapping: RankMapping, prefill_tp: int, decode_tp: int, whole: KvGroup, mine: KvGroup, theirs: KvGroup
) -> WriteOps:
    """The copies of one block, in the source's order."""
    parts = []
    for entry, here, there in zip(whole.entries, mine.places, theirs.places, strict=True):
        heads = mapping.written_heads(entry, prefill_tp, decode_tp)
        if not heads:
            continue
        rows, columns = np.arange(here.rows)[:, None], np.arange(heads.start, heads.stop)
        first = held_heads(entry, mapping.prefill.tp, prefill_tp).start
        to = held_heads(entry, mapping.decode.tp, decode_tp).start
        src = here.base + rows * here.per_row + (columns - first) * here.per_head
        dst = there.base + rows * there.per_row + (columns - to) * there.per_head
        parts.append(WriteOps(src.ravel(), dst.ravel(), np.full(src.size, entry.item_bytes, np.int64)))
    every = _joined(parts)
    order = np.argsort(every.src_off)
    return coalesced(WriteOps(every.src_off[order], every.dst_off[order], every.length[order]))


def _joined(parts: Sequence[WriteOps]) -> WriteOps:
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return WriteOps(
        np.concatenate([part.src_off for part in parts]),
        np.concatenate([part.dst_off for part in parts]),
        np.concatenate([part.length for part in parts]),
    )
