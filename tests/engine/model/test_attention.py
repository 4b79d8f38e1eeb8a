"""Paged attention equals attention spelled out, whatever the batch's shape and whatever unused memory holds."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.kv.pool import KvPool, bytes_needed
from pdcore.engine.model import attention

pytestmark = pytest.mark.unit

LAYOUT = KvLayout.dense(layers=2, kv_heads=2, head_dim=4, block_size=4, itemsize=4, dtype_name="float32")
HEADS, LAYER, CPU = 6, 1, torch.device("cpu")


@dataclass(frozen=True)
class Part:
    start: int
    count: int
    block_table: tuple[int, ...]

    def __len__(self) -> int:
        return self.count


def spelled_out(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of the last ``len(queries)`` tokens over all of them, one head and one token at a time."""
    context = keys.shape[0]
    rows = []
    for i, query in enumerate(queries):
        seen = context - len(queries) + i + 1
        heads = []
        for head in range(HEADS):
            shared = head // (HEADS // LAYOUT.dense_shape().kv_heads)
            weights = (keys[:seen, shared] @ query[head] / math.sqrt(LAYOUT.dense_shape().head_dim)).softmax(
                dim=0
            )
            heads.append(weights @ values[:seen, shared])
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def batch_of(shapes: list[tuple[int, int]], shuffle: random.Random) -> tuple[list[Part], KvPool]:
    needed = [LAYOUT.blocks_for(start + count) for start, count in shapes]
    blocks = sum(needed) + 2
    ids = list(range(blocks))
    shuffle.shuffle(ids)
    tables = [tuple(ids.pop() for _ in range(count)) for count in needed]
    pool = KvPool(LAYOUT, blocks, bytearray(b"\xff" * bytes_needed(LAYOUT, blocks)))
    return [Part(start, count, table) for (start, count), table in zip(shapes, tables, strict=True)], pool


shapes = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 1, 2, 5])), min_size=1, max_size=6)


@settings(max_examples=15, deadline=None)
@given(shapes, st.integers(0, 1 << 30))
def test_paged_attention_equals_attention_spelled_out(shapes: list[tuple[int, int]], seed: int) -> None:
    batch, pool = batch_of(shapes, random.Random(seed))
    generator = torch.Generator().manual_seed(seed)
    whole = [torch.randn(2, part.start + len(part), 2, 4, generator=generator) for part in batch]
    for part, (keys, values) in zip(batch, whole, strict=True):  # what earlier steps wrote
        if part.start:
            earlier = attention.plan([Part(0, part.start, part.block_table)], pool, CPU)
            pool.write(LAYER, earlier.slots, keys[: part.start], values[: part.start])
    plan = attention.plan(batch, pool, CPU)
    queries = [torch.randn(len(part), HEADS, 4, generator=generator) for part in batch]
    rows = torch.cat([queries[run.index] for run in plan.runs])
    keys, values = (
        torch.cat([whole[run.index][kind, batch[run.index].start :] for run in plan.runs]) for kind in (0, 1)
    )
    result = attention.attend(plan, pool, LAYER, rows, keys, values)
    expected = torch.cat([spelled_out(queries[run.index], *whole[run.index]) for run in plan.runs])
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


def test_nothing_but_the_new_tokens_slots_is_written() -> None:
    batch, pool = batch_of([(0, 3), (5, 1), (2, 2)], random.Random(3))
    pool.tensor.fill_(-7.0)
    plan = attention.plan(batch, pool, CPU)
    new = torch.ones(6, 2, 4)
    attention.attend(plan, pool, LAYER, torch.ones(6, HEADS, 4), new, new)
    written = (pool.tensor == 1.0).all(dim=-1).all(dim=-1)
    expected = {
        (part.block_table[position // 4], position % 4)
        for part in batch
        for position in range(part.start, part.start + len(part))
    }
    for kind in (0, 1):
        found = {(block, slot) for block, slot in written[:, LAYER, kind].nonzero().tolist()}
        assert found == expected
    assert int((pool.tensor != -7.0).sum()) == 2 * 6 * 2 * 4


def test_a_block_table_that_is_too_short_is_refused_before_anything_is_written() -> None:
    batch, pool = batch_of([(3, 1)], random.Random(0))
    with pytest.raises(ValueError, match="9 tokens do not fit 1 KV blocks"):
        attention.plan([Part(8, 1, batch[0].block_table)], pool, CPU)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_no_context_is_padded_to_more_than_twice_its_length_once_that_matters(contexts: list[int]) -> None:
    contexts = sorted(contexts, reverse=True)
    bounds = attention._bounds(contexts)
    assert bounds[0] == 0
    assert bounds[-1] == len(contexts)
    assert bounds == sorted(set(bounds))
    for begin, stop in pairwise(bounds):
        assert contexts[begin] <= max(attention.SPLIT_ABOVE, 2 * contexts[stop - 1])
