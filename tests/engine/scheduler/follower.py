"""A rank that only executes: its memory, in which every token of KV knows whose it is."""

from __future__ import annotations

from collections.abc import Sequence

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.scheduler.plan import Compute

Cell = tuple[int, int, int]
"""Group, block, offset in the block."""


class Follower:
    """``foreign`` bytes are what this finds: a request that reads a cell which is not its own at that position."""

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self._block_sizes = block_sizes
        self.cells: dict[Cell, tuple[str, int]] = {}
        self.tables: dict[str, BlockLists] = {}

    def execute(self, batch: Sequence[Compute]) -> None:
        """Write the KV of every item, having checked what it attends to."""
        used: set[tuple[int, int]] = set()
        for item in batch:
            assert item.token_ids, "an empty computation"
            mine = {(group, block) for group, ids in enumerate(item.block_tables) for block in ids}
            assert len(mine) == sum(map(len, item.block_tables)), "a block twice in one table"
            assert not used & mine, "two requests share a block"
            used |= mine
            self._write(item.request_id, item.block_tables, item.start, len(item.token_ids))
            self.tables[item.request_id] = item.block_tables
        for item in batch:
            self._check(item.request_id, item.block_tables, item.start + len(item.token_ids))

    def arrive(self, request_id: str, blocks: BlockLists, kv_len: int) -> None:
        """A peer wrote the KV of a prompt."""
        self._write(request_id, blocks, 0, kv_len)

    def _write(self, request_id: str, tables: BlockLists, start: int, count: int) -> None:
        for position in range(start, start + count):
            for cell in self._cells(tables, position):
                self.cells[cell] = (request_id, position)

    def _check(self, request_id: str, tables: BlockLists, context: int) -> None:
        for position in range(context):
            for cell in self._cells(tables, position):
                assert self.cells[cell] == (request_id, position), f"{cell} is {self.cells[cell]}"

    def _cells(self, tables: BlockLists, position: int) -> list[Cell]:
        return [
            (group, ids[position // size], position % size)
            for group, (ids, size) in enumerate(zip(tables, self._block_sizes, strict=True))
        ]
