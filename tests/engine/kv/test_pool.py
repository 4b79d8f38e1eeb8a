"""The pool's tensor and its rows are views of the memory it was given, at the offsets the layout says."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.kv.pool import KvPool, bytes_needed

pytestmark = pytest.mark.unit

LAYOUT = KvLayout.dense(layers=3, kv_heads=2, head_dim=4, block_size=8, itemsize=4, dtype_name="float32")


def test_one_block_is_one_contiguous_run() -> None:
    buffer = bytearray(bytes_needed(LAYOUT, 5))
    pool = KvPool(LAYOUT, 5, buffer)
    pool.tensor[3] = 1.0
    touched = np.frombuffer(buffer, dtype=np.float32).nonzero()[0] * 4
    assert touched[0] == 3 * LAYOUT.block_bytes
    assert touched[-1] == 4 * LAYOUT.block_bytes - 4
    assert len(touched) * 4 == LAYOUT.block_bytes


@pytest.mark.parametrize("layer", range(3))
def test_written_tokens_are_where_the_shape_says_and_can_be_read(layer: int) -> None:
    pool = KvPool(LAYOUT, 4, bytearray(bytes_needed(LAYOUT, 4)))
    blocks, offsets = torch.tensor([2, 0, 3]), torch.tensor([7, 0, 3])
    slots = pool.slots(blocks, offsets)
    keys, values = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    pool.write(layer, slots, keys, values)
    assert torch.equal(pool.tensor[blocks, layer, 0, offsets], keys)
    assert torch.equal(pool.tensor[blocks, layer, 1, offsets], values)
    assert int((pool.tensor != 0).sum()) == 2 * 3 * 2 * 4
    read_keys, read_values = pool.read(layer, slots)
    assert torch.equal(read_keys, keys)
    assert torch.equal(read_values, values)


def test_writes_from_outside_are_seen() -> None:
    with mmap.mmap(-1, bytes_needed(LAYOUT, 2)) as memory:
        view = memoryview(memory)
        pool = KvPool(LAYOUT, 2, view)
        view[LAYOUT.block_bytes : 2 * LAYOUT.block_bytes] = np.ones(
            LAYOUT.block_bytes // 4, np.float32
        ).tobytes()
        assert bool((pool.tensor[1] == 1).all())
        assert bool((pool.tensor[0] == 0).all())
        del pool
        view.release()


def test_bfloat16_takes_half() -> None:
    half = KvLayout.dense(layers=3, kv_heads=2, head_dim=4, block_size=8, itemsize=2, dtype_name="bfloat16")
    pool = KvPool(half, 4, bytearray(bytes_needed(half, 4)))
    assert pool.tensor.dtype == torch.bfloat16
    assert pool.tensor.shape == (4, 3, 2, 8, 2, 4)
    assert repr(pool) == "KvPool(4 blocks of 8 tokens, bfloat16)"


def test_a_buffer_may_be_larger_but_not_smaller() -> None:
    assert KvPool(LAYOUT, 1, bytearray(LAYOUT.block_bytes + 3)).blocks == 1
    with pytest.raises(ValueError, match="2 KV blocks need"):
        KvPool(LAYOUT, 2, bytearray(2 * LAYOUT.block_bytes - 1))


def test_a_read_only_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="must be writable"):
        KvPool(LAYOUT, 1, memoryview(bytes(LAYOUT.block_bytes)))


def test_a_layout_in_head_order_is_refused() -> None:
    layout = KvLayout.dense(
        layers=3, kv_heads=2, head_dim=4, block_size=8, itemsize=4, dtype_name="float32", order="head"
    )
    with pytest.raises(ValueError, match="head order"):
        KvPool(layout, 1, bytearray(bytes_needed(layout, 1)))
