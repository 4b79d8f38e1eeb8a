"""From block lists to copies. Pure arithmetic on numpy columns.

In the block-major layout a token's bytes are spread over its block, so there is no contiguous run that ends at
``kv_len``: the last block is written whole. What lies behind ``kv_len`` in it belongs to the same request on both
sides and is never read by attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer.slot import SLOT_BYTES

Column = npt.NDArray[np.int64]

_ALIGNMENT: Final = 4096


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
    """A decode rank's registered memory: the blocks, then (page-aligned) the slots."""

    layout: KvLayout
    blocks: int
    slots: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of the KV blocks at the start of the region."""
        return self.blocks * self.layout.block_bytes

    @property
    def slots_offset(self) -> int:
        """Where the slots begin."""
        return -(-self.pool_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def nbytes(self) -> int:
        """Bytes of the whole region."""
        return self.slots_offset + self.slots * SLOT_BYTES

    def slot_offset(self, index: int) -> int:
        """Where slot ``index`` lies; ``ValueError`` when there is none."""
        if not 0 <= index < self.slots:
            raise ValueError(f"slot {index} is outside 0..{self.slots - 1}")
        return self.slots_offset + index * SLOT_BYTES


def block_problem(blocks: Sequence[int], total: int) -> str | None:
    """Why ``blocks`` cannot be a destination in a pool of ``total`` blocks, or None."""
    if not blocks:
        return "no block is named"
    if len(blocks) > total:
        return f"{len(blocks)} blocks are named, the pool has {total}"
    if min(blocks) < 0 or max(blocks) >= total:
        return f"a block is outside 0..{total - 1}"
    if len(set(blocks)) != len(blocks):
        return "a block is named twice"
    return None


def copy_blocks(source: Sequence[int], destination: Sequence[int], block_bytes: int) -> WriteOps:
    """Copies that move block ``source[i]`` to block ``destination[i]``; runs adjacent on both sides become one."""
    if len(source) != len(destination):
        raise ValueError(f"{len(source)} source blocks cannot fill {len(destination)} destination blocks")
    src = np.asarray(source, dtype=np.int64)
    dst = np.asarray(destination, dtype=np.int64)
    if not len(src):
        return WriteOps(src, dst, src)
    breaks = np.flatnonzero((np.diff(src) != 1) | (np.diff(dst) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    runs = np.diff(np.concatenate((starts, [len(src)])))
    return WriteOps(src[starts] * block_bytes, dst[starts] * block_bytes, runs * block_bytes)


def check_bounds(ops: WriteOps, source_bytes: int, destination_bytes: int) -> None:
    """``ValueError`` unless every copy reads inside the source and writes inside the destination."""
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
