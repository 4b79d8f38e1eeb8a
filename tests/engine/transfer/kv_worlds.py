"""Two DP groups in miniature, whose memory holds labels instead of bytes, to see where every byte ends up.

Each byte of a request's KV (group, entry, position in the block list, row, head, byte of the item) has a label of its
own; what nobody may touch holds :data:`CANARY`. How a block is laid out is said once more here, from the words of the
layout's description, so that the layout's own arithmetic is judged and not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes, RankMapping
from pdcore.engine.transfer.pair_plan import PairPlan
from pdcore.engine.transfer.plan import RegionShape, check_bounds

Labels = npt.NDArray[np.int64]
BlockLists = tuple[tuple[int, ...], ...]

CANARY = -1
LONGEST = 48


def ranks_of(sizes: GroupSizes) -> list[GroupRank]:
    """Every rank of a DP group."""
    return [GroupRank(cp, tp) for cp in range(sizes.cp) for tp in range(sizes.tp)]


def heads_of(entry: KvEntry, tp_size: int, tp: int) -> list[int]:
    """The heads a rank holds: all, its even share, or the one that its neighbours hold as well."""
    heads = list(range(entry.heads))
    if entry.sharding == "replicated":
        return heads
    if tp_size > entry.heads:
        return [heads[tp // (tp_size // entry.heads)]]
    return heads[tp * (entry.heads // tp_size) : (tp + 1) * (entry.heads // tp_size)]


@dataclass
class World:
    """One request between two DP groups. ``labels[group][entry]`` is ``[position, row, head, byte of the item]``."""

    mapping: RankMapping
    kv_len: int
    source_lists: BlockLists
    destination_lists: BlockLists
    blocks: tuple[int, ...]
    labels: list[list[Labels]] = field(default_factory=list)
    _sources: dict[int, Labels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = 0
        for group in self.mapping.layout.groups:
            arrays = []
            for entry in group.entries:
                rows = group.block_size // entry.tokens_per_row
                shape = (-(-self.kv_len // group.block_size), rows, entry.heads, entry.dim * entry.itemsize)
                size = int(np.prod(shape))
                arrays.append(np.arange(first, first + size).reshape(shape))
                first += size
            self.labels.append(arrays)

    def block(self, group: int, position: int, tp_size: int, tp: int) -> Labels:
        """The bytes of one block as rank ``tp`` holds them."""
        described = self.mapping.layout.groups[group]
        held = [
            array[position][:, heads_of(entry, tp_size, tp), :]
            for entry, array in zip(described.entries, self.labels[group], strict=True)
        ]
        if described.order == "token":
            return np.concatenate([part.ravel() for part in held])
        kinds = [entry.sharding for entry in described.entries]
        shared = [part.ravel() for part, kind in zip(held, kinds, strict=True) if kind == "replicated"]
        split = [part for part, kind in zip(held, kinds, strict=True) if kind == "heads"]
        stripes = (
            [part[:, head, :].ravel() for head in range(split[0].shape[1]) for part in split] if split else []
        )
        return np.concatenate([*shared, *stripes])

    def shape(self, sizes: GroupSizes, rank: GroupRank) -> RegionShape:
        """The memory of one rank; a few slots, so that something lies behind the blocks."""
        shard = self.mapping.layout.shard(sizes.tp, rank.tp)
        return RegionShape(shard, self.blocks, slots=2, probes=1)

    def memory(self, sizes: GroupSizes, rank: GroupRank, lists: BlockLists, positions: list[range]) -> Labels:
        """A rank's memory with the blocks at ``positions`` (per group) in place, and canaries everywhere else."""
        shape = self.shape(sizes, rank)
        memory = np.full(shape.nbytes, CANARY, np.int64)
        for index, blocks in enumerate(lists):
            for position in positions[index]:
                content = self.block(index, position, sizes.tp, rank.tp)
                start = shape.group_offset(index) + blocks[position] * len(content)
                memory[start : start + len(content)] = content
        return memory

    def live(self) -> list[range]:
        """The positions whose blocks hold a token that attention still looks at, per group."""
        lives = []
        for group in self.mapping.layout.groups:
            first = 0 if group.window is None else max(0, self.kv_len - group.window)
            lives.append(range(first // group.block_size, (self.kv_len - 1) // group.block_size + 1))
        return lives

    def hand_over(
        self,
        prefill: GroupRank,
        decode: GroupRank,
        into: Labels,
        writes: Labels,
        chunks: Sequence[range] = (),
    ) -> None:
        """What one rank writes into the other, in ``chunks`` or at once; ``writes`` counts how often each byte was
        written."""
        source, destination = (
            self.shape(self.mapping.prefill, prefill),
            self.shape(self.mapping.decode, decode),
        )
        plan = PairPlan.build(self.mapping, prefill, decode, source, destination)
        memory = self._source(prefill.tp)
        lists = self.source_lists, self.destination_lists
        for tokens in chunks or (range(self.kv_len),):
            ops = plan.copies(*lists, self.kv_len, tokens) if chunks else plan.ops(*lists, self.kv_len)
            check_bounds(ops, len(memory), len(into))
            assert ops.total_bytes <= plan.most_bytes(self.kv_len, tokens)
            for src, dst, length in ops.rows():
                into[dst : dst + length] = memory[src : src + length]
                writes[dst : dst + length] += 1

    def _source(self, tp: int) -> Labels:
        """The memory of a prefill rank, which holds all tokens whatever its cp."""
        if tp not in self._sources:
            held = [range(len(arrays[0])) for arrays in self.labels]
            rank = GroupRank(0, tp)
            self._sources[tp] = self.memory(self.mapping.prefill, rank, self.source_lists, held)
        return self._sources[tp]


def entries(draw: st.DrawFn, heads: list[int], block_size: int, order: str) -> tuple[KvEntry, ...]:
    """One to three entries; in head order all that are split have one number of heads."""
    one = draw(st.sampled_from(heads))
    rows = [size for size in range(1, block_size + 1) if block_size % size == 0]
    made = []
    for index in range(draw(st.integers(1, 3))):
        replicated = draw(st.integers(0, 3)) == 0
        made.append(
            KvEntry(
                name=f"e{index}",
                layer=draw(st.integers(0, 1)),
                heads=draw(st.integers(1, 3))
                if replicated
                else one
                if order == "head"
                else draw(st.sampled_from(heads)),
                dim=draw(st.integers(1, 3)),
                itemsize=draw(st.sampled_from([1, 2])),
                dtype_name="any",
                sharding="replicated" if replicated else "heads",
                tokens_per_row=draw(st.sampled_from(rows)),
            )
        )
    return tuple(made)


@st.composite
def layouts(draw: st.DrawFn, heads: list[int]) -> KvLayout:
    """One to three groups of any kind, whose split entries have one of ``heads``."""
    groups = []
    for index in range(draw(st.integers(1, 3))):
        block_size, order = (
            draw(st.sampled_from([1, 2, 3, 4, 6, 16])),
            draw(st.sampled_from(["token", "head"])),
        )
        fields: dict[str, Any] = {"key": f"g{index}", "block_size": block_size, "order": order}
        fields["window"] = draw(st.none() | st.integers(1, LONGEST))
        groups.append(KvGroup(entries=entries(draw, heads, block_size, order), **fields))
    return KvLayout(groups=tuple(groups))


def block_list(draw: st.DrawFn, blocks: int, needed: int) -> tuple[int, ...]:
    """Distinct blocks, at least ``needed``: scattered or in runs."""
    number = draw(st.integers(needed, blocks))
    if draw(st.booleans()):
        return tuple(draw(st.permutations(range(blocks)))[:number])
    first = draw(st.integers(0, blocks - number))
    return tuple(range(first, first + number))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Sizes that fit, a layout for them, and a request in two pools."""
    small = draw(st.integers(1, 4))
    large = small * draw(st.sampled_from([1, 1, 2, 3, 4]))
    prefill_tp, decode_tp = draw(st.sampled_from([(small, large), (large, small)]))
    heads = [
        number
        for number in range(1, 13)
        if all(number % tp == 0 or tp % number == 0 for tp in (prefill_tp, decode_tp))
    ]
    layout = draw(layouts(heads))
    mapping = RankMapping(
        GroupSizes(draw(st.integers(1, 4)), prefill_tp),
        GroupSizes(1, decode_tp),
        layout,
        draw(st.integers(0, 99)),
    )
    kv_len = draw(st.integers(1, LONGEST))
    needed = [-(-kv_len // group.block_size) for group in layout.groups]
    blocks = tuple(number + draw(st.integers(0, 4)) for number in needed)
    lists = [
        tuple(block_list(draw, total, number) for total, number in zip(blocks, needed, strict=True))
        for _ in range(2)
    ]
    return World(mapping, kv_len, lists[0], lists[1], blocks)
