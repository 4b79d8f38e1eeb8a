"""From block lists to copies."""

from __future__ import annotations

import random

import msgspec
import pytest

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer.plan import RegionShape, batches, block_problem, check_bounds, lists_problem
from tests.engine.transfer.block_copies import copy_blocks

pytestmark = pytest.mark.unit

LAYOUT = KvLayout.dense(layers=1, kv_heads=1, head_dim=5, block_size=3, itemsize=1, dtype_name="uint8")


@pytest.mark.parametrize(
    ("source", "destination", "rows"),
    [
        ([], [], []),
        ([4], [9], [(40, 90, 10)]),
        ([1, 2, 3], [7, 8, 9], [(10, 70, 30)]),
        ([1, 2, 3], [7, 8, 3], [(10, 70, 20), (30, 30, 10)]),
        ([1, 5, 6], [7, 8, 9], [(10, 70, 10), (50, 80, 20)]),
        ([3, 2, 1], [9, 8, 7], [(30, 90, 10), (20, 80, 10), (10, 70, 10)]),
    ],
)
def test_runs_adjacent_on_both_sides_become_one_copy(
    source: list[int], destination: list[int], rows: list[tuple[int, int, int]]
) -> None:
    assert list(copy_blocks(source, destination, 10).rows()) == rows


@pytest.mark.parametrize("seed", range(50))
def test_any_plan_moves_every_block_to_its_place_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 20)
    source, destination = rng.sample(range(24), count), rng.sample(range(24), count)
    if rng.random() < 0.5:
        source.sort()
        destination.sort()
    memory, target = rng.randbytes(24 * 4), bytearray(b"\xaa" * (24 * 4))
    ops = copy_blocks(source, destination, 4)
    check_bounds(ops, len(memory), len(target))
    for src, dst, length in ops.rows():
        target[dst : dst + length] = memory[src : src + length]
    for block in range(24):
        expected = b"\xaa" * 4
        if block in destination:
            at = source[destination.index(block)] * 4
            expected = memory[at : at + 4]
        assert target[block * 4 : block * 4 + 4] == expected
    assert ops.total_bytes == count * 4


@pytest.mark.parametrize(
    ("source_bytes", "destination_bytes", "side"), [(39, 100, "source"), (100, 69, "destination")]
)
def test_copies_outside_a_region_are_refused(source_bytes: int, destination_bytes: int, side: str) -> None:
    ops = copy_blocks([1, 3], [6, 5], 10)
    check_bounds(ops, 40, 70)
    with pytest.raises(ValueError, match=side):
        check_bounds(ops, source_bytes, destination_bytes)


def test_negative_and_empty_copies_are_refused() -> None:
    with pytest.raises(ValueError, match="source"):
        check_bounds(copy_blocks([-1], [0], 10), 100, 100)
    with pytest.raises(ValueError, match="no bytes"):
        check_bounds(copy_blocks([1], [0], 0), 100, 100)


@pytest.mark.parametrize("most", [1, 10, 25, 30, 1000])
def test_batches_keep_order_and_lose_nothing(most: int) -> None:
    ops = copy_blocks([0, 2, 3, 9, 5], [5, 2, 3, 0, 9], 10)
    parts = list(batches(ops, most))
    assert [row for part in parts for row in part.rows()] == list(ops.rows())
    assert all(part.total_bytes <= most or len(part) == 1 for part in parts)
    assert not list(batches(copy_blocks([], [], 10), most))


def test_memory_holds_blocks_then_slots_aux_records_and_probe_slots() -> None:
    shape = RegionShape(LAYOUT, blocks=(10,), slots=3, probes=2)
    assert (shape.pool_bytes, shape.slots_offset) == (300, 4096)
    assert [shape.slot_offset(index) for index in range(3)] == [4096, 4096 + 64, 4096 + 128]
    aux = 4096 + 3 * 64
    assert [shape.aux_offset(index) for index in range(3)] == [aux, aux + 192, aux + 384]
    probes = aux + 3 * 192
    assert [shape.probe_offset(index) for index in range(2)] == [probes, probes + 64]
    assert shape.nbytes == probes + 128


def test_each_group_begins_on_a_page() -> None:
    groups = tuple(msgspec.structs.replace(LAYOUT.only_group, key=key) for key in ("a", "b", "c"))
    shape = RegionShape(KvLayout(groups=groups), blocks=(1, 200, 3))
    assert [shape.group_offset(group) for group in range(3)] == [0, 4096, 4096 + 8192]
    assert shape.pool_bytes == 4096 + 8192 + 90
    assert shape.nbytes == shape.slots_offset == 4096 + 8192 + 4096
    with pytest.raises(ValueError, match="1 block counts for 3 KV groups"):
        RegionShape(KvLayout(groups=groups), blocks=(1,))


@pytest.mark.parametrize("index", [-1, 3])
def test_what_is_not_there_has_no_offset(index: int) -> None:
    shape = RegionShape(LAYOUT, blocks=(10,), slots=3, probes=3)
    for offset in (shape.slot_offset, shape.aux_offset, shape.probe_offset):
        with pytest.raises(ValueError, match=rf"{index} is outside 0\.\.2"):
            offset(index)


@pytest.mark.parametrize(
    ("lists", "tokens", "why"),
    [
        (((0, 1), (7, 3)), 6, None),
        (((0, 1, 2), (7, 3, 1)), 6, None),
        (((0, 1), (99, 3)), 12, None),
        (((0, 1),), 6, "1 block lists are named for 2 KV groups"),
        (((0,), (7, 3)), 12, "KV group 'a': 1 blocks cannot hold 12 tokens"),
        (((0, 1), (7, 8)), 6, "KV group 'w': a block is outside 0..7"),
        (((0, 0), (7, 3)), 6, "KV group 'a': a block is named twice"),
    ],
)
def test_lists_must_hold_the_tokens_that_are_still_seen(
    lists: tuple[tuple[int, ...], ...], tokens: int, why: str | None
) -> None:
    group = LAYOUT.only_group
    window = msgspec.structs.replace(group, key="w", block_size=6, window=6)
    both = KvLayout(groups=(msgspec.structs.replace(group, key="a", block_size=6), window))
    assert lists_problem(lists, RegionShape(both, blocks=(10, 8)), tokens) == why


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ((), "no block"),
        ((0, 10), "outside"),
        ((-1,), "outside"),
        ((3, 3), "twice"),
        (tuple(range(11)), "pool has 10"),
        ((0, 9, 4), None),
    ],
)
def test_destinations_are_distinct_blocks_of_the_pool(blocks: tuple[int, ...], why: str | None) -> None:
    problem = block_problem(blocks, 10)
    assert problem == why if why is None else why in str(problem)
