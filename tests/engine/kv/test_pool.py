"""The pool's rows are views of the memory it was given, at the offsets the layout says."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.kv.region import group_offsets, pool_bytes

pytestmark = pytest.mark.unit

LAYOUT = KvLayout.dense(layers=3, kv_heads=2, head_dim=4, block_size=8, itemsize=4, dtype_name="float32")
CPU = torch.device("cpu")
BLOCKS, OFFSETS = np.array([2, 0, 3]), np.array([7, 0, 3])


def latent(layer: int, name: str, dim: int) -> KvEntry:
    return KvEntry(
        name=name,
        layer=layer,
        heads=1,
        dim=dim,
        itemsize=4,
        dtype_name="float32",
        sharding="replicated",
    )


def memory_of(layout: KvLayout, *blocks: int) -> bytearray:
    return bytearray(pool_bytes(layout, blocks))


def dense(buffer: bytearray, blocks: int) -> NDArray[np.float32]:
    return np.frombuffer(buffer, np.float32).reshape(blocks, 3, 2, 8, 2, 4)


@pytest.mark.parametrize("layer", range(3))
def test_written_tokens_are_where_the_shape_says_and_can_be_read(layer: int) -> None:
    buffer = memory_of(LAYOUT, 4)
    pool = KvPool(LAYOUT, (4,), buffer).of(layer)
    slots = pool.slots(BLOCKS, OFFSETS, CPU)
    keys, values = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    pool.write(layer, slots, [keys.flatten(1), values.flatten(1)])
    seen = dense(buffer, 4)
    assert np.array_equal(seen[BLOCKS, layer, 0, OFFSETS], keys)
    assert np.array_equal(seen[BLOCKS, layer, 1, OFFSETS], values)
    assert int((seen != 0).sum()) == 2 * 3 * 2 * 4
    read_keys, read_values = pool.read(layer, pool.contexts(BLOCKS[None], OFFSETS[None], CPU))
    assert torch.equal(read_keys, keys.transpose(0, 1)[None])
    assert torch.equal(read_values, values.transpose(0, 1)[None])


def test_entries_of_different_widths_lie_behind_each_other_in_their_block() -> None:
    entries = tuple(
        latent(layer, name, dim) for layer in (0, 1) for name, dim in (("latent", 8), ("rope", 2))
    )
    layout = KvLayout(groups=(KvGroup(key="kv", block_size=4, entries=entries),))
    buffer = memory_of(layout, 4)
    pool = KvPool(layout, (4,), buffer).of(1)
    assert pool.latent
    assert [(kind.heads, kind.dim) for kind in pool.kinds] == [(1, 8), (1, 2)]
    offsets = np.array([3, 0, 1])
    slots = pool.slots(BLOCKS, offsets, CPU)
    rows: list[Tensor] = [torch.randn(3, 8), torch.randn(3, 2)]
    pool.write(1, slots, rows)
    seen = np.frombuffer(buffer, np.float32).reshape(4, 80)
    for number, (block, offset) in enumerate(((2, 3), (0, 0), (3, 1))):
        assert np.array_equal(seen[block, 40 + 8 * offset :][:8], rows[0][number])
        assert np.array_equal(seen[block, 72 + 2 * offset :][:2], rows[1][number])
    read = pool.read(1, pool.contexts(BLOCKS[None], offsets[None], CPU))
    assert [row.shape for row in read] == [(1, 1, 3, 8), (1, 1, 3, 2)]
    assert torch.equal(read[1].view(3, 2), rows[1])


def test_each_group_has_blocks_and_pages_of_its_own() -> None:
    whole, window = (
        KvGroup(key=key, block_size=4, entries=(latent(layer, "k", 4), latent(layer, "v", 4)))
        for layer, key in enumerate(("full", "window"))
    )
    layout = KvLayout(groups=(whole, window))
    assert group_offsets(layout, (3, 5)) == (0, 4096)
    buffer = memory_of(layout, 3, 5)
    assert len(buffer) == 4096 + 5 * window.block_bytes
    pool = KvPool(layout, (3, 5), buffer)
    slots = pool.of(1).slots(np.array([4]), np.array([3]), CPU)
    pool.of(1).write(1, slots, [torch.ones(1, 4), torch.ones(1, 4)])
    touched = np.frombuffer(buffer, np.float32).nonzero()[0] * 4 - 4096
    assert touched.tolist() == [
        *range(4 * 128 + 48, 4 * 128 + 64, 4),
        *range(4 * 128 + 112, 4 * 128 + 128, 4),
    ]
    assert repr(pool) == "KvPool(3+5 blocks of 4 tokens, float32)"


def test_rows_that_do_not_fill_a_block_are_refused() -> None:
    entries = (latent(0, "latent", 5), latent(0, "rope", 2))
    layout = KvLayout(groups=(KvGroup(key="kv", block_size=4, entries=entries),))
    with pytest.raises(ValueError, match="rows of 5 elements do not fill a block of 28"):
        KvPool(layout, (1,), memory_of(layout, 1))


def test_writes_from_outside_are_seen() -> None:
    with mmap.mmap(-1, pool_bytes(LAYOUT, (2,))) as memory:
        view = memoryview(memory)
        pool = KvPool(LAYOUT, (2,), view)
        view[LAYOUT.block_bytes : 2 * LAYOUT.block_bytes] = np.ones(
            LAYOUT.block_bytes // 4, np.float32
        ).tobytes()
        group = pool.of(2)
        for block in (0, 1):
            everything = group.contexts(np.full((1, 8), block), np.arange(8)[None], CPU)
            assert all(bool((row == block).all()) for row in group.read(2, everything))
        del pool, group
        view.release()


def test_bfloat16_takes_half() -> None:
    half = KvLayout.dense(layers=3, kv_heads=2, head_dim=4, block_size=8, itemsize=2, dtype_name="bfloat16")
    assert pool_bytes(half, (4,)) * 2 == pool_bytes(LAYOUT, (4,))
    pool = KvPool(half, (4,), memory_of(half, 4))
    first = pool.of(0).contexts(np.array([[0]]), np.array([[0]]), CPU)
    assert pool.of(0).read(0, first)[0].dtype == torch.bfloat16
    assert repr(pool) == "KvPool(4 blocks of 8 tokens, bfloat16)"


def test_a_buffer_may_be_larger_but_not_smaller() -> None:
    assert KvPool(LAYOUT, (1,), bytearray(LAYOUT.block_bytes + 3)).blocks == (1,)
    with pytest.raises(ValueError, match="2 KV blocks need"):
        KvPool(LAYOUT, (2,), bytearray(2 * LAYOUT.block_bytes - 1))


def test_a_read_only_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="must be writable"):
        KvPool(LAYOUT, (1,), memoryview(bytes(LAYOUT.block_bytes)))


def test_a_layout_in_head_order_is_refused() -> None:
    layout = KvLayout.dense(
        layers=3, kv_heads=2, head_dim=4, block_size=8, itemsize=4, dtype_name="float32", order="head"
    )
    with pytest.raises(ValueError, match="head order"):
        KvPool(layout, (1,), memory_of(layout, 1))


def test_a_tensor_is_the_same_pool_as_the_bytes_under_it() -> None:
    buffer = memory_of(LAYOUT, 4)
    flat = torch.zeros(len(buffer), dtype=torch.uint8)
    rows = [torch.randn(3, 8), torch.randn(3, 8)]
    for memory in (buffer, flat):
        pool = KvPool(LAYOUT, (4,), memory).of(1)
        pool.write(1, pool.slots(BLOCKS, OFFSETS, CPU), rows)
    assert bytes(flat.numpy()) == bytes(buffer)
    with pytest.raises(ValueError, match="the buffer has"):
        KvPool(LAYOUT, (5,), flat)
