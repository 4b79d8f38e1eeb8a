"""Attention over the paged KV cache, the seam another device's kernels go behind.

A :class:`AttentionPlan` is built once per forward pass from the batch's shape and used in every layer. Tokens are laid
out so that single tokens come first, longest context first, then chunks: each part of the work is then one contiguous
run of rows.

Single tokens are computed together: their contexts are gathered side by side, padded to the longest. The heads that
share a key/value head stand where a kernel expects query positions, so nothing is repeated in memory. Padding repeats
a slot that was written, because memory that was not may hold NaN, which no mask removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.kv.pool import KvPool

SPLIT_ABOVE: Final = 256
"""Contexts up to this many tokens are padded together whatever the waste: another kernel call costs more."""


class Span(Protocol):
    """What attention needs to know of one sequence's part of the batch."""

    @property
    def start(self) -> int: ...
    @property
    def block_table(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Singles:
    """One token of each of ``stop - begin`` sequences. ``mask`` is ``[n, 1, 1, longest]``, true where attended."""

    begin: int
    stop: int
    slots: Tensor  # [n * longest]
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one sequence. Without ``slots`` the chunk is the sequence's beginning: it attends to itself."""

    begin: int
    stop: int
    slots: Tensor | None  # [context]
    mask: Tensor | None  # [tokens, context]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How one batch attends. ``order`` is the batch's indices in the order of the rows; ``slots`` where rows go."""

    order: tuple[int, ...]
    slots: Tensor
    singles: tuple[Singles, ...]
    chunks: tuple[Chunk, ...]


def plan(batch: Sequence[Span], pool: KvPool, device: torch.device) -> AttentionPlan:
    """Decide the order of rows and prepare every index and mask; ValueError for a block table that is too short."""
    for span in batch:
        if span.start + len(span) > len(span.block_table) * pool.shape.block_size:
            raise ValueError(f"{span.start + len(span)} tokens do not fit {len(span.block_table)} KV blocks")
    single = sorted((i for i, span in enumerate(batch) if len(span) == 1), key=lambda i: -batch[i].start)
    chunked = [i for i, span in enumerate(batch) if len(span) != 1]
    rows = len(single)
    chunks = []
    for i in chunked:
        chunks.append(_chunk(batch[i], pool, rows, device))
        rows += len(batch[i])
    bounds = _bounds([batch[i].start + 1 for i in single])
    order = (*single, *chunked)
    return AttentionPlan(
        order=order,
        slots=torch.cat([_own_slots(batch[i], pool) for i in order]).to(device),
        singles=tuple(
            _singles([batch[i] for i in single[begin:stop]], pool, begin, device)
            for begin, stop in pairwise(bounds)
        ),
        chunks=tuple(chunks),
    )


def attend(
    plan: AttentionPlan, pool: KvPool, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Store ``keys`` and ``values`` ``[tokens, kv_heads, head_dim]`` of every row, then attend.

    ``queries`` are ``[tokens, heads, head_dim]``; the result is ``[tokens, heads * head_dim]``.
    """
    pool.write(layer, plan.slots, keys, values)
    parts = [_attend_singles(part, pool, layer, queries[part.begin : part.stop]) for part in plan.singles]
    for chunk in plan.chunks:
        rows = slice(chunk.begin, chunk.stop)
        if chunk.slots is None:
            context = keys[rows], values[rows]
        else:
            context = pool.read(layer, chunk.slots)
        parts.append(_attend_chunk(chunk, queries[rows], *context))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_singles(part: Singles, pool: KvPool, layer: int, queries: Tensor) -> Tensor:
    count, heads, head_dim = queries.shape
    kv_heads = pool.shape.kv_heads
    keys, values = pool.read(layer, part.slots)
    attended = F.scaled_dot_product_attention(
        queries.reshape(count, kv_heads, heads // kv_heads, head_dim),
        keys.view(count, -1, kv_heads, head_dim).transpose(1, 2),
        values.view(count, -1, kv_heads, head_dim).transpose(1, 2),
        attn_mask=part.mask,
    )
    return attended.reshape(count, heads * head_dim)


def _attend_chunk(chunk: Chunk, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    attended = F.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return attended.squeeze(0).transpose(0, 1).flatten(1)


def _bounds(contexts: Sequence[int]) -> list[int]:
    """Where to cut sequences of descending context so that none is padded to more than twice its length."""
    if not contexts:
        return []
    bounds = [0]
    for i, context in enumerate(contexts):
        longest = contexts[bounds[-1]]
        if longest > SPLIT_ABOVE and context * 2 < longest:
            bounds.append(i)
    return [*bounds, len(contexts)]


def _singles(spans: Sequence[Span], pool: KvPool, begin: int, device: torch.device) -> Singles:
    lengths = torch.tensor([span.start + 1 for span in spans])
    longest = spans[0].start + 1
    blocks = pool.layout.blocks_for(longest)
    tables = torch.tensor(
        [(*span.block_table[:blocks], *((0,) * (blocks - len(span.block_table[:blocks])))) for span in spans]
    )
    attended = torch.arange(longest) < lengths[:, None]
    positions = torch.arange(longest).expand(len(spans), -1).where(attended, 0)
    size = pool.shape.block_size
    slots = pool.slots(tables.gather(1, positions // size), positions % size)
    return Singles(
        begin=begin,
        stop=begin + len(spans),
        slots=slots.flatten().to(device),
        mask=attended[:, None, None, :].to(device),
    )


def _chunk(span: Span, pool: KvPool, begin: int, device: torch.device) -> Chunk:
    stop = begin + len(span)
    if span.start == 0:
        return Chunk(begin=begin, stop=stop, slots=None, mask=None)
    context = span.start + len(span)
    slots = _slots(span.block_table, 0, context, pool)
    mask = torch.ones(len(span), context, dtype=torch.bool).tril(span.start)
    return Chunk(begin=begin, stop=stop, slots=slots.to(device), mask=mask.to(device))


def _own_slots(span: Span, pool: KvPool) -> Tensor:
    return _slots(span.block_table, span.start, span.start + len(span), pool)


def _slots(block_table: Sequence[int], start: int, stop: int, pool: KvPool) -> Tensor:
    size = pool.shape.block_size
    positions = torch.arange(start, stop)
    first = start // size
    table = torch.tensor(block_table[first : pool.layout.blocks_for(stop)])
    return pool.slots(table[positions // size - first], positions % size)
