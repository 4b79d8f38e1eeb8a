"""Copies as numpy columns, and the memory they go to. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.kv.region import group_offsets, paged, pool_bytes
from pdcore.engine.transfer.aux_record import AUX_BYTES
from pdcore.engine.transfer.slot import SLOT_BYTES

if TYPE_CHECKING:
    from torch import Tensor

Column = npt.NDArray[np.int64]
Buffer: TypeAlias = "memoryview | Tensor"
"""Memory of the host, or of a device: then a flat uint8 tensor."""

FEW_COPIES: Final = 32
"""Up to so many are looked at one by one: between two requests numpy's code leaves the caches, and coming back
takes longer (0.1 ms a call, measured) than the loop."""


@dataclass(frozen=True, slots=True)
class WriteOps:
    """Copies to make: three columns of one length, in bytes. Offsets are relative to the two regions."""

    src_off: Column
    dst_off: Column
    length: Column

    def __len__(self) -> int:
        return len(self.length)

    @property
    def total_bytes(self) -> int:
        """Bytes all copies move together."""
        return int(self.length.sum())

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """(src_off, dst_off, length) as plain integers."""
        return zip(self.src_off.tolist(), self.dst_off.tolist(), self.length.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class RegionShape:
    """A rank's registered memory: each group's pool on a page of its own, then slots, aux records, probe slots.

    ``layout`` is the rank's shard; ``blocks`` counts per group. There is an aux record per slot, at the slot's index.
    """

    layout: KvLayout
    blocks: tuple[int, ...]
    slots: int = 0
    probes: int = 0

    def __post_init__(self) -> None:
        if len(self.blocks) != len(self.layout.groups):
            raise ValueError(f"{len(self.blocks)} block counts for {len(self.layout.groups)} KV groups")

    def group_offset(self, group: int) -> int:
        """Where the blocks of group number ``group`` begin."""
        return group_offsets(self.layout, self.blocks)[group]

    @property
    def pool_bytes(self) -> int:
        """Bytes from the start of the region to the end of the last group's blocks."""
        return pool_bytes(self.layout, self.blocks)

    @property
    def slots_offset(self) -> int:
        """Where the slots begin."""
        return paged(self.pool_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole region."""
        return self._probes_offset + self.probes * SLOT_BYTES

    def slot_offset(self, index: int) -> int:
        """Where slot ``index`` lies; ``ValueError`` when there is none."""
        return self.slots_offset + _checked("slot", index, self.slots) * SLOT_BYTES

    def aux_offset(self, index: int) -> int:
        """Where the aux record of slot ``index`` lies; ``ValueError`` when there is none."""
        return self._aux_offset + _checked("aux record", index, self.slots) * AUX_BYTES

    def probe_offset(self, index: int) -> int:
        """Where probe slot ``index`` lies; ``ValueError`` when there is none."""
        return self._probes_offset + _checked("probe slot", index, self.probes) * SLOT_BYTES

    @property
    def _aux_offset(self) -> int:
        return self.slots_offset + self.slots * SLOT_BYTES

    @property
    def _probes_offset(self) -> int:
        return self._aux_offset + self.slots * AUX_BYTES


def _checked(name: str, index: int, count: int) -> int:
    if not 0 <= index < count:
        raise ValueError(f"{name} {index} is outside 0..{count - 1}")
    return index


def block_problem(blocks: Sequence[int], total: int) -> str | None:
    """Why ``blocks`` cannot be one list in a pool of ``total`` blocks, or None."""
    if not blocks:
        return "no block is named"
    if len(blocks) > total:
        return f"{len(blocks)} blocks are named, the pool has {total}"
    if min(blocks) < 0 or max(blocks) >= total:
        return f"a block is outside 0..{total - 1}"
    if len(set(blocks)) != len(blocks):
        return "a block is named twice"
    return None


def lists_problem(lists: Sequence[Sequence[int]], shape: RegionShape, tokens: int) -> str | None:
    """Why ``lists`` (one per KV group) cannot hold ``tokens`` tokens in ``shape``, or None.

    Blocks that lie before a group's window are not looked at: nothing is copied into them or out of them.
    """
    groups = shape.layout.groups
    if len(lists) != len(groups):
        return f"{len(lists)} block lists are named for {len(groups)} KV groups"
    for blocks, group, total in zip(lists, groups, shape.blocks, strict=True):
        live = group.live_blocks(tokens)
        problem = block_problem(blocks[live.start :], total)
        if problem is None and len(blocks) < live.stop:
            problem = f"{len(blocks)} blocks cannot hold {tokens} tokens"
        if problem is not None:
            return problem if len(groups) == 1 else f"KV group {group.key!r}: {problem}"
    return None


def coalesced(ops: WriteOps) -> WriteOps:
    """The same copies, those that go on where the one before ended (on both sides) joined to it."""
    if len(ops) < 2:
        return ops
    joins = (ops.src_off[1:] == ops.src_off[:-1] + ops.length[:-1]) & (
        ops.dst_off[1:] == ops.dst_off[:-1] + ops.length[:-1]
    )
    starts = np.concatenate(([0], np.flatnonzero(~joins) + 1))
    return WriteOps(ops.src_off[starts], ops.dst_off[starts], np.add.reduceat(ops.length, starts))


def check_bounds(ops: WriteOps, source_bytes: int, destination_bytes: int) -> None:
    """``ValueError`` unless every copy reads inside the source and writes inside the destination."""
    if len(ops) <= FEW_COPIES and all(
        length > 0 and 0 <= src_off <= source_bytes - length and 0 <= dst_off <= destination_bytes - length
        for src_off, dst_off, length in ops.rows()
    ):
        return
    for name, offsets, limit in (
        ("source", ops.src_off, source_bytes),
        ("destination", ops.dst_off, destination_bytes),
    ):
        if len(offsets) and (int(offsets.min()) < 0 or int((offsets + ops.length).max()) > limit):
            raise ValueError(f"a copy leaves the {name} region of {limit} bytes")
    if len(ops) and int(ops.length.min()) < 1:
        raise ValueError("a copy has no bytes")


def batches(ops: WriteOps, most_bytes: int) -> Iterator[WriteOps]:
    """``ops`` in order, in calls of about ``most_bytes``, so that a long transfer can be stopped between two."""
    ends = np.cumsum(ops.length)
    start = 0
    while start < len(ops):
        base = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, base + most_bytes, side="right")))
        yield WriteOps(ops.src_off[start:stop], ops.dst_off[start:stop], ops.length[start:stop])
        start = stop
