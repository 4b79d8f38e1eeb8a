"""Where the pools of several KV groups lie in one piece of memory. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from pdcore.engine.kv.layout import KvLayout

_ALIGNMENT: Final = 4096


def paged(size: int) -> int:
    """``size`` rounded up to whole pages."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def group_offsets(layout: KvLayout, blocks: Sequence[int]) -> tuple[int, ...]:
    """Where each group's blocks begin, on a page of its own, when group ``i`` has ``blocks[i]`` of them."""
    return tuple(accumulate((paged(size) for size in _sizes(layout, blocks)), initial=0))[:-1]


def pool_bytes(layout: KvLayout, blocks: Sequence[int]) -> int:
    """Bytes from the start to the end of the last group's blocks."""
    *_, last = _sizes(layout, blocks)
    return group_offsets(layout, blocks)[-1] + last


def _sizes(layout: KvLayout, blocks: Sequence[int]) -> Iterator[int]:
    if len(blocks) != len(layout.groups):
        raise ValueError(f"{len(blocks)} block counts for {len(layout.groups)} KV groups")
    return (count * group.block_bytes for count, group in zip(blocks, layout.groups, strict=True))
