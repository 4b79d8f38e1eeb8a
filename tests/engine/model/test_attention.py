"""Paged attention equals attention spelled out, whatever the batch's shape and whatever unused memory holds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.kv.region import pool_bytes
from pdcore.engine.model import attention, attention_plan
from pdcore.engine.model.attention import Scores

pytestmark = pytest.mark.unit

HEADS, KV_HEADS, DIM, SIZE, CPU = 6, 2, 4, 4, torch.device("cpu")
WINDOW = 7
FULL, NARROW = 1, 2
"""The layers that are looked at: one of each group."""


def entries(layer: int) -> Iterator[KvEntry]:
    for name in ("k", "v"):
        yield KvEntry(name=name, layer=layer, heads=KV_HEADS, dim=DIM, itemsize=4, dtype_name="float32")


LAYOUT = KvLayout(
    groups=(
        KvGroup(key="full", block_size=SIZE, entries=(*entries(0), *entries(FULL))),
        KvGroup(key="window", block_size=SIZE, entries=(*entries(NARROW),), window=WINDOW),
    )
)


@dataclass(frozen=True)
class Part:
    start: int
    count: int
    block_tables: BlockLists

    def __len__(self) -> int:
        return self.count


def spelled_out(
    queries: Tensor, keys: Tensor, values: Tensor, *, window: int | None, sinks: Tensor | None
) -> Tensor:
    """Attention of the last ``len(queries)`` tokens over all of them, one head and one token at a time."""
    context = keys.shape[0]
    rows = []
    for i, query in enumerate(queries):
        stop = context - len(queries) + i + 1
        seen = slice(0 if window is None else max(0, stop - window), stop)
        heads = []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = keys[seen, shared] @ query[head] / math.sqrt(DIM)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1]))
            heads.append(scores.softmax(dim=0)[: stop - seen.start] @ values[seen, shared])
        rows.append(torch.stack(heads))
    return torch.stack(rows)


def batch_of(shapes: list[tuple[int, int]], shuffle: random.Random) -> tuple[list[Part], KvPool, bytearray]:
    needed = [-(-(start + count) // SIZE) for start, count in shapes]
    blocks = sum(needed) + 2
    tables = []
    for _ in LAYOUT.groups:
        ids = list(range(blocks))
        shuffle.shuffle(ids)
        tables.append([tuple(ids.pop() for _ in range(count)) for count in needed])
    memory = bytearray(b"\xff" * pool_bytes(LAYOUT, (blocks, blocks)))
    parts = [
        Part(start, count, lists)
        for (start, count), lists in zip(shapes, zip(*tables, strict=True), strict=True)
    ]
    return parts, KvPool(LAYOUT, (blocks, blocks), memory), memory


shapes = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 1, 2, 5, 9])), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None)
@given(shapes, st.integers(0, 1 << 30), st.sampled_from([FULL, NARROW]), st.booleans())
def test_paged_attention_equals_attention_spelled_out(
    shapes: list[tuple[int, int]], seed: int, layer: int, sunk: bool
) -> None:
    batch, pool, _ = batch_of(shapes, random.Random(seed))
    generator = torch.Generator().manual_seed(seed)
    whole = [torch.randn(2, part.start + len(part), KV_HEADS, DIM, generator=generator) for part in batch]
    cache, group = pool.of(layer), pool.group_of[layer]
    for part, both in zip(batch, whole, strict=True):  # what earlier steps wrote
        if part.start:
            earlier = attention_plan.plan([Part(0, part.start, part.block_tables)], pool, CPU)
            cache.write(layer, earlier.groups[group].slots, both[:, : part.start].flatten(2).unbind())
    plan = attention_plan.plan(batch, pool, CPU)
    queries = [torch.randn(len(part), HEADS, DIM, generator=generator) for part in batch]
    sinks = torch.randn(HEADS, generator=generator) if sunk else None
    rows = torch.cat([queries[run.index] for run in plan.runs])
    new = [
        torch.cat([whole[run.index][kind, batch[run.index].start :] for run in plan.runs]) for kind in (0, 1)
    ]
    attention.store(plan, pool, layer, new)
    result = attention.attend(plan, pool, layer, rows, new, Scores(sinks=sinks))
    window = cache.group.window
    expected = torch.cat(
        [spelled_out(queries[run.index], *whole[run.index], window=window, sinks=sinks) for run in plan.runs]
    )
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


def test_nothing_but_the_new_tokens_slots_is_written() -> None:
    batch, pool, memory = batch_of([(0, 3), (5, 1), (2, 2)], random.Random(3))
    memory[:] = np.full(len(memory) // 4, -7.0, np.float32).tobytes()
    plan = attention_plan.plan(batch, pool, CPU)
    new = torch.ones(6, KV_HEADS, DIM)
    attention.store(plan, pool, FULL, [new, new])
    floats = np.frombuffer(memory, np.float32)
    blocks = pool.blocks[0]
    shape = (blocks, 2, 2, SIZE, KV_HEADS, DIM)
    written = (floats[: int(np.prod(shape))].reshape(shape) == 1.0).all(axis=(-1, -2))
    expected = {
        (part.block_tables[0][position // SIZE], position % SIZE)
        for part in batch
        for position in range(part.start, part.start + len(part))
    }
    for kind in (0, 1):
        found = set(zip(*map(np.ndarray.tolist, written[:, FULL, kind].nonzero()), strict=True))
        assert found == expected
    assert int((floats != -7.0).sum()) == 2 * 6 * KV_HEADS * DIM


def test_a_block_table_that_is_too_short_is_refused_before_anything_is_written() -> None:
    batch, pool, _ = batch_of([(3, 1)], random.Random(0))
    with pytest.raises(ValueError, match="9 tokens do not fit 1 KV blocks"):
        attention_plan.plan([Part(8, 1, batch[0].block_tables)], pool, CPU)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_no_context_is_padded_to_more_than_twice_its_length_once_that_matters(contexts: list[int]) -> None:
    contexts = sorted(contexts, reverse=True)
    bounds = attention_plan._bounds(contexts)
    assert bounds[0] == 0
    assert bounds[-1] == len(contexts)
    assert bounds == sorted(set(bounds))
    for begin, stop in pairwise(bounds):
        assert contexts[begin] <= max(attention_plan.SPLIT_ABOVE, 2 * contexts[stop - 1])
