"""Where every byte of a hand-off lands, for whole instances of any size and layout."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout, Order
from pdcore.engine.transfer.mapping import GroupRank, GroupSizes, RankMapping
from pdcore.engine.transfer.pair_plan import PairPlan
from pdcore.engine.transfer.plan import RegionShape
from tests.engine.transfer.block_copies import copy_blocks
from tests.engine.transfer.kv_worlds import CANARY, LONGEST, World, ranks_of, worlds

pytestmark = pytest.mark.unit


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_every_byte_lands_once_where_it_belongs_and_nothing_else_is_touched(world: World) -> None:
    decode = world.mapping.decode
    for rank in ranks_of(decode):
        memory = np.full(world.shape(decode, rank).nbytes, CANARY, np.int64)
        writes = np.zeros_like(memory)
        for source in world.mapping.sources_of(rank):
            world.hand_over(source, rank, memory, writes)
        expected = world.memory(decode, rank, world.destination_lists, world.live())
        assert np.array_equal(memory, expected)
        assert np.array_equal(writes, expected != CANARY)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.lists(st.integers(1, LONGEST)))
def test_chunks_of_any_length_make_the_same_copies_and_touch_nothing_that_is_not_full(
    world: World, cuts: list[int]
) -> None:
    ends = sorted({cut for cut in cuts if cut < world.kv_len} | {world.kv_len})
    chunks = [range(start, end) for start, end in pairwise([0, *ends])]
    decode = world.mapping.decode
    for rank in ranks_of(decode):
        memory = np.full(world.shape(decode, rank).nbytes, CANARY, np.int64)
        writes = np.zeros_like(memory)
        for source in world.mapping.sources_of(rank):
            world.hand_over(source, rank, memory, writes, chunks)
        expected = world.memory(decode, rank, world.destination_lists, world.live())
        assert np.array_equal(memory, expected)
        assert np.array_equal(writes, expected != CANARY)


def test_a_chunk_writes_the_blocks_that_it_filled() -> None:
    layout = KvLayout.dense(**DENSE)
    equal = plan(layout, GroupSizes(1, 1), GroupSizes(1, 1))
    size, lists = layout.block_bytes, (((4, 5, 6),), ((1, 2, 9),))
    assert list(equal.copies(*lists, 40, range(31)).rows()) == [(4 * size, 1 * size, size)]
    assert list(equal.copies(*lists, 40, range(31, 33)).rows()) == [(5 * size, 2 * size, size)]
    assert list(equal.copies(*lists, 40, range(33, 39)).rows()) == []
    assert list(equal.copies(*lists, 40, range(39, 40)).rows()) == [(6 * size, 9 * size, size)]


DENSE: dict[str, Any] = {
    "layers": 3,
    "kv_heads": 4,
    "head_dim": 8,
    "block_size": 16,
    "itemsize": 2,
    "dtype_name": "bfloat16",
}
ZERO = GroupRank(0, 0)


def plan(
    layout: KvLayout,
    prefill: GroupSizes,
    decode: GroupSizes,
    rank: GroupRank = ZERO,
    blocks: tuple[int, ...] = (64,),
) -> PairPlan:
    return PairPlan.build(
        RankMapping(prefill, decode, layout),
        rank,
        ZERO,
        RegionShape(layout.shard(prefill.tp, rank.tp), blocks),
        RegionShape(layout.shard(decode.tp, 0), blocks, slots=4),
    )


def test_equal_ranks_copy_whole_blocks_and_join_those_that_follow_each_other() -> None:
    layout = KvLayout.dense(**DENSE)
    equal = plan(layout, GroupSizes(1, 2), GroupSizes(1, 2))
    size = layout.shard(2, 0).block_bytes
    assert list(equal.ops(((4, 5, 6),), ((1, 2, 9),), 48).rows()) == [
        (4 * size, 1 * size, 2 * size),
        (6 * size, 9 * size, size),
    ]


@pytest.mark.parametrize("count", [1, 7, 255, 256, 257, 900])
@pytest.mark.parametrize("gaps", [0.0, 0.1, 1.0])
def test_lists_of_any_length_become_the_same_runs(count: int, gaps: float) -> None:
    layout, rng = KvLayout.dense(**DENSE), random.Random(count)
    equal = plan(layout, GroupSizes(1, 1), GroupSizes(1, 1), blocks=(1000,))
    lists = []
    for _ in range(2):
        blocks = list(range(count))
        for at in [at for at in blocks if rng.random() < gaps]:
            other = rng.randrange(count)
            blocks[at], blocks[other] = blocks[other], blocks[at]
        lists.append(tuple(blocks))
    expected = copy_blocks(lists[0], lists[1], layout.block_bytes)
    ops = equal.ops((lists[0],), (lists[1],), count * 16)
    assert list(ops.rows()) == list(expected.rows())
    assert len(ops) == 1 or gaps


def test_only_the_blocks_of_the_tokens_are_copied() -> None:
    size = KvLayout.dense(**DENSE).block_bytes
    one = plan(KvLayout.dense(**DENSE), GroupSizes(1, 1), GroupSizes(1, 1))
    assert list(one.ops(((0, 1, 2),), ((3, 4, 5),), 17).rows()) == [(0, 3 * size, 2 * size)]


@pytest.mark.parametrize(
    ("order", "prefill", "decode", "per_block"),
    [
        ("token", 2, 1, 3 * 2 * 16),
        ("token", 1, 2, 3 * 2 * 16),
        ("head", 2, 1, 1),
        ("head", 1, 2, 1),
        ("head", 8, 2, 1),
    ],
)
def test_heads_are_one_run_per_token_or_one_per_block(
    order: Order, prefill: int, decode: int, per_block: int
) -> None:
    uneven = plan(KvLayout.dense(**DENSE, order=order), GroupSizes(1, prefill), GroupSizes(1, decode))
    assert len(uneven.ops(((7, 3),), ((1, 2),), 32)) == 2 * per_block


def test_a_latent_that_all_ranks_hold_is_copied_in_whole_blocks() -> None:
    fields: dict[str, Any] = {"heads": 1, "itemsize": 2, "dtype_name": "bfloat16", "sharding": "replicated"}
    entries = tuple(
        KvEntry(name=name, layer=layer, dim=dim, **fields)
        for layer in range(4)
        for name, dim in (("nope", 512), ("rope", 64))
    )
    layout = KvLayout(groups=(KvGroup(key="mla", block_size=128, entries=entries),))
    mapping = RankMapping(GroupSizes(1, 16), GroupSizes(1, 1), layout, spread=11)
    (source,) = mapping.participants()
    shape = RegionShape(layout, (8,))
    only = PairPlan.build(mapping, source, ZERO, shape, shape)
    assert list(only.ops(((0, 1),), ((5, 6),), 200).rows()) == [
        (0, 5 * layout.block_bytes, 2 * layout.block_bytes)
    ]


def test_a_context_parallel_rank_with_no_block_left_copies_nothing() -> None:
    layout = KvLayout.dense(**DENSE)
    ops = [
        plan(layout, GroupSizes(3, 1), GroupSizes(1, 1), GroupRank(cp, 0)).ops(((5, 9),), ((1, 7),), 20)
        for cp in range(3)
    ]
    assert [one.total_bytes for one in ops] == [0, layout.block_bytes, layout.block_bytes]
    assert [one.src_off.tolist() for one in ops[1:]] == [[5 * layout.block_bytes], [9 * layout.block_bytes]]


@pytest.mark.parametrize(
    ("source", "destination", "why"),
    [
        (((0,),), ((0, 1),), "source: 1 blocks cannot hold 20 tokens"),
        (((0, 1),), ((0,),), "destination: 1 blocks cannot hold 20 tokens"),
        (((0, 64),), ((0, 1),), r"source: a block is outside 0\.\.63"),
        (((0, 1),), ((-1, 1),), r"destination: a block is outside 0\.\.63"),
        (((0, 1),), ((1, 1),), "destination: a block is named twice"),
        (((0, 1), (0, 1)), ((0, 1),), "source: 2 block lists are named for 1 KV groups"),
    ],
)
def test_lists_that_do_not_fit_are_refused(
    source: tuple[tuple[int, ...], ...], destination: tuple[tuple[int, ...], ...], why: str
) -> None:
    one = plan(KvLayout.dense(**DENSE), GroupSizes(1, 1), GroupSizes(1, 1))
    with pytest.raises(ValueError, match=why):
        one.ops(source, destination, 20)


def test_a_plan_is_only_made_for_ranks_that_have_something_to_say_to_each_other() -> None:
    layout = KvLayout.dense(**DENSE)
    with pytest.raises(ValueError, match=r"prefill rank 0\.1 writes nothing into decode rank 0\.0"):
        plan(layout, GroupSizes(1, 2), GroupSizes(1, 2), GroupRank(0, 1))
    mapping = RankMapping(GroupSizes(1, 2), GroupSizes(1, 1), layout)
    whole, half = RegionShape(layout, (4,)), RegionShape(layout.shard(2, 0), (4,))
    for source, destination, side in ((whole, whole, "prefill"), (half, half, "decode")):
        with pytest.raises(ValueError, match=f"memory of {side} rank 0 is not laid out"):
            PairPlan.build(mapping, ZERO, ZERO, source, destination)
